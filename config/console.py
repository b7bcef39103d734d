"""The web console: where it listens, who signs in how, and what they may."""

from datetime import timedelta
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from relight.config.addresses import HttpRoot
from relight.domain.human import Duration

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_MAX_PORT = 65535


class Role(StrEnum):
    """What a person who signs in is; each of the last four may all that the one before may."""

    USER = "user"
    """Sees the own jobs and their incidents, and decides on restarts of them where the site lets a job's user."""
    VIEWER = "viewer"
    """Sees everything, changes nothing."""
    OPERATOR = "operator"
    """Rejects plans as well: stops Relight from acting."""
    APPROVER = "approver"
    """Approves plans as well; whether that counts is judged by `approvals.approvers`."""
    ADMIN = "admin"
    """Sees the settings in force as well."""


def _is_an_address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 <= int(port) <= _MAX_PORT):
        raise ValueError("must be host:port, for example 127.0.0.1:8470 or [::]:8470")
    return value


def _is_a_network(value: str) -> str:
    try:
        ip_network(value)
    except ValueError as error:
        raise ValueError(f"must be an IP address or a network like 10.0.0.0/8: {error}") from None
    return value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OidcSettings(_Section):
    """Sign-in by an OpenID Connect provider: authorization code with PKCE (RFC 7636)."""

    issuer: HttpRoot = ""
    """Its root, below which `/.well-known/openid-configuration` is; empty: not used."""
    client_id: str = ""
    client_secret_file: str = ""
    """Empty: a public client, which PKCE alone protects."""
    name: str = Field(default="single sign-on", max_length=60)
    """What the button says."""
    scopes: tuple[str, ...] = ("openid", "profile")
    user_claim: str = "preferred_username"
    """Of the ID token: the person's user name on the cluster."""
    user_domain: str = ""
    """Cut off from it where it ends so: `example.org` makes `ada` of `ada@example.org`."""
    role_claim: str = "groups"
    """Of the ID token: a name or a list of names."""
    roles: dict[str, Role] = {}
    """The role of each group; the highest counts."""
    default_role: Role | None = None
    """Of who is in none of them; empty: is not let in."""
    ca: str = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.issuer and not self.client_id:
            raise ValueError("issuer needs client_id")
        if self.issuer and not (self.roles or self.default_role):
            raise ValueError("nobody could sign in: give roles, for example {hpc-admins: admin}, or default_role")
        if "openid" not in self.scopes:
            raise ValueError("scopes must hold openid")
        host = self.issuer.partition("://")[2].partition("/")[0].rpartition(":")[0] or self.issuer.partition("://")[2]
        if self.issuer.startswith("http://") and host.strip("[]") not in LOOPBACK:
            raise ValueError("issuer must be https: what it says decides who is let in")
        return self


class ConsoleSettings(_Section):
    """The web console and its HTTP API."""

    listen: Annotated[str, AfterValidator(_is_an_address)] = "127.0.0.1:8470"
    url: HttpRoot = ""
    """As browsers reach it, where that differs: behind a proxy, or for sign-in by OIDC."""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    """True: plain HTTP on any address."""
    proxies: tuple[Annotated[str, AfterValidator(_is_a_network)], ...] = ()
    """Whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    key_file: str = ""
    """Signs decisions of people who have signed in (`approvals.approvers`: vouches_for)."""
    tokens_file: str = ""
    session_idle: Duration = Field(default=timedelta(minutes=30), ge=timedelta(minutes=1), le=timedelta(days=1))
    session_most: Duration = Field(default=timedelta(hours=12), ge=timedelta(minutes=1), le=timedelta(days=7))
    sign_ins_per_minute: int = Field(default=10, ge=1, le=1000)
    """That fail, of one address."""
    decisions_per_minute: int = Field(default=20, ge=1, le=1000)
    """Of one person."""
    oidc: OidcSettings = OidcSettings()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def loopback(self) -> bool:
        """True where it listens on this machine alone."""
        host = self.address[0]
        try:
            return host in LOOPBACK or ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def encrypted(self) -> bool:
        """True where browsers come by https, to us or to a proxy before us."""
        return bool(self.tls_cert) or self.url.startswith("https://")

    @property
    def root(self) -> str:
        """As browsers reach it, without a slash at the end."""
        return self.url.rstrip("/") or f"{'https' if self.tls_cert else 'http'}://{self.listen}"

    @model_validator(mode="after")
    def _sessions_are_not_overheard(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together")
        if self.oidc.issuer and not self.url and not self.loopback:
            raise ValueError("oidc needs url: the provider sends people back to it")
        if not (self.tls_cert or self.insecure or self.loopback):
            raise ValueError(
                f"listen on {self.listen} without TLS: who overhears a session can use it; "
                "set tls_cert and tls_key, or insecure: true where a proxy on a network of yours encrypts"
            )
        return self
