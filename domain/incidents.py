"""Incidents: their phases, their outcomes, and the one table of what may follow what."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value, clip, short_hash
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import GOES_ON, Detection, Interruption
from relight.domain.plan import Mode, Plan


class Outcome(StrEnum):
    """How an incident ended."""

    RECOVERED = "recovered"
    """Training passed the point where it failed, after our restart."""
    RESTARTED_NO_PROGRESS = "restarted_no_progress"
    RESTARTED_UNVERIFIED = "restarted_unverified"
    """Restarted and running, but its output shows no steps or cannot be read: whether training moves is unknown."""
    STOPPED = "stopped"
    """A retry is useless: left ended, or cancelled."""
    ADOPTED = "adopted"
    """Another's restart (Slurm's own) was taken over, and training passed the point where it failed."""
    SUCCEEDED_BY = "succeeded_by"
    """Another job goes on with the work."""
    SUPERSEDED = "superseded"
    """A newer incident of the same job, or a newer finding about the attempt, took over before anything was done."""
    OVERRIDDEN = "overridden"
    """A person or another tool acted first; theirs wins."""
    EXPIRED = "expired"
    """Nobody decided in time."""
    REJECTED = "rejected"
    """A person said no."""
    NOT_CONFIRMED = "not_confirmed"
    OBSERVED = "observed"
    """Monitor mode: decided and recorded, nothing touched."""
    FAILED = "failed"
    """Relight could not carry out its plan."""


class Phase(StrEnum):
    """Where an incident stands."""

    CONFIRMING = "confirming"
    DIAGNOSING = "diagnosing"
    PLANNING = "planning"
    WAITING = "waiting for approval"
    ACTING = "acting"
    VERIFYING = "verifying"
    CLOSED = "closed"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.CONFIRMING: frozenset({Phase.DIAGNOSING, Phase.CLOSED}),
    Phase.DIAGNOSING: frozenset({Phase.PLANNING, Phase.CLOSED}),
    Phase.PLANNING: frozenset({Phase.WAITING, Phase.ACTING, Phase.CLOSED}),
    Phase.WAITING: frozenset({Phase.ACTING, Phase.CLOSED}),
    Phase.ACTING: frozenset({Phase.VERIFYING, Phase.CLOSED}),
    Phase.VERIFYING: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}

OUTCOMES_FROM: dict[Phase, frozenset[Outcome]] = {
    Phase.CONFIRMING: frozenset(
        {Outcome.NOT_CONFIRMED, Outcome.OVERRIDDEN, Outcome.SUPERSEDED, Outcome.SUCCEEDED_BY, Outcome.FAILED},
    ),
    Phase.DIAGNOSING: frozenset({Outcome.OVERRIDDEN, Outcome.SUPERSEDED, Outcome.FAILED}),
    Phase.PLANNING: frozenset(
        {
            Outcome.OBSERVED,
            Outcome.STOPPED,
            Outcome.SUCCEEDED_BY,
            Outcome.OVERRIDDEN,
            Outcome.SUPERSEDED,
            Outcome.EXPIRED,
            Outcome.NOT_CONFIRMED,
            Outcome.FAILED,
        },
    ),
    Phase.WAITING: frozenset(
        {Outcome.EXPIRED, Outcome.REJECTED, Outcome.OVERRIDDEN, Outcome.SUPERSEDED, Outcome.FAILED},
    ),
    Phase.ACTING: frozenset(
        {
            Outcome.STOPPED,
            Outcome.OVERRIDDEN,
            Outcome.SUPERSEDED,
            Outcome.SUCCEEDED_BY,
            Outcome.NOT_CONFIRMED,
            Outcome.EXPIRED,
            Outcome.FAILED,
        },
    ),
    Phase.VERIFYING: frozenset(
        {
            Outcome.RECOVERED,
            Outcome.ADOPTED,
            Outcome.RESTARTED_NO_PROGRESS,
            Outcome.RESTARTED_UNVERIFIED,
            Outcome.OVERRIDDEN,
            Outcome.FAILED,
        },
    ),
    Phase.CLOSED: frozenset(),
}
"""Which outcomes may close an incident from which phase."""

USED_AN_ATTEMPT = frozenset({Outcome.RESTARTED_NO_PROGRESS})
MOVED = frozenset({Outcome.RECOVERED, Outcome.ADOPTED})


class TransitionError(Exception):
    """An incident was asked to do what its phase does not allow; trying again does not help."""


def advance(current: Phase, to: Phase) -> Phase:
    """The next phase, checked against the table.

    Raises:
        TransitionError: when the table does not allow it.
    """
    if to not in TRANSITIONS[current]:
        raise TransitionError(f"an incident cannot go from {current} to {to}")
    return to


def may_close(phase: Phase, outcome: Outcome) -> bool:
    """True when an incident in this phase may end so."""
    return outcome in OUTCOMES_FROM[phase]


_PLANNED_FOR = frozenset({Phase.DIAGNOSING, Phase.PLANNING, Phase.WAITING})
"""Phases in which a plan is in the making or waits, and nothing has been done yet."""


def overtaken_by(detections: Sequence[Detection], phase: Phase) -> Detection | None:
    """The finding by which the first one's plan is moot, or None.

    A plan for an attempt that still runs is, once that attempt has ended; and one that waits for a person is, once a
    GPU fault shows what may be behind it. Where the attempt had ended before, or something is being done already, a
    further finding is evidence beside it.
    """
    if phase not in _PLANNED_FOR or not detections or detections[0].kind not in GOES_ON:
        return None
    ended = [d for d in detections[1:] if d.kind not in GOES_ON]
    fault = Interruption.GPU_FAULT
    waits = phase is Phase.WAITING and detections[0].kind is not fault
    faults = [d for d in detections[1:] if d.kind is fault] if waits else []
    return next(iter(ended + faults), None)


_MEANWHILE = {
    Interruption.CRASH: "the attempt has crashed meanwhile",
    Interruption.NODE_LOST: "the attempt has lost a node meanwhile",
    Interruption.GPU_FAULT: "a GPU fault has shown meanwhile",
}


def overtaken(by: Detection) -> str:
    """The reason of an incident whose plan is moot by that finding."""
    return f"{_MEANWHILE[by.kind]}; see the attempt's next incident"


class StepTime(Value):
    """One thing done in an incident, and when."""

    name: str
    at: datetime
    text: str = ""


class Incident(Value):
    """An incident as the ledger's read model keeps it and as people see it."""

    id: str
    workflow_id: str
    run_id: str
    attempt: AttemptKey
    lineage: str
    kind: Interruption
    phase: Phase
    mode: Mode
    opened_at: datetime
    detected_at: datetime
    occurred_at: datetime | None = None
    closed_at: datetime | None = None
    outcome: Outcome | None = None
    outcome_reason: str = ""
    job_name: str = ""
    user: str = ""
    diagnosis: Diagnosis | None = None
    plan: Plan | None = None
    steps: tuple[StepTime, ...] = ()

    @property
    def open(self) -> bool:
        """True until the incident has an outcome."""
        return self.outcome is None


def incident_id(attempt: AttemptKey, run_id: str) -> str:
    """A short id for people, the same each time it is made: `i` and ten hexadecimal digits."""
    return "i" + short_hash(f"{attempt}/{run_id}", 10)


def headline(detection: Detection) -> str:
    """The detection in one line of at most 200 characters."""
    first = detection.evidence[0].text if detection.evidence else ""
    return clip(f"{detection.kind} of job {detection.attempt.job_id}: {first}".rstrip(": "), 200)


NODE_REASON_PREFIX = "relight:"
_REASON_LIMIT = 200  # exporters use the reason as a label; keep it short


def node_mark(incident: str) -> str:
    """How the reason of a node drained for this incident begins."""
    return f"{NODE_REASON_PREFIX}{incident}:"


def node_reason(incident: str, cls: str, text: str) -> str:
    """The mark of a drain of ours: `relight:<incident>:<class>: text`."""
    plain = " ".join(text.replace('"', "'").split())
    return clip(f"{node_mark(incident)}{cls}: {plain}", _REASON_LIMIT)
