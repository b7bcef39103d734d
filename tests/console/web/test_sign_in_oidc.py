"""Sign-in by OIDC, against a stand-in provider: a small one made here that speaks the documented protocol.

It checks what a provider must (client, redirect, PKCE, a code once), and can be told to lie.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from relight.config.console import OidcSettings
from relight.console.web.sign_in_oidc import Oidc

from .asking import ROOT, Clock, Site, empty_ledger, settings_in, site

ISSUER = "https://id.example/realms/hpc"
CLIENT, SECRET = "relight", "s3cret"
BACK = f"{ROOT}/sign-in/callback"


KEYS = tuple(RSAKey.generate_key(2048, parameters={"kid": kid}) for kid in ("k1", "k2"))


class Provider:
    """The stand-in."""

    def __init__(self) -> None:
        self.key = KEYS[0]
        self.signs_with = self.key
        self.algorithm = "RS256"
        self.codes: dict[str, dict[str, str]] = {}
        self.lies: dict[str, object] = {}
        self.person = {"sub": "42", "preferred_username": "ada", "groups": ["hpc-users", "hpc-ops"]}
        self.down = False

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if self.down:
            raise httpx2.ConnectError("connection refused", request=request)
        path = request.url.path.removeprefix("/realms/hpc")
        if path == "/.well-known/openid-configuration":
            about = {name: f"{ISSUER}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
            return httpx2.Response(200, json={"issuer": self.lies.get("issuer", ISSUER), **about})
        if path == "/jwks_uri":
            return httpx2.Response(200, json={"keys": [self.key.as_dict(private=False)]})
        return self._token(request)

    def authorise(self, url: str) -> dict[str, str]:
        """What a person's browser is sent back with after signing in at the provider."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert url.startswith(f"{ISSUER}/authorization_endpoint?")
        assert (asked["response_type"], asked["client_id"], asked["redirect_uri"]) == ("code", CLIENT, BACK)
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_hex(8)
        self.codes[code] = asked
        return {"code": code, "state": asked["state"], "iss": ISSUER}

    def _token(self, request: httpx2.Request) -> httpx2.Response:
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        asked = self.codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        good = asked and challenge.decode() == asked["code_challenge"] and form["redirect_uri"] == asked["redirect_uri"]
        if not good or request.headers["authorization"] != f"Basic {basic}":
            return httpx2.Response(400, json={"error": "invalid_grant"})
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"], **self.person}
        claims = {name: value for name, value in {**claims, **self.lies.get("claims", {})}.items() if value is not None}
        header = {"alg": self.algorithm, "kid": self.key.kid}
        token = jwt.encode(header, claims, self.signs_with, algorithms=[self.algorithm])
        return httpx2.Response(200, json={"access_token": "x", "token_type": "Bearer", "id_token": token})


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def more() -> dict[str, object]:
    """Further settings of the provider."""
    return {}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return empty_ledger(tmp_path_factory.mktemp("relight"))


@pytest.fixture
async def there(kept: Path, provider: Provider, more: dict[str, object], tmp_path: Path) -> AsyncIterator[Site]:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    oidc = {
        "issuer": ISSUER,
        "client_id": CLIENT,
        "client_secret_file": str(secret),
        "roles": {"hpc-users": "user", "hpc-ops": "approver"},
        **more,
    }
    settings = settings_in(kept, console={"oidc": oidc, "tokens_file": str(tmp_path / "tokens.json")})
    made = Oidc(settings.console.oidc, BACK, Clock(), httpx2.MockTransport(provider))
    async with site(settings, oidc=made) as found:
        yield found


async def come_back(there: Site, provider: Provider, **changes: str) -> tuple[httpx2.AsyncClient, httpx2.Response]:
    """A browser goes to the provider, and comes back with what that gave it, or with something else."""
    browser = there.client(accept="text/html")
    sent = await browser.get("/sign-in/oidc", params={"next": "/incidents"})
    assert sent.status_code == 303, sent.text
    answer = {**provider.authorise(sent.headers["location"]), **changes}
    return browser, await browser.get("/sign-in/callback", params={k: v for k, v in answer.items() if v})


async def test_a_person_signs_in_with_the_role_of_the_highest_group(there: Site, provider: Provider):
    """And goes on to the page that was wanted."""
    browser, answer = await come_back(there, provider)
    assert (answer.status_code, answer.headers["location"]) == (303, "/incidents")
    me = (await browser.get("/api/v1/me")).json()
    assert (me["name"], me["role"], me["way"]) == ("ada", "approver", "oidc")
    assert "single sign-on" in (await there.client().get("/sign-in")).text


