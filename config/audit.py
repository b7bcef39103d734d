"""Where the ledger's head is kept besides the database, and how often."""

from datetime import timedelta
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from relight.domain.human import Duration

SYSLOG_PORT = 514
"""Where an address names none (RFC 5426, section 3.3)."""


class AnchorSettings(BaseModel):
    """One place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str = ""
    """A file that grows by a line each time."""
    syslog: str = ""
    """`/dev/log`, `udp://host:port` or `tcp://host:port`."""
    git: str = ""
    """The folder of a repository."""
    push: bool = False
    """Of a repository: push each commit."""

    @field_validator("syslog")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not value or value.startswith("/"):
            return value
        try:
            url = urlsplit(value)
            good = url.scheme in {"udp", "tcp"} and bool(url.hostname) and url.port != 0 and not url.path
        except ValueError:
            good = False
        if not good:
            raise ValueError("must be a socket's path, for example /dev/log, or udp://host:514 or tcp://host:601")
        return value

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        if sum(map(bool, (self.file, self.syslog, self.git))) != 1:
            raise ValueError("must name exactly one of file, syslog and git")
        if self.push and not self.git:
            raise ValueError("push belongs to git")
        return self


class AuditSettings(BaseModel):
    """How the ledger's head is anchored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    anchor: tuple[AnchorSettings, ...] = ()
    every: Annotated[Duration, Field(ge=timedelta(seconds=10), le=timedelta(days=1))] = timedelta(minutes=5)

    @field_validator("anchor")
    @classmethod
    def _are_different(cls, value: tuple[AnchorSettings, ...]) -> tuple[AnchorSettings, ...]:
        places = [each.file or each.syslog or each.git for each in value]
        if twice := [place for place in dict.fromkeys(places) if places.count(place) > 1]:
            raise ValueError(f"names {twice[0]} twice")
        return value
