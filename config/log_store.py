"""Where jobs' outputs are read: in files, or in a log store to which the site ships them."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from relight.config.addresses import HttpRoot
from relight.domain.human import Duration
from relight.domain.log_labels import check_templates

_LOKI_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOKI_TENANT = re.compile(r"[A-Za-z0-9!_.*'()|-]{1,150}")
_VICTORIA_TENANT = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")


class StoreKind(StrEnum):
    """What holds jobs' outputs."""

    FILES = "files"
    VICTORIALOGS = "victorialogs"
    LOKI = "loki"


class LogStoreSettings(BaseModel):
    """A log store, as whom it is asked, and how jobs' outputs are named there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: StoreKind = StoreKind.FILES
    url: HttpRoot = ""
    token_file: str = ""
    """Holds a bearer token, or the password of `user`."""
    user: str = ""
    ca: str = ""
    tenant: str = ""
    labels: dict[str, str] = {}
    """Labels (stream fields of VictoriaLogs) that select one job's output: templates, see `domain.log_labels`."""
    fields: dict[str, str] = {}
    """The same for fields of VictoriaLogs that are no stream fields."""
    late: Duration = Field(default=timedelta(seconds=5), ge=timedelta(0), le=timedelta(minutes=10))
    reach: Duration = Field(default=timedelta(days=7), ge=timedelta(hours=1), le=timedelta(days=365))
    page: int = Field(default=5000, ge=16, le=100_000)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind is StoreKind.FILES:
            for name in ("url", "token_file", "user", "ca", "tenant", "labels", "fields"):
                if getattr(self, name):
                    raise ValueError(f"{name} is set, but kind is files: kind must be victorialogs or loki")
            return self
        if not self.url:
            raise ValueError(f"kind {self.kind} needs url")
        if self.user and not self.token_file:
            raise ValueError("user needs token_file, which holds the password")
        if not (self.labels or self.fields):
            raise ValueError('labels must say which log is a job\'s, for example {filename: "{path}"}')
        check_templates({**self.labels, **self.fields})
        self._check_loki() if self.kind is StoreKind.LOKI else self._check_victorialogs()
        return self

    def _check_loki(self) -> None:
        if self.fields:
            raise ValueError("fields is for VictoriaLogs: Loki selects by labels alone")
        if wrong := [label for label in self.labels if not _LOKI_LABEL.fullmatch(label)]:
            raise ValueError(f"labels: {wrong[0]!r} cannot be Loki's: letters, digits and underscores")
        if self.tenant and not _LOKI_TENANT.fullmatch(self.tenant):
            raise ValueError(f"tenant {self.tenant!r} cannot be Loki's X-Scope-OrgID")

    def _check_victorialogs(self) -> None:
        if self.tenant and not _VICTORIA_TENANT.fullmatch(self.tenant):
            raise ValueError(f"tenant {self.tenant!r}: of VictoriaLogs it is AccountID:ProjectID, two numbers")
        if both := set(self.labels) & set(self.fields):
            raise ValueError(f"{min(both)} is in labels and in fields: it is one of both")