async def test_each_sign_in_has_its_own_state_nonce_and_verifier(there: Site, provider: Provider):
    """Nothing of one can be used for another."""
    urls = [(await there.client().get("/sign-in/oidc")).headers["location"] for _ in range(3)]
    asked = [dict(parse_qsl(urlsplit(url).query)) for url in urls]
    for name in ("state", "nonce", "code_challenge"):
        assert len({each[name] for each in asked}) == 3


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"iss": "https://evil.example"}, 401),
        ({"aud": "another-client"}, 401),
        ({"aud": [CLIENT, "other"], "azp": "other"}, 401),
        ({"exp": 1000}, 401),
        ({"exp": None}, 401),
        ({"nonce": "another"}, 401),
        ({"nonce": None}, 401),
        ({"preferred_username": "ada; drop"}, 403),
        ({"preferred_username": None}, 403),
        ({"preferred_username": ["ada"]}, 403),
        ({"groups": ["strangers"]}, 403),
        ({"groups": None}, 403),
        ({"groups": {"hpc-ops": 1}}, 403),
    ],
)
async def test_what_a_token_must_say(there: Site, provider: Provider, claims: dict[str, object], status: int):
    """For us, from this provider, now, for this very sign-in, a user name, a group that is let in."""
    provider.lies["claims"] = claims
    browser, answer = await come_back(there, provider)
    assert answer.status_code == status
    assert (await browser.get("/api/v1/me")).status_code == 401


async def test_a_token_signed_by_another_or_by_our_secret_is_not_good(there: Site, provider: Provider):
    """Nor does a token choose an algorithm by which whoever verifies could sign."""
    provider.signs_with = KEYS[1]
    assert (await come_back(there, provider))[1].status_code == 401
    public = json.dumps(provider.key.as_dict(private=False))
    provider.signs_with, provider.algorithm = OctKey.import_key(public), "HS256"
    assert (await come_back(there, provider))[1].status_code == 401


async def test_a_provider_may_change_its_keys(there: Site, provider: Provider):
    """They are read again when a signature does not fit those known."""
    assert (await come_back(there, provider))[1].status_code == 303
    provider.key = provider.signs_with = KEYS[1]
    assert (await come_back(there, provider))[1].status_code == 303


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "another"},
        {"state": ""},
        {"code": "guessed"},
        {"code": ""},
        {"iss": "https://evil.example"},
        {"error": "access_denied"},
    ],
)
async def test_an_answer_that_was_not_asked_for_lets_nobody_in(
    there: Site, provider: Provider, changes: dict[str, str]
):
    """Another state, a guessed code, another issuer, a refusal."""
    browser, answer = await come_back(there, provider, **changes)
    assert answer.status_code == 401
    assert (await browser.get("/api/v1/me")).status_code == 401


async def test_a_link_signs_nobody_in_as_somebody_else(there: Site, provider: Provider):
    """A good answer of the provider, in a browser that did not begin this sign-in; nor twice in the one that did."""
    browser = there.client(accept="text/html")
    url = (await browser.get("/sign-in/oidc")).headers["location"]
    answer = provider.authorise(url)
    assert (await there.client().get("/sign-in/callback", params=answer)).status_code == 401
    kept = browser.cookies["relight-sign-in"]
    assert (await browser.get("/sign-in/callback", params=answer)).status_code == 303
    again = there.client(cookie=f"relight-sign-in={kept}")
    assert (await again.get("/sign-in/callback", params=answer)).status_code == 401


@pytest.mark.parametrize("more", [{"user_domain": "uni.example", "default_role": "user", "roles": {}}])
async def test_a_domain_is_cut_off_and_others_are_users_where_the_site_says_so(there: Site, provider: Provider):
    """`ada@uni.example` is ada on the cluster."""
    provider.person |= {"preferred_username": "ada@uni.example", "groups": []}
    browser, _ = await come_back(there, provider)
    me = (await browser.get("/api/v1/me")).json()
    assert (me["name"], me["role"]) == ("ada", "user")


async def test_a_provider_that_is_away_or_another_is_said(there: Site, provider: Provider):
    """Tokens still let people in meanwhile."""
    provider.down = True
    answer = await there.client().get("/sign-in/oidc")
    assert (answer.status_code, "does not answer" in answer.text, answer.headers["retry-after"]) == (503, True, "5")
    assert (await there.program("bob", "viewer").get("/api/v1/me")).status_code == 200
    provider.down = False
    provider.lies["issuer"] = "https://evil.example"
    assert (await there.client().get("/sign-in/oidc")).status_code == 503


async def test_a_sign_in_that_takes_too_long_begins_anew(provider: Provider):
    """Ten minutes at the provider are enough."""
    clock = Clock()
    settings = OidcSettings(issuer=ISSUER, client_id=CLIENT, default_role="user")
    oidc = Oidc(settings, BACK, clock, httpx2.MockTransport(provider))
    _, state = await oidc.begin("/")
    clock.move(minutes=11)
    with pytest.raises(Exception, match="begun too long ago"):
        await oidc.finish(state, "code", "")
