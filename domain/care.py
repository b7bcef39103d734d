"""What becomes of a node in quarantine: returned, kept, or handed over to a person. Pure.

The rules, each with who learnt it the hard way (shared peers' reports):

- *Drained is not the drain flag*: the flag, and no job, no step, nothing completing.
- Unknown is neither pass nor fail: a check that could not be made never returns a node.
- A reboot is no repair: a fault for which the driver's maker asks for a reset, a reboot or a new part goes to a person,
  however well NVML reads afterwards; once a person says that it is repaired, the checks are made again, and only they
  return the node.
- Only our own mark is undone, and a person's hand wins.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from relight.domain.base import Value, clip, short_hash
from relight.domain.evidence import Answer
from relight.domain.incidents import node_mark
from relight.domain.lemons import LEMON, REPLACE
from relight.domain.permits import Permit, least
from relight.domain.reports import CheckName, NodeCheck, Result
from relight.domain.slurm import ENDED, JobFlag, JobRecord, JobState, NodeFlag, NodeRecord, NodeState, gpus_in

CHECKS_LAST = timedelta(minutes=30)
"""What was checked longer ago does not return a node: it is checked again."""
FIRST_LOOK_AGAIN = timedelta(minutes=15)
LAST_LOOK_AGAIN = timedelta(hours=6)
"""A check that could not be made is tried again, less and less often: an agent comes back with its node."""


class CarePhase(StrEnum):
    """Where a quarantine stands."""

    COMPLETING = "completing"
    """It hangs while Slurm ends a job on it; `down` is proposed."""
    DRAINING = "draining"
    """It has the drain flag, and work goes on."""
    CHECKING = "checking"
    WAITING = "waiting"
    """A person is asked to approve."""
    KEPT = "kept"
    """It stays out until a person says otherwise, or until a check that could not be made can be."""
    RETURNING = "returning"
    CLOSED = "closed"


class CareOutcome(StrEnum):
    """How a quarantine ends."""

    RETURNED = "returned"
    """Checked, and back in service."""
    OVERRIDDEN = "overridden"
    """A person has taken it into their own hands: undrained, drained anew, or ended the care."""
    HANDED_OVER = "handed_over"
    """Given to the platform's own repair (`care.reasons: hyperpod`)."""
    CLEARED = "cleared"
    """It came through its completing by itself: nothing had been done to it."""
    GONE = "gone"
    """Slurm no longer knows the node."""
    FAILED = "failed"
    """The care itself could not go on; the node stays as it is."""


class Hold(StrEnum):
    """In whose hands a node is."""

    OURS = "ours"
    FREED = "freed"
    """Neither drained nor down: a person, or we ourselves, returned it."""
    TAKEN = "taken"
    """Drained or down, with another's reason."""


class Remedy(StrEnum):
    """What is asked for beyond checks, the mildest first."""

    NONE = ""
    RESET = "reset"
    """Of the GPU. Done by a person, or by a reboot."""
    REBOOT = "reboot"
    REPLACE = "replace"
    """The maker's support: a part, or the whole node."""


_FORCE = tuple(Remedy)


def strongest(remedies: Collection[Remedy]) -> Remedy:
    """The one that asks for most."""
    return max(remedies, key=_FORCE.index, default=Remedy.NONE)


class Repair(Value):
    """A fault of the node for which more is asked than that it reads well now."""

    remedy: Remedy
    text: str
    """Which fault, as it was told, and who asks."""
    at: datetime
    gpu: str = ""


class WordKind(StrEnum):
    """What a person can say about a node in quarantine."""

    RELEASE = "release"
    """It is repaired: check it again."""
    KEEP = "keep"
    """Leave it out, whatever the checks say."""


class Word(Value):
    """A person's word, with who and why."""

    kind: WordKind
    by: str = ""
    reason: str = ""
    at: datetime
    verified: bool = False


class Drained(NamedTuple):
    """Whether a node is really drained, and what is still on it."""

    answer: Answer
    text: str


def hold(node: NodeRecord, mark: str) -> Hold:
    """In whose hands the node is; `mark` is how our reason begins."""
    out = node.draining or node.state is NodeState.DOWN
    if out and node.reason.startswith(mark):
        return Hold.OURS
    return Hold.TAKEN if out and node.reason else Hold.FREED


def is_empty(node: NodeRecord) -> bool:
    """True where the node's own record shows nothing on it; its jobs have to be looked at all the same."""
    return node.state in {NodeState.IDLE, NodeState.DOWN} and NodeFlag.COMPLETING not in node.flags


