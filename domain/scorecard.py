"""Whether a decision was right, told by what happened afterwards: by the job's next attempt, and by the node's fate.

Each decision is held against its aftermath, whether it was carried out or only observed. The rules lean to one side:
what does not show that a decision was right is *unknown*, and what a person did against it counts against it.

*Restart*: right where the next attempt, whoever started it, passed the failed step; wrong where it failed again of the
same cause without, where an attempt that was taken for hung went on by itself, or where a person said no.
*Stop* (an attempt that a retry would not help): right where it came no further, its owner cancelled it, or the next
attempt failed of the same cause; wrong where it went on past that point, or the next attempt passed it.
*Leave* (not restarted): right and wrong by the next attempt alone.
*Exclude* and *drain*, for each node: right where the node failed again (set aside by a person or by Slurm, a fault of
its agent, another incident on it, a failed check); wrong where it carried work for a day without any of that while
nothing had been done to it, where a person put it back, or, of an exclusion, where a later attempt ran on it and got
past the failed step.

A person's drain for maintenance says nothing about a node. A node that was drained, checked and returned is neither
right nor wrong by that: a fault that a reset cures was one, and a check that finds nothing may look in the wrong place.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.endings import End
from relight.domain.evidence import GOES_ON, Interruption
from relight.domain.incidents import Outcome

WAIT = timedelta(days=7)
"""How long the aftermath is looked at; what has told nothing by then is not judged."""
STORM = timedelta(minutes=10)
"""Faults that an agent tells of so soon after a decision are of what it was decided on."""
WELL = timedelta(hours=24)
"""A node that has carried so much work since is taken to be well."""
NO_CAUSE = frozenset({"", "UNKNOWN"})
MAINTENANCE = ("maint", "upgrade", "update", "kernel", "reboot", "patch", "firmware", "bios", "planned", "downtime")
"""Words of reasons for which healthy nodes are set aside."""


class Action(StrEnum):
    """What was decided."""

    RESTART = "restart"
    STOP = "stop"
    EXCLUDE = "exclude"
    DRAIN = "drain"
    LEAVE = "leave"
    """Not to restart it: no action, and so nothing that a site would have to allow."""


class Verdict(StrEnum):
    """What the aftermath says of a decision."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_YET = "not yet known"
    UNKNOWN = "cannot be judged"


class Try(NamedTuple):
    """An attempt of the same job after the decision."""

    attempt: AttemptKey
    started_at: datetime
    nodes: frozenset[str]
    moved: bool | None
    """Whether it passed the step at which the one before had failed; None: not known."""
    failed: bool
    """Whether it has ended badly."""
    cause: str = ""
    """The signature of its own incident."""


class Sign(StrEnum):
    """What a node's history can say after a decision."""

    SET_ASIDE = "set aside"
    FAULT = "fault"
    IMPLICATED = "implicated again"
    CHECK_FAILED = "check failed"
    REVERSED = "put back by a person"


class NodeSign(NamedTuple):
    """One thing in a node's history."""

    node: str
    at: datetime
    sign: Sign
    text: str
    incident: str = ""
    """By which it was implicated, or whose drain was undone."""


class Work(NamedTuple):
    """An attempt that ran on a node."""

    node: str
    attempt: AttemptKey
    begin: datetime
    end: datetime
    well: bool
    """Whether it did not end badly."""


class Decided(Value):
    """One incident's decision, with what its own attempt did afterwards."""

    incident: str
    kind: Interruption
    cause: str
    at: datetime
    attempt: AttemptKey
    outcome: Outcome
    acts: tuple[tuple[Action, tuple[str, ...]], ...]
    """Each with the nodes that it names."""
    acted: bool
    """Whether it was carried out."""
    failed_step: int | None = None
    stride: int = 1
    last_step: int | None = None
    """Of its own attempt, as far as known now."""
    running: bool = False
    end: End | None = None
    nodes: tuple[str, ...] = ()
    """Of its own attempt."""


