"""Who may decide on plans by a click in Slack: the app that proves the click, and which account is which person."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from relight.config.addresses import HttpRoot
from relight.config.approvals import PersonName
from relight.config.console import LOOPBACK, Role
from relight.config.secret import Variable, read_secret
from relight.domain.rights import Right

HOOKS = "https://hooks.slack.com"
"""Where Slack takes the answer to a click."""


class SlackPerson(BaseModel):
    """Who a Slack account is here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PersonName
    """The user name on the cluster."""
    role: Role = Role.APPROVER
    """As of who signs in to the console."""


def _in_short(value: Any) -> Any:
    """`ada` for `{name: ada}`."""
    return {"name": value} if isinstance(value, str) else value


def is_here(host: str) -> bool:
    """True for this machine, with or without a port."""
    return host in LOOPBACK or host.rpartition(":")[0].strip("[]") in LOOPBACK


def _is_reached_safely(value: str) -> str:
    if value.startswith("http://") and not is_here(value.partition("://")[2].partition("/")[0]):
        raise ValueError("must be https")
    return value.rstrip("/")


Person = Annotated[SlackPerson, BeforeValidator(_in_short)]
Account = Annotated[str, Field(pattern=r"^[UW][A-Z0-9]{2,30}$")]
"""A Slack user's id: in Slack, a person's profile, "Copy member ID"."""


class SlackAppSettings(BaseModel):
    """The Slack app whose buttons decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    signing_secret_file: str = ""
    """Holds the app's signing secret; read by the console alone."""
    signing_secret_env: Variable = ""
    people: dict[Account, Person] = Field(default={}, max_length=1000)
    """Whose clicks count, and for whom. Empty: nobody's."""
    may: tuple[Right, ...] = (Right.RESTART,)
    """What can be approved by a click, at most."""
    hooks: Annotated[HttpRoot, AfterValidator(_is_reached_safely)] = HOOKS
    """The only place that answers are sent to, whatever a request says."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.signing_secret_file and self.signing_secret_env:
            raise ValueError("signing_secret_file and signing_secret_env: give one of them")
        if bool(self.people) != bool(self.signing_secret_file or self.signing_secret_env):
            raise ValueError("people and signing_secret_file (or signing_secret_env) belong together")
        return self

    def signing_secret(self) -> str:
        """The app's signing secret. Blocks; errors are those of `read_secret`."""
        return read_secret(self.signing_secret_file, self.signing_secret_env, key="signing_secret_file")