_GONE = ENDED | {JobState.PENDING}
_SOMETHING_LEFT = frozenset({JobFlag.COMPLETING, JobFlag.CONFIGURING, JobFlag.STAGE_OUT, JobFlag.STOPPED})


def jobs_on(node: str, jobs: Sequence[JobRecord]) -> tuple[JobRecord, ...]:
    """The jobs that hold the node, or of which something is still left on it: suspended and completing ones too.

    A state that is not known counts: nothing says that the job is gone.
    """
    return tuple(j for j in jobs if node in j.nodes and (j.state not in _GONE or j.flags & _SOMETHING_LEFT))


def really_drained(node: NodeRecord, jobs: Sequence[JobRecord]) -> Drained:
    """The flag, and no job, no step, nothing completing. A step is part of a job that runs or completes.

    Args:
        node: fresh.
        jobs: all that slurmctld holds.
    """
    if not node.draining and node.state is not NodeState.DOWN:
        return Drained(Answer.NO, "it is not drained")
    left = [job.display_id for job in jobs_on(node.name, jobs)]
    if left:
        return Drained(Answer.NO, f"job {', '.join(left[:4])} is still on it")
    if not is_empty(node):
        return Drained(Answer.NO, f"Slurm shows it {node.state}{_flags(node)}")
    return Drained(Answer.YES, "drained: no job, no step, nothing completing")


def _flags(node: NodeRecord) -> str:
    return "".join(f"+{flag}" for flag in sorted(node.flags))


# --- the decision -----------------------------------------------------------------------------------------------------


class Next(StrEnum):
    """What becomes of the node now."""

    RETURN = "return"
    KEEP = "keep"
    """Looked at again later, or when a person says so."""
    HAND_OVER = "hand over"
    """A person has to do something."""
    END = "end"
    """It is in other hands."""


class CareSituation(Value):
    """All that the decision depends on."""

    mark: str
    node: NodeRecord | None
    """None: it could not be read."""
    drained: Answer = Answer.UNKNOWN
    """Whether it is really drained."""
    still_on_it: str = ""
    agent: Answer = Answer.UNKNOWN
    """Whether the node's agent is heard: NO where it has been silent, UNKNOWN where it was never heard of here."""
    checks: tuple[NodeCheck, ...] = ()
    checked_at: datetime | None = None
    problem: str = ""
    """Why there are no checks."""
    faults: tuple[str, ...] = ()
    """What the node's agent or kernel has told to be wrong since the checks began."""
    repairs: tuple[Repair, ...] = ()
    """Faults that ask for more than checks."""
    released: Word | None = None
    """A person's word that it is repaired; it counts for what was wrong before it."""
    kept: Word | None = None
    """A person's word that it stays out."""
    score: float = 0.0
    """How much of a lemon it is (`domain.lemons`)."""
    score_why: tuple[str, ...] = ()
    requires: tuple[CheckName, ...] = ()
    """Checks that must have passed, also where the node says that they are not possible."""
    permit: Permit = Permit.MONITOR
    """How far Relight may go with a return of this node."""
    now: datetime


class CareVerdict(Value):
    """What becomes of the node, and why."""

    next: Next
    reason: str
    permit: Permit = Permit.OFF
    """Of a return: how far Relight may go."""
    remedy: Remedy = Remedy.NONE
    """What a person is asked for."""
    again: bool = False
    """Of a node that is kept: what was missing may be there later."""


ALWAYS = (CheckName.DISK, CheckName.NETWORK)
"""Every node has them: without either nothing is known of it."""


def decide_care(situation: CareSituation) -> CareVerdict:
    """Return, keep, or hand over. The first rule that fits decides."""
    return _not_ours(situation) or _by_hand(situation) or _by_checks(situation) or _returned(situation)


def _not_ours(situation: CareSituation) -> CareVerdict | None:
    node = situation.node
    if node is None:
        return _keep("the node's state could not be read", again=True)
    held = hold(node, situation.mark)
    if held is Hold.TAKEN:
        return CareVerdict(next=Next.END, reason=f"somebody else has set it aside: {node.reason}")
    if held is Hold.FREED:
        return CareVerdict(next=Next.END, reason="somebody else has returned it to service")
    if situation.drained is not Answer.YES:
        return _keep(f"not really drained: {situation.still_on_it or 'not known'}", again=True)
    return None


