"""Sign-in by an OpenID Connect provider: authorization code with PKCE, state and nonce (OpenID Connect Core 1.0, 3.1).

What the provider says is believed when its ID token is signed by a key it publishes, meant for us, fresh, and carries
the nonce of this very browser's sign-in. Authlib speaks to the provider, joserfc checks the token.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from relight.config.console import OidcSettings
from relight.console.web.errors import Refused, Stranger, Unreachable
from relight.console.web.roles import RANK, Role
from relight.domain.rights import person_name

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", "Ed25519"]
"""No `none`, and no HMAC: with those who verifies could sign."""
LASTS = timedelta(minutes=10)
"""For a person to sign in at the provider."""
MOST_PENDING = 1000
_KEPT = timedelta(hours=1)
_WITHIN_S = 10
_LEEWAY_S = 60


class Begun(NamedTuple):
    """A sign-in that the provider has been asked for."""

    nonce: str
    verifier: str
    next: str
    at: datetime


class Person(NamedTuple):
    """Who the provider says it is."""

    name: str
    role: Role
    next: str
    """Where the person wanted to go."""


class _Provider(NamedTuple):
    about: dict[str, Any]
    keys: KeySet
    at: datetime


class Oidc:
    """One provider."""

    def __init__(
        self,
        settings: OidcSettings,
        redirect_uri: str,
        now: Callable[[], datetime],
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Make ready; nothing is asked of the provider yet.

        Args:
            settings: with an issuer.
            redirect_uri: where it sends people back to.
            now: the time.
            transport: instead of the network, in tests.
        """
        self._settings = settings
        self._redirect_uri = redirect_uri
        self._now = now
        self._transport = transport
        self._begun: OrderedDict[str, Begun] = OrderedDict()
        self._provider: _Provider | None = None

    async def begin(self, following: str) -> tuple[str, str]:
        """Where to send the browser, and the state that it must come back with.

        Raises:
            Unreachable: the provider does not answer.
        """
        provider = await self._known()
        begun = Begun(secrets.token_urlsafe(32), secrets.token_urlsafe(48), following, self._now())
        async with self._client() as client:
            url, state = client.create_authorization_url(
                provider.about["authorization_endpoint"],
                code_verifier=begun.verifier,
                nonce=begun.nonce,
                state=secrets.token_urlsafe(32),
            )
        self._begun[state] = begun
        while len(self._begun) > MOST_PENDING:
            self._begun.popitem(last=False)
        return str(url), str(state)

    async def finish(self, state: str, code: str, issuer: str) -> Person:
        """Who has come back from the provider; each state is good once.

        Args:
            state: what this browser was sent off with.
            code: what the provider gave it.
            issuer: as the answer names it (RFC 9207); empty where it does not.

        Raises:
            Stranger: it is not proven.
            Refused: it is, and the person is not let in.
            Unreachable: the provider does not answer.
        """
        begun = self._begun.pop(state, None)
        if begun is None or self._now() - begun.at > LASTS:
            raise Stranger("this sign-in was begun too long ago, or not here: begin again")
        if issuer and issuer != (await self._known()).about["issuer"]:
            raise Stranger("the answer came from another provider than was asked")
        claims = await self._claims(await self._token(code, begun.verifier), begun.nonce)
        return Person(self._name(claims), self._role(claims), begun.next)

    # --- the provider -------------------------------------------------------------------------------------------------

    def _client(self) -> AsyncOAuth2Client:
        settings = self._settings
        secret = Path(settings.client_secret_file).expanduser() if settings.client_secret_file else None
        try:
            text = secret.read_text().strip() if secret else None
        except OSError as error:
            raise Unreachable(f"sign-in is not set up: {error.filename}: {error.strerror}") from error
        return AsyncOAuth2Client(
            client_id=settings.client_id,
            client_secret=text,
            token_endpoint_auth_method="client_secret_basic" if text else "none",
            scope=" ".join(settings.scopes),
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        verify = {"verify": str(Path(self._settings.ca).expanduser())} if self._settings.ca else {}
        return {"timeout": _WITHIN_S, "transport": self._transport, "follow_redirects": False, **verify}

    async def _known(self, *, anew: bool = False) -> _Provider:
        """What the provider publishes of itself, read again after an hour, or where a key is not among its keys."""
        known = self._provider
        if known and not anew and self._now() - known.at < _KEPT:
            return known
        root = self._settings.issuer.rstrip("/")
        try:
            async with httpx2.AsyncClient(**self._options()) as client:
                about = await _json(client, f"{root}/.well-known/openid-configuration")
                if str(about.get("issuer", "")).rstrip("/") != root:
                    raise Unreachable(f"the provider at {root} says it is {str(about.get('issuer'))[:200]}")
                keys = KeySet.import_key_set(await _json(client, str(about["jwks_uri"])))
        except (KeyError, TypeError, ValueError, JoseError) as error:
            raise Unreachable(
                f"{self._settings.name}: not an OpenID Connect provider: {type(error).__name__}"
            ) from error
        except httpx2.HTTPError as error:
            raise Unreachable(f"{self._settings.name} does not answer: {type(error).__name__}") from error
        self._provider = _Provider(about, keys, self._now())
        return self._provider

    async def _token(self, code: str, verifier: str) -> str:
        provider = await self._known()
        try:
            async with self._client() as client:
                answer = await client.fetch_token(
                    provider.about["token_endpoint"], grant_type="authorization_code", code=code, code_verifier=verifier
                )
        except OAuthError as error:
            raise Stranger(f"{self._settings.name} did not confirm the sign-in: {str(error.error)[:100]}") from error
        except (httpx2.HTTPError, KeyError, ValueError) as error:
            raise Unreachable(f"{self._settings.name} does not answer: {type(error).__name__}") from error
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Stranger(f"{self._settings.name} sent no ID token")
        return token

    async def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        try:
            return self._checked(token, nonce, await self._known())
        except (JoseError, ValueError):
            try:  # its keys may be new ones
                return self._checked(token, nonce, await self._known(anew=True))
            except (JoseError, ValueError) as error:
                raise Stranger(f"{self._settings.name}'s ID token is not good: {type(error).__name__}") from error

    def _checked(self, token: str, nonce: str, provider: _Provider) -> dict[str, Any]:
        claims = jwt.decode(token, provider.keys, algorithms=ALGORITHMS).claims
        jwt.JWTClaimsRegistry(
            now=int(self._now().timestamp()),
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": provider.about["issuer"]},
            aud={"essential": True, "value": self._settings.client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
        party = claims.get("azp", self._settings.client_id)
        if party != self._settings.client_id:
            raise ValueError("azp")
        return dict(claims)

    # --- the person ---------------------------------------------------------------------------------------------------

    def _name(self, claims: dict[str, Any]) -> str:
        claim, domain = self._settings.user_claim, self._settings.user_domain
        said = claims.get(claim)
        name = said.removesuffix(f"@{domain}") if isinstance(said, str) and domain else said
        if not isinstance(name, str) or not person_name(name):
            raise Refused(f"{self._settings.name} tells no user name: its claim {claim} is missing or no user name")
        return name

    def _role(self, claims: dict[str, Any]) -> Role:
        said = claims.get(self._settings.role_claim, ())
        groups = [said] if isinstance(said, str) else said if isinstance(said, list) else []
        known = [
            self._settings.roles[each] for each in groups if isinstance(each, str) and each in self._settings.roles
        ]
        if known:
            return max(known, key=RANK.index)
        if self._settings.default_role is None:
            raise Refused("you have signed in, and are in no group that is let in here: ask your administrators")
        return self._settings.default_role


async def _json(client: httpx2.AsyncClient, url: str) -> Any:
    answer = await client.get(url)
    answer.raise_for_status()
    return answer.json()