class Judged(Value):
    """One decision, judged."""

    incident: str
    kind: Interruption
    action: Action
    node: str = ""
    at: datetime
    acted: bool
    outcome: Outcome
    cause: str
    verdict: Verdict
    why: str


def judge(
    case: Decided, tries: Sequence[Try], signs: Sequence[NodeSign], work: Sequence[Work], now: datetime
) -> tuple[Judged, ...]:
    """Each action of a decision, and each node of it for itself.

    Args:
        case: the decision.
        tries: the attempts of the same job after its own, oldest first.
        signs: what the histories of its nodes say, of any time.
        work: attempts on its nodes, of any time.
        now: by when.
    """
    until = case.at + WAIT
    tries = [each for each in tries if each.started_at <= until]
    found = []
    for action, nodes in case.acts:
        if action in {Action.EXCLUDE, Action.DRAIN}:
            for node in nodes:
                seen = _Seen(node, tuple(_later(case, node, signs, until)), work, min(now, until))
                found.append(_judged(case, action, node, _of_node(case, action, seen, tries), now))
        else:
            said = _of_restart(case, tries) if action is Action.RESTART else _of_no_restart(case, action, tries)
            found.append(_judged(case, action, "", said, now))
    return tuple(found)


class _Said(NamedTuple):
    verdict: Verdict | None
    """None: nothing tells."""
    why: str


def _judged(case: Decided, action: Action, node: str, said: _Said, now: datetime) -> Judged:
    verdict = said.verdict or (Verdict.NOT_YET if now < case.at + WAIT else Verdict.UNKNOWN)
    return Judged(
        incident=case.incident,
        kind=case.kind,
        action=action,
        node=node,
        at=case.at,
        acted=case.acted,
        outcome=case.outcome,
        cause=case.cause,
        verdict=verdict,
        why=said.why,
    )


def _went_on(case: Decided) -> str:
    """How the attempt that was to be ended went on by itself; empty: it did not, or it is not known."""
    if case.kind not in GOES_ON or case.acted:
        return ""
    if case.end is End.COMPLETED:
        return "the attempt went on by itself and completed"
    if case.last_step is None or case.failed_step is None:
        return ""
    beyond = case.last_step >= case.failed_step + 2 * case.stride
    return f"the attempt went on by itself to step {case.last_step}" if beyond else ""


def _same(case: Decided, one: Try) -> bool:
    return case.cause not in NO_CAUSE and one.cause == case.cause


def _of_restart(case: Decided, tries: Sequence[Try]) -> _Said:
    # Slow, or with numbers that are wrong, it goes on: that says nothing of whether a restart would have helped.
    went_on = _went_on(case) if case.kind in {Interruption.HANG, Interruption.GPU_FAULT} else ""
    if went_on:
        return _Said(Verdict.WRONG, went_on)
    return _of_next(case, tries[0]) if tries else _of_nobody(case)


def _of_next(case: Decided, one: Try) -> _Said:
    """What the next attempt tells of a restart."""
    past = f"step {case.failed_step}" if case.failed_step is not None else "its start"
    kept_out = {node for action, nodes in case.acts if action is Action.EXCLUDE for node in nodes}
    if one.moved:
        return _Said(Verdict.RIGHT, f"the next attempt passed {past}")
    if not one.failed:
        return _Said(None, "the next attempt tells nothing")
    if one.nodes & kept_out:
        return _Said(None, "the next attempt failed too, on a node that would have been kept out")
    if _same(case, one):
        return _Said(Verdict.WRONG, f"the next attempt failed again: {one.cause}")
    return _Said(None, "the next attempt failed of another cause")


def _of_nobody(case: Decided) -> _Said:
    if case.outcome is Outcome.REJECTED:
        return _Said(Verdict.WRONG, "a person said no, and nothing says otherwise")
    return _Said(None, "nobody has run it again")