def _by_hand(situation: CareSituation) -> CareVerdict | None:
    kept, released = situation.kept, situation.released
    if kept and (released is None or released.at < kept.at):
        return _keep(f"{kept.by or 'a person'} keeps it out: {kept.reason or 'no reason given'}")
    return None


def _by_checks(situation: CareSituation) -> CareVerdict | None:
    """What the checks say against it; None where nothing does, and all was looked at."""
    failed = [check for check in situation.checks if check.result is Result.FAILED]
    open_ = open_repairs(situation)
    remedy = strongest([repair.remedy for repair in open_])
    if situation.score >= REPLACE:
        remedy = Remedy.REPLACE
    if failed or situation.faults:
        said = [f"{check.name} failed: {check.text}" for check in failed] + list(situation.faults)
        return _hand_over("; ".join(said[:3]), remedy)
    if open_:
        return _hand_over(f"{open_[0].text}; a reboot or a good reading is no repair", remedy)
    if situation.agent is not Answer.YES:
        silent = "its agent is silent" if situation.agent is Answer.NO else "no agent of it is heard here"
        return _hand_over(f"{silent}: nothing but Slurm's view is known", remedy, again=True)
    missing = unmade(situation)
    if missing:
        return _keep(f"not checked: {'; '.join(missing)}", again=True, remedy=remedy)
    if situation.checked_at is None or situation.now - situation.checked_at > CHECKS_LAST:
        return _keep("the checks are too old", again=True, remedy=remedy)
    return None


def open_repairs(situation: CareSituation) -> tuple[Repair, ...]:
    """The faults that no person has called repaired since."""
    since = situation.released.at if situation.released else None
    return tuple(repair for repair in situation.repairs if since is None or repair.at > since)


def unmade(situation: CareSituation) -> tuple[str, ...]:
    """Which checks are missing for a return, each with why."""
    by_name = {check.name: check for check in situation.checks}
    wanted = {*ALWAYS, *situation.requires}
    if situation.node is not None and gpus_of(situation.node):
        wanted.add(CheckName.NVML)
    found = []
    for name in CheckName:
        check = by_name.get(name)
        result = check.result if check else None
        if result is Result.UNKNOWN or (name in wanted and result is not Result.PASSED):
            why = (check.text or str(check.result)) if check else situation.problem or "no answer"
            found.append(f"{name}: {why}")
    return tuple(found)


def gpus_of(node: NodeRecord) -> int:
    """How many GPUs Slurm says the node has."""
    return gpus_in(node.gres)


def _returned(situation: CareSituation) -> CareVerdict:
    permit, reason = situation.permit, "all that can be checked is well"
    if situation.score >= LEMON and permit is Permit.AUTO:
        permit = least(permit, Permit.APPROVE)
        reason += f", but its history says lemon ({situation.score:.1f}): a person decides"
    skipped = [str(check.name) for check in situation.checks if check.result is Result.NOT_POSSIBLE]
    if skipped:
        reason += f" (not possible there: {', '.join(skipped)})"
    remedy = Remedy.REPLACE if situation.score >= REPLACE else Remedy.NONE
    return CareVerdict(next=Next.RETURN, reason=reason, permit=permit, remedy=remedy)


def _keep(reason: str, *, again: bool = False, remedy: Remedy = Remedy.NONE) -> CareVerdict:
    return CareVerdict(next=Next.KEEP, reason=clip(reason, 400), again=again, remedy=remedy)


def _hand_over(reason: str, remedy: Remedy, *, again: bool = False) -> CareVerdict:
    return CareVerdict(next=Next.HAND_OVER, reason=clip(reason, 400), remedy=remedy, again=again)


# --- names ------------------------------------------------------------------------------------------------------------


def care_workflow_id(cluster: str, node: str) -> str:
    """Workflow id of a node's quarantine."""
    return f"node/{cluster}/{node}"


def care_id(cluster: str, node: str, run_id: str) -> str:
    """A short id, the same each time it is made: `n` and ten hexadecimal digits."""
    return "n" + short_hash(f"{cluster}/{node}/{run_id}", 10)


def care_mark(incident: str) -> str:
    """How the reason of a node begins that was set aside for this incident."""
    return node_mark(incident)


def look_again_after(times: int) -> timedelta:
    """How long to wait before a check is tried again that could not be made so often."""
    return min(FIRST_LOOK_AGAIN * float(2 ** min(times, 10)), LAST_LOOK_AGAIN)
