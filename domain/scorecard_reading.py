"""Decisions and their aftermath, made from incidents, attempts and rows of the ledger. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.attempts import AttemptKey, AttemptState, Progress
from relight.domain.base import clip
from relight.domain.care_history import GPU_KINDS
from relight.domain.endings import MEANING, End
from relight.domain.evidence import Interruption
from relight.domain.goodput_runs import ACTED, Seen
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import Row, RowKind
from relight.domain.permits import Act
from relight.domain.plan import Plan
from relight.domain.policy import actions
from relight.domain.progress import passed
from relight.domain.scorecard import Action, Decided, Judged, NodeSign, Sign, Try, Verdict, for_maintenance
from relight.domain.scorecard_card import Missed
from relight.domain.slurm import ENDED_BADLY, AccountingRow

MOOT = frozenset({Outcome.NOT_CONFIRMED, Outcome.SUPERSEDED, Outcome.SUCCEEDED_BY})
"""Incidents in which nothing was decided, or not about this."""
SOON = timedelta(minutes=5)
"""An interruption so young may not have its incident yet."""
NEAR = timedelta(hours=24)
"""A node that is set aside so soon after an incident on it was behind that incident."""


def decided(incident: Incident) -> Decided | None:
    """What was decided in an incident; None: nothing, or not yet."""
    plan, outcome = incident.plan, incident.outcome
    if plan is None or outcome is None or outcome in MOOT:
        return None
    at = next((step.at for step in incident.steps if step.name == "planned"), incident.opened_at)
    diagnosis = incident.diagnosis
    return Decided(
        incident=incident.id,
        kind=incident.kind,
        cause=diagnosis.verdict.signature if diagnosis else "",
        at=at,
        attempt=incident.attempt,
        outcome=outcome,
        acts=_acts(plan),
        acted=outcome in ACTED and plan.acts,
        failed_step=diagnosis.failed_step if diagnosis else None,
    )


def _acts(plan: Plan) -> tuple[tuple[Action, tuple[str, ...]], ...]:
    named = {Act.EXCLUDE: plan.exclude, Act.DRAIN: plan.drain}
    acts = tuple((Action(str(act)), named.get(act, ())) for act in actions(plan))
    return acts or ((Action.LEAVE, ()),)


def implicated(incident: Incident) -> Iterator[NodeSign]:
    """The nodes that an incident speaks against: by a platform witness, or because it names that one alone."""
    if incident.diagnosis is None or incident.outcome is Outcome.NOT_CONFIRMED:
        return
    verdict = incident.diagnosis.verdict
    alone = verdict.implicated.nodes if len(verdict.implicated.nodes) == 1 else ()
    for node in dict.fromkeys((*verdict.drain_nodes, *alone)):
        text = f"incident {incident.id}, {verdict.signature}"
        yield NodeSign(node, incident.detected_at, Sign.IMPLICATED, text, incident.id)


def signs_of(row: Row) -> Iterator[NodeSign]:
    """What a row of the ledger says of its node."""
    body = row.body
    if row.kind is RowKind.SET_ASIDE:
        reason = str(body.get("reason", ""))
        if body.get("state") != "back" and not body.get("ours") and not for_maintenance(reason):
            yield NodeSign(row.node, row.at, Sign.SET_ASIDE, clip(str(body.get("text", "")), 120))
    elif row.kind is RowKind.REVERSED:
        by = f" by {body['by']}" if body.get("by") else ""
        yield NodeSign(
            row.node, row.at, Sign.REVERSED, clip(f"{body.get('what', 'drain')} undone{by}", 120), row.incident
        )
    elif row.kind is RowKind.CARE and str(body.get("step", "")).startswith("judged"):
        if any(check.get("result") == "failed" for check in body.get("checks", ()) if isinstance(check, dict)):
            yield NodeSign(row.node, row.at, Sign.CHECK_FAILED, clip(str(body.get("text", "")), 120))
    elif row.kind is RowKind.FAULT:
        fault = body.get("fault", {})
        if fault.get("kind") in GPU_KINDS and not fault.get("cleared"):
            yield NodeSign(row.node, row.at, Sign.FAULT, clip(str(fault.get("text", "")), 120))


class Attempted(NamedTuple):
    """What is kept of an attempt."""

    attempt: AttemptKey
    lineage: str
    started_at: datetime
    ended_at: datetime
    running: bool
    badly: bool
    end: End | None
    nodes: tuple[str, ...]
    progress: Progress | None


def attempted(seen: Seen, now: datetime) -> Attempted:
    """An attempt, without its script."""
    state = seen.state
    record, ending = state.attempt.record, seen.ending
    started = record.start_time or state.attempt.seen_at
    ended = now if state.running else (ending and ending.at) or state.ended_at or started
    return Attempted(
        attempt=state.attempt.key,
        lineage=state.attempt.lineage,
        started_at=started,
        ended_at=ended,
        running=state.running,
        badly=bool(ending and ending.badly) and not state.running,
        end=ending.end if ending and not state.running else None,
        nodes=record.nodes,
        progress=seen.progress,
    )


def with_aftermath(case: Decided, own: Attempted | None) -> Decided:
    """The decision with what its own attempt did afterwards."""
    if own is None:
        return case
    progress = own.progress or Progress()
    later = {"last_step": progress.last_step, "stride": progress.stride, "nodes": own.nodes}
    if case.failed_step is None and not own.running:
        # The diagnosis found no step; the follower did, and the attempt came no further than that.
        later["failed_step"] = progress.last_step
    return case.model_copy(update={**later, "running": own.running, "end": own.end})


def tries_after(case: Decided, of_job: Iterable[Attempted], causes: dict[AttemptKey, str]) -> tuple[Try, ...]:
    """The attempts of the same job after the decision's own, oldest first."""
    later = [each for each in of_job if each.attempt.submit_time > case.attempt.submit_time]
    return tuple(
        Try(
            attempt=each.attempt,
            started_at=each.started_at,
            nodes=frozenset(each.nodes),
            moved=_moved(each, case.failed_step),
            failed=each.badly,
            cause=causes.get(each.attempt, ""),
        )
        for each in sorted(later, key=lambda each: each.attempt.submit_time)
    )