_CANCELLED = frozenset({End.CANCELLED_BY_OWNER, End.CANCELLED_BY_OTHER, End.CANCELLED, End.CANCELLED_BY_ROOT})
_CAME_NO_FURTHER = frozenset({End.FAILED, End.OUT_OF_MEMORY, End.TIME_LIMIT, End.HUNG, End.NODE_FAIL, End.DEADLINE})


def _of_no_restart(case: Decided, action: Action, tries: Sequence[Try]) -> _Said:
    stop = action is Action.STOP
    if stop and (went_on := _went_on(case)):
        return _Said(Verdict.WRONG, went_on)
    if tries and tries[0].moved:
        return _Said(Verdict.WRONG, "the next attempt passed that point, though a person may have mended it first")
    if tries and tries[0].failed and _same(case, tries[0]):
        return _Said(Verdict.RIGHT, f"the next attempt failed again: {tries[0].cause}")
    if stop and not case.acted and case.end in _CANCELLED | _CAME_NO_FURTHER:
        return _Said(Verdict.RIGHT, f"it came no further: {case.end}")
    return _Said(None, "the next attempt tells nothing") if tries else _of_nobody(case)


_BAD = frozenset({Sign.SET_ASIDE, Sign.FAULT, Sign.IMPLICATED, Sign.CHECK_FAILED})


class _Seen(NamedTuple):
    """What was seen of one node."""

    node: str
    signs: tuple[NodeSign, ...]
    """After the decision."""
    work: Sequence[Work]
    until: datetime


def _later(case: Decided, node: str, signs: Iterable[NodeSign], until: datetime) -> Iterator[NodeSign]:
    """The signs that came after the decision, and are not of what it was decided on."""
    for sign in signs:
        after = case.at + (STORM if sign.sign is Sign.FAULT else timedelta(0))
        own = sign.sign is Sign.IMPLICATED and sign.incident == case.incident
        if sign.node == node and after < sign.at <= until and not own:
            yield sign


def _of_node(case: Decided, action: Action, seen: _Seen, tries: Sequence[Try]) -> _Said:
    node = seen.node
    bad = next((sign for sign in seen.signs if sign.sign in _BAD), None)
    if bad is not None:
        return _Said(Verdict.RIGHT, f"{bad.sign}: {bad.text}")
    put_back = next((sign for sign in seen.signs if sign.sign is Sign.REVERSED), None)
    if put_back is not None:
        return _Said(Verdict.WRONG, f"{put_back.sign}: {put_back.text}")
    if action is Action.EXCLUDE and any(node in one.nodes and one.moved for one in tries):
        return _Said(Verdict.WRONG, f"a later attempt ran on {node} and passed the failed step")
    if case.acted and action is Action.DRAIN:
        return _Said(None, "it was drained, and nothing further was seen of it")
    carried = carried_well(node, seen.work, case.at, seen.until, besides=case.attempt)
    worked = f"{carried.total_seconds() / 3600:.0f} h of work since"
    if carried >= WELL:
        return _Said(Verdict.WRONG, f"{node} carried {worked}, without a fault")
    return _Said(None, f"{node} has carried {worked}")


def carried_well(
    node: str, work: Iterable[Work], since: datetime, until: datetime, *, besides: AttemptKey
) -> timedelta:
    """For how long the node has carried other attempts that did not end badly, overlapping ones counted once."""
    spans = sorted(
        (max(each.begin, since), min(each.end, until))
        for each in work
        if each.node == node and each.well and each.attempt != besides and each.end > since and each.begin < until
    )
    carried, reached = timedelta(0), since
    for begin, end in spans:
        carried += max(end - max(begin, reached), timedelta(0))
        reached = max(reached, end)
    return carried


def for_maintenance(reason: str) -> bool:
    """Whether a node was set aside for what says nothing about it; so it is where nobody says why."""
    text = reason.lower()
    return not text.strip() or any(word in text for word in MAINTENANCE)
