"""What the operator allows: numbers, and for each detector and action how far Relight may go."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from itertools import product
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from relight.domain.allowances import DEFAULT_BACKOFF, DEFAULT_RETRIES, Backoff, FullRetries
from relight.domain.base import Value
from relight.domain.breaker import BreakerPolicy
from relight.domain.evidence import Interruption
from relight.domain.human import Duration, Percentage, Share, between
from relight.domain.plan import Mode
from relight.domain.progress import HangPolicy
from relight.domain.reports import CheckName
from relight.domain.rights import APPROVERS, Count, Right

LONGEST = timedelta(days=30)


class Act(StrEnum):
    """What a plan can hold."""

    RESTART = "restart"
    """Requeue the job, or take over Slurm's own requeue of it and release what Slurm holds."""
    EXCLUDE = "exclude"
    """Keep the job's retry off nodes."""
    STOP = "stop"
    """Cancel an attempt that still runs and that a retry would not help."""
    DRAIN = "drain"
    """Take a node out of service for everybody."""


class Permit(StrEnum):
    """How far Relight may go with one action: a mode, or not even to propose it."""

    OFF = "off"
    MONITOR = "monitor"
    APPROVE = "approve"
    AUTO = "auto"


_POWER = tuple(Permit)


def least(*permits: Permit) -> Permit:
    """The permit that allows the least."""
    return min(permits, key=_POWER.index)


def most(*permits: Permit) -> Permit:
    """The permit that allows the most."""
    return max(permits, key=_POWER.index)


NODE_RIGHTS: Mapping[Right, Permit] = {
    Right.RETURN: Permit.MONITOR,
    Right.DOWN: Permit.APPROVE,
    Right.REBOOT: Permit.MONITOR,
    Right.REPLACE: Permit.MONITOR,
}
"""What is done to a node in quarantine, whatever was detected, and how far that goes where nobody says so.

`mode` only lowers it: a site that lets jobs be restarted unasked has not said so of its nodes.
"""
WHAT: tuple[str, ...] = (
    *Interruption,
    *Act,
    *(f"{kind}.{act}" for kind, act in product(Interruption, Act)),
    *NODE_RIGHTS,
)
"""All that `modes` can name: a detector, an action, one action after one detector, such as `hang.restart`, or what is
done to a node in quarantine."""