def _moved(one: Attempted, failed_step: int | None) -> bool | None:
    """Whether an attempt passed that step; None: its steps are not known, or it is on its way."""
    if one.end is End.COMPLETED:
        return True
    if one.progress is None or one.progress.last_step is None:
        return None
    if failed_step is None and one.badly:
        return False  # it shows steps, and so may the one before have done
    if passed(one.progress, failed_step):
        return True
    return None if one.running else False


def without_incident(
    each: Attempted, state: AttemptState, confirmed: frozenset[AttemptKey], now: datetime
) -> Missed | None:
    """The interruption that this attempt's end was and that has no incident; None: it was none, or has one.

    All components of a heterogeneous job end with their leader, whose incident is the whole job's.
    """
    kind = MEANING[each.end].interruption if each.end else None
    record = state.attempt.record
    led = bool(record.het_job_id) and record.het_job_id != record.job_id
    if kind is None or led or each.attempt in confirmed or now - each.ended_at < SOON:
        return None
    return _unseen(kind, each.attempt, each.ended_at, f"it ended as {each.end}, and there is no incident")


def never_seen(
    rows: Iterable[AccountingRow], cluster: str, known: frozenset[AttemptKey], since: datetime
) -> list[Missed]:
    """Executions that accounting shows to have ended badly and that Relight never saw."""
    found = []
    for row in rows:
        if row.state not in ENDED_BADLY or row.submit_time is None or row.end_time is None or row.end_time < since:
            continue
        key = AttemptKey(cluster=cluster, job_id=row.job_id, submit_time=row.submit_time)
        if key not in known:
            kind = Interruption.NODE_LOST if row.state.value in {"NODE_FAIL", "BOOT_FAIL"} else Interruption.CRASH
            found.append(
                _unseen(kind, key, row.end_time, f"Slurm's accounting shows {row.state}; Relight never saw it")
            )
    return found


def _unseen(kind: Interruption, attempt: AttemptKey, at: datetime, why: str) -> Missed:
    return Missed(kind=kind, action=Action.RESTART, at=at, attempt=attempt, why=why)


def left_wrongly(judged: Iterable[Judged], attempts: dict[str, AttemptKey]) -> list[Missed]:
    """Restarts that were missed because a job was left that would have gone on; `attempts` by incident."""
    return [
        Missed(kind=each.kind, action=Action.RESTART, at=each.at, attempt=attempts[each.incident], why=each.why)
        for each in judged
        if each.action is Action.LEAVE and each.verdict is Verdict.WRONG
    ]


def not_taken_out(cases: Sequence[Decided], signs: Iterable[NodeSign]) -> list[Missed]:
    """Drains and exclusions that were missed: a node set aside within a day of an incident on it that did not name it.

    A person may have known more than the evidence told; the node was bad all the same.
    """
    found = []
    for sign in signs:
        if sign.sign is not Sign.SET_ASIDE:
            continue
        behind = [case for case in cases if sign.node in case.nodes and case.at < sign.at <= case.at + NEAR]
        newest = max(behind, key=lambda case: case.at, default=None)
        if newest is None:
            continue
        named = {action for action, nodes in newest.acts if sign.node in nodes}
        why = f"{sign.text}, within a day of incident {newest.incident}"
        common = {"kind": newest.kind, "at": sign.at, "attempt": newest.attempt, "node": sign.node, "why": why}
        missed = (action for action in (Action.EXCLUDE, Action.DRAIN) if action not in named)
        found += [Missed(action=action, **common) for action in missed]
    return found
