"""The policy as written in the file: a key that does not exist is an error here, and so is a number beyond reason."""

from typing import Annotated

from pydantic import ConfigDict, Field

from relight.domain.breaker import BreakerPolicy
from relight.domain.permits import Wait
from relight.domain.policy_rules import SitePolicy
from relight.domain.progress import HangPolicy

_HANG = HangPolicy()
Times = Annotated[float, Field(ge=0.1, le=1000, allow_inf_nan=False)]


class HangSettings(HangPolicy):
    """The hang limits as written in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: Wait = _HANG.floor
    steps: Times = _HANG.steps
    gaps: Times = _HANG.gaps
    phase: Wait = _HANG.phase
    unlearned: Wait = _HANG.unlearned
    startup: Wait = _HANG.startup


class BreakerSettings(BreakerPolicy):
    """When the breaker opens, as written in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    within: Wait = BreakerPolicy().within


class PolicySettings(SitePolicy):
    """The policy as written in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hang: HangSettings = HangSettings()
    breaker: BreakerSettings = BreakerSettings()
