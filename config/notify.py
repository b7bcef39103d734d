"""Where people are told: channels, whom each is for, and the files or variables that hold their secrets."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from relight.config.addresses import HttpRoot
from relight.config.notify_slack import SlackAppSettings, is_here
from relight.config.secret import Variable, read_secret
from relight.domain.human import Duration
from relight.domain.notices import Audience, Severity
from relight.domain.notices_channel import Wishes

MOST_CHANNELS = 20
USER = "{user}"


class ChannelKind(StrEnum):
    """What a channel is."""

    SLACK = "slack"
    PAGERDUTY = "pagerduty"
    EMAIL = "email"
    WEBHOOK = "webhook"


class Tls(StrEnum):
    """How mail is encrypted on its way to the server."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


def _is_an_address(value: str) -> str:
    local, at, domain = value.rpartition("@")
    if not (local and at and domain) or not value.isascii() or any(c.isspace() or c in ",;<>\"'" for c in value):
        raise ValueError("must be one mail address such as hpc-ops@example.org")
    return value


MailAddress = Annotated[str, AfterValidator(_is_an_address)]

_OF = {
    ChannelKind.SLACK: {"channel", "url", "buttons"},
    ChannelKind.PAGERDUTY: {"url"},
    ChannelKind.EMAIL: {"to", "sender", "host", "port", "user", "tls"},
    ChannelKind.WEBHOOK: {"url"},
}
_OWN = frozenset().union(*_OF.values())
ROOTS = {ChannelKind.SLACK: "https://slack.com/api", ChannelKind.PAGERDUTY: "https://events.pagerduty.com"}


class ChannelSettings(BaseModel):
    """One channel. Its secret stands in a file or in a variable, never here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ChannelKind
    about: tuple[Audience, ...] = Field(default=(Audience.OPERATORS, Audience.APPROVERS), min_length=1)
    """Whose notices it carries."""
    least: Severity | None = None
    """What is less severe is left out; empty: warning for a pager, else info."""
    per_minute: int = Field(default=10, ge=1, le=100)
    """Messages to one recipient; what is more becomes a digest."""
    timeout: Duration = Field(default=timedelta(seconds=10), ge=timedelta(seconds=1), le=timedelta(seconds=60))
    secret_file: str = ""
    """Slack: the incoming webhook's address, or a bot's token; PagerDuty: the integration's key; mail: the password of
    `user`; webhook: the key that signs."""
    secret_env: Variable = ""
    """The variable that holds it instead."""
    url: HttpRoot = ""
    """Webhook: where it is sent. Slack, PagerDuty: the root of their API, where it is not the usual one."""
    insecure: bool = False
    """True: without encryption to another machine, on a network of yours."""
    ca: str = ""
    """PEM file of certificates to trust instead of the system's."""
    channel: str = Field(default="", max_length=80)
    """Slack, with a bot's token: the channel's id or name. Empty: the secret is an incoming webhook's address."""
    buttons: bool = False
    """Slack: plans that wait can be decided on there, by those whom `notify.slack` lists."""
    to: tuple[MailAddress, ...] = Field(default=(), max_length=50)
    """Mail: who gets it; `{user}@example.org` for each job's own user."""
    sender: str = ""
    host: str = ""
    port: int = Field(default=0, ge=0, le=65535)
    """0: 587 for starttls, 465 for tls, 25 for none."""
    user: str = ""
    tls: Tls = Tls.STARTTLS

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        set_ = {name for name in self.model_fields_set & _OWN if getattr(self, name)}
        if strange := sorted(set_ - _OF[self.kind]):
            raise ValueError(f"{strange[0]} is not for kind {self.kind}; it takes {', '.join(sorted(_OF[self.kind]))}")
        if self.secret_file and self.secret_env:
            raise ValueError("secret_file and secret_env: give one of them")
        if self.kind is ChannelKind.EMAIL:
            self._check_mail()
            return self
        if not (self.secret_file or self.secret_env):
            raise ValueError(f"kind {self.kind} needs secret_file or secret_env")
        if self.kind is ChannelKind.WEBHOOK and not self.url:
            raise ValueError("kind webhook needs url")
        host = self.url.partition("://")[2].partition("/")[0]
        if self.url.startswith("http://") and not (self.insecure or is_here(host)):
            raise ValueError("url must be https, or insecure: true on a network of yours")
        return self

    def _check_mail(self) -> None:
        if not (self.host and self.sender and self.to):
            missing = next(name for name in ("host", "sender", "to") if not getattr(self, name))
            raise ValueError(f"kind email needs {missing}")
        _is_an_address(self.sender)
        if bool(self.user) != bool(self.secret_file or self.secret_env):
            raise ValueError("user and its password (secret_file or secret_env) belong together")
        if self.tls is Tls.NONE and not (self.insecure or is_here(self.host)):
            raise ValueError("tls: none only to this machine, or with insecure: true on a network of yours")
        if self.each_user and (len(self.to) > 1 or self.about != (Audience.USERS,)):
            raise ValueError(f"to with {USER} is for about: [users] alone: each gets the notices of the own jobs")

    @property
    def each_user(self) -> bool:
        """True where each job's user gets the own notices."""
        return any(USER in address for address in self.to)

    @property
    def wishes(self) -> Wishes:
        """What the channel is for."""
        pager = self.kind is ChannelKind.PAGERDUTY
        least = self.least or (Severity.WARNING if pager else Severity.INFO)
        return Wishes(about=self.about, least=least, most=self.per_minute, each_user=self.each_user, alerts=pager)

    @property
    def root(self) -> str:
        """Where the service is, without a slash at the end."""
        return (self.url or ROOTS.get(self.kind, "")).rstrip("/")

    def secret(self, environment: Mapping[str, str] | None = None) -> str:
        """The secret; empty where none is needed. Blocks.

        Raises:
            ConfigError: it cannot be read, is empty, or is no single line of text.
        """
        return read_secret(self.secret_file, self.secret_env, environment)


class NotifySettings(BaseModel):
    """Who is told, where."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channels: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")], ChannelSettings] = Field(
        default={}, max_length=MOST_CHANNELS
    )
    slack: SlackAppSettings = SlackAppSettings()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        buttons = [name for name, channel in self.channels.items() if channel.buttons]
        if buttons and not self.slack.people:
            raise ValueError(f"channels.{buttons[0]}.buttons needs slack: signing_secret_file and people")
        return self