def _off(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _named(value: str) -> str:
    if value not in WHAT:
        detectors, acts, nodes = ", ".join(Interruption), ", ".join(Act), ", ".join(NODE_RIGHTS)
        raise ValueError(
            f"no such detector or action; accepted: {detectors}; {acts}; or both joined by a dot, as in hang.restart; "
            f"of nodes in quarantine: {nodes}"
        )
    return value


Permitted = Annotated[
    Permit,
    BeforeValidator(_off),
    WithJsonSchema({"enum": [*(str(permit) for permit in Permit), False], "description": "off is read as false"}),
]
"""A permit as it stands in YAML."""
Modes = dict[
    Annotated[str, AfterValidator(_named), WithJsonSchema({"type": "string", "enum": list(WHAT)})],
    Permitted,
]
"""By detector, action, or detector.action."""
Wait = Annotated[Duration, AfterValidator(between(timedelta(seconds=1), LONGEST))]
"""How long something may take."""
Attempts = Annotated[int, Field(ge=1, le=100)]


def said(mode: Permit | None, modes: Mapping[str, Permit], kind: Interruption, act: Act) -> Permit | None:
    """What one layer of policy says of an action after such an interruption; None: nothing.

    The most exact entry counts: `hang.restart` before `hang` and `restart`, of which the lower counts where both are
    there, before the mode.
    """
    exact = modes.get(f"{kind}.{act}")
    if exact is not None:
        return exact
    broad = [modes[name] for name in (str(kind), str(act)) if name in modes]
    return least(*broad) if broad else mode


class Policy(Value):
    """What the operator allows on this cluster, or, once its rules are applied, for one job."""

    mode: Mode = Mode.MONITOR
    """For all that `modes` does not name."""
    modes: Modes = {}
    trust_temporal_ui: bool = False
    """Whether a bare `approve` signal, whose sender proves no identity, may approve a restart."""
    approval_expires: Wait = timedelta(minutes=30)
    """A plan nobody decided on by then is dropped, and the incident ends as `expired`."""
    execution_expires: Wait = timedelta(minutes=10)
    """What was approved and has not begun by so long after it is not done any more."""
    approvers: dict[Right, Count] = dict(APPROVERS)
    """How many different people must approve, by action; the most demanding one of a plan counts."""
    attempts_without_progress: Attempts = 3
    """After so many restarts of a job that did not get past the failure, it is left stopped, whatever the causes."""
    retries: FullRetries = DEFAULT_RETRIES
    """Restarts for each cause without a new durable checkpoint (`domain.budget`)."""
    backoff: Backoff = DEFAULT_BACKOFF
    """How long a restart waits after none, one, two ... that brought no progress; the last repeats."""
    resubmit: Permitted = Permit.APPROVE
    """How far Relight may go with a fresh job where Slurm cannot queue the old one again; `modes` may lower it."""
    exclusions_expire: Wait = timedelta(hours=24)
    """How long a node is kept out of a job's retries; then it is allowed again, at the job's next restart."""
    drains_per_hour: int = Field(default=1, ge=0, le=100)
    """Nodes that may be drained in any hour on the whole cluster."""
    drain_share: Percentage = Share(0.05)
    """The part of each of the node's partitions that may be drained in any hour; one node always may."""
    most_unavailable: Percentage = Share(0.15)
    """No node is drained while so much of one of its partitions is out of service, whatever the causes."""
    drains_per_domain: int = Field(default=1, ge=1, le=100)
    """Nodes that may be drained in any hour below one leaf switch or in one block of Slurm's topology."""
    downs_per_hour: int = Field(default=1, ge=0, le=100)
    """Nodes that hang in COMPLETING and may be declared down in any hour on the whole cluster."""
    cool_down: Wait = timedelta(hours=6)
    """How long a node is not drained again after a person has put it back into service."""
    breaker: BreakerPolicy = BreakerPolicy()
    drain_takes: Wait = timedelta(days=1)
    """A node whose jobs have not ended so long after its drain is told to people; it is waited for all the same."""
    return_requires: tuple[CheckName, ...] = ()
    """Checks that must have passed before a node is returned, also where the node says that they are not possible."""
    partitions: tuple[str, ...] = ()
    """Only jobs of these partitions are looked after; empty: of all."""
    progress_within: Wait = timedelta(minutes=30)
    """How long a restarted attempt may take to get past the failed step; longer where its own start-up takes longer."""
    fall_back: Permitted = Permit.APPROVE
    """How far Relight may go with letting the next attempt go on from an older checkpoint than the newest."""
    hang: HangPolicy = HangPolicy()

    def permit(self, kind: Interruption, act: Act) -> Permit:
        """How far Relight may go with this action after such an interruption."""
        mode = Permit(self.mode)
        return said(mode, self.modes, kind, act) or mode

    def node_permit(self, right: Right) -> Permit:
        """How far Relight may go with this action on a node in quarantine; `NODE_RIGHTS` has them."""
        named = self.modes.get(str(right))
        return named if named is not None else least(NODE_RIGHTS[right], Permit(self.mode))

    def approvers_needed(self, rights: Iterable[Right]) -> int:
        """How many different people must approve a plan with these actions."""
        return max((self.approvers.get(right, APPROVERS[right]) for right in rights), default=1)

    @property
    def ceiling(self) -> Mode:
        """The most that is ever done by this policy."""
        return mode_of(most(Permit(self.mode), *self.modes.values()))


def mode_of(permit: Permit) -> Mode:
    """The mode in which nothing more than this is done."""
    return Mode.MONITOR if permit is Permit.OFF else Mode(permit)
