"""One incident's page, put together from its rows. Pure."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from relight.console.standing import Standing, decisions, deeds, standing, timeline, verdict_of
from relight.console.web.read_incident_values import (
    ApprovalView,
    Cause,
    DeedLine,
    IncidentPage,
    LeaveLine,
    Mark,
    NearLine,
    PlanView,
    RankLine,
    SaidLine,
    Step,
)
from relight.console.web.read_lines import line
from relight.domain.attempts import AttemptState
from relight.domain.diagnosis import Diagnosis, Hypothesis
from relight.domain.evidence import GOES_ON, Evidence
from relight.domain.incidents import Incident, Phase, StepTime
from relight.domain.ledger import Row, RowKind
from relight.domain.policy import Verdict
from relight.domain.rights import able, rights_of

HAPPENED = "happened"


def page(
    incident: Incident,
    rows: Sequence[Row],
    attempt: AttemptState | None,
    *,
    beside: tuple[str, str],
    temporal_url: str,
    approval: ApprovalView | None,
) -> IncidentPage:
    """All that is told of an incident.

    Args:
        incident: which.
        rows: its rows, in the order written.
        attempt: the one it is about, where that was seen.
        beside: the job's incidents before and after it.
        temporal_url: of its page in Temporal's web UI.
        approval: as `approval_of` says, with what the person who looks may do.
    """
    diagnosis, verdict = incident.diagnosis, verdict_of(rows)
    record = attempt.attempt.record if attempt else None
    hypotheses = diagnosis.hypotheses if diagnosis else ()
    main = _cause(hypotheses[0]) if hypotheses else None
    return IncidentPage(
        line=line(incident, rows, record.display_id if record else ""),
        cluster=incident.attempt.cluster,
        partition=record.partition if record else "",
        job_nodes=record.nodes if record else (),
        restarts=record.restarts if record else None,
        attempt=str(incident.attempt),
        lineage=incident.lineage,
        workflow_id=incident.workflow_id,
        run_id=incident.run_id,
        temporal_url=temporal_url,
        steps=steps(incident, timeline(incident, rows)),
        cause=main,
        others=tuple(_cause(each) for each in hypotheses[1:]),
        root=_root(main),
        around=tuple(NearLine(line=n.line, text=n.text) for n in diagnosis.around) if diagnosis else (),
        echoes=diagnosis.echoes if diagnosis else 0,
        folded=diagnosis.folded if diagnosis else (),
        ranks=_ranks(diagnosis) if diagnosis else (),
        suspects=diagnosis.suspects if diagnosis else (),
        unreadable=diagnosis.unreadable if diagnosis else (),
        would_change=diagnosis.would_change if diagnosis else (),
        failed_step=diagnosis.failed_step if diagnosis else None,
        plan=_plan(incident, verdict),
        approval=approval,
        deeds=tuple(DeedLine(**each._asdict()) for each in deeds(rows)),
        leaves=tuple(_leave(row) for row in rows if row.kind is RowKind.LEAVE),
        verified=tuple(_proof(row) for row in rows if row.kind is RowKind.VERIFIED),
        todo=tuple(str(row.body.get("next", "")) for row in rows if row.kind is RowKind.ESCALATED),
        outputs=attempt.attempt.outputs if attempt else (),
        kept=tuple(path for row in rows if row.kind is RowKind.OUTPUTS_KEPT for path in _texts(row.body.get("kept"))),
        previous=beside[0],
        following=beside[1],
    )


def steps(incident: Incident, known: Collection[StepTime]) -> tuple[Step, ...]:
    """What happened when, from the interruption itself on, as far as its time is known."""
    listed = list(known)
    if incident.occurred_at and incident.occurred_at < incident.detected_at:
        listed.insert(0, StepTime(name=HAPPENED, at=incident.occurred_at, text=str(incident.kind)))
    told, before = [], listed[0].at if listed else incident.detected_at
    for step in listed:
        since, took = step.at - incident.detected_at, max(step.at - before, timedelta(0))
        told.append(Step(name=step.name, at=step.at, text=step.text, since_detection=since, took=took))
        before = step.at
    return tuple(told)


def _cause(each: Hypothesis) -> Cause:
    behind = each.implicated
    return Cause(
        signature=each.signature,
        category=str(each.category),
        confidence=each.confidence,
        summary=each.summary,
        nodes=behind.nodes,
        ranks=behind.ranks,
        gpus=behind.gpus,
        drain_nodes=each.drain_nodes,
        evidence=tuple(_mark(one) for one in each.evidence),
    )


def _mark(one: Evidence) -> Mark:
    return Mark(
        source=str(one.source),
        trust=str(one.trust),
        text=one.text,
        signature=one.signature or "",
        node=one.node or "",
        rank=one.rank,
        gpu=one.gpu or "",
        at=one.at,
        file=one.file or "",
        line=one.line,
    )


def _root(cause: Cause | None) -> Mark | None:
    """The line that shows the cause: the first of the verdict's evidence that stands in a file, else the first."""
    marks = cause.evidence if cause else ()
    return next((mark for mark in marks if mark.line is not None), next(iter(marks), None))


def _ranks(diagnosis: Diagnosis) -> tuple[RankLine, ...]:
    behind = diagnosis.verdict.implicated
    return tuple(
        RankLine(
            rank=row.rank,
            node=row.node or "",
            gpu=row.gpu or "",
            last_step=row.last_step,
            said=row.said,
            implicated=row.rank in behind.ranks or (not behind.ranks and row.node in behind.nodes),
        )
        for row in diagnosis.ranks
    )


def _plan(incident: Incident, verdict: Verdict | None) -> PlanView | None:
    plan = verdict.plan if verdict else incident.plan
    if plan is None:
        return None
    return PlanView(
        words=plan.describe(),
        reason=plan.reason,
        digest=plan.digest,
        short_digest=plan.digest[:8],
        mode=str(verdict.mode if verdict else incident.mode),
        mode_reason=verdict.mode_reason if verdict else "",
        policy_version=verdict.policy_version if verdict else "",
        policy_rules=verdict.policy_rules if verdict else (),
        restart=str(plan.restart),
        cancel=plan.cancel,
        exclude=plan.exclude,
        drain=plan.drain,
        rights=tuple(map(str, rights_of(plan))),
        acts=plan.acts,
        requeue_until=plan.requeue_until,
        fresh=plan.fresh,
        requested_by=plan.requested_by,
    )


def approval_of(incident: Incident, rows: Sequence[Row]) -> ApprovalView | None:
    """Where the approval stands, before it is known who looks; None where nobody was asked."""
    stands: Standing = standing(incident, rows)
    verdict, said = verdict_of(rows), decisions(rows)
    waits = stands.phase is Phase.WAITING
    if verdict is None or not (waits or said):
        return None
    rights = rights_of(verdict.plan)
    digest = verdict.plan.digest
    return ApprovalView(
        waiting=waits,
        needed=verdict.policy.approvers_needed(rights),
        have=sum(each.counts and each.decision.approved for each in said),
        score=stands.score,
        until=stands.until,
        on_timeout=on_timeout(incident, verdict) if waits else "",
        able=able(verdict.approvers, rights, incident.user),
        may_approve=False,
        may_reject=False,
        why_not="",
        command=f"relight approve {incident.id} --digest {digest[:8]}" if waits else "",
        said=tuple(
            SaidLine(
                at=each.at,
                approved=each.decision.approved,
                by=each.decision.by or "an unverified sender",
                reason=each.decision.reason,
                counts=each.counts,
                remark=each.remark,
            )
            for each in said
        ),
    )


def on_timeout(incident: Incident, verdict: Verdict) -> str:
    """What happens when nobody decides in time."""
    plan = verdict.plan
    if incident.kind in GOES_ON:
        return "No answer means no: nothing is done, and the attempt goes on as it is."
    left = f" until {_utc(plan.requeue_until)}, by hand" if plan.requeue_until else ", by hand, while it knows it"
    fresh = "; after that only a fresh submission remains" if plan.fresh else ""
    return f"No answer means no: nothing is done, and the job stays ended. Slurm can requeue it{left}{fresh}."


def _utc(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


def _leave(row: Row) -> LeaveLine:
    leave = row.body.get("leave", {})
    return LeaveLine(at=row.at, node=row.node, granted=bool(leave.get("granted")), reason=str(leave.get("reason", "")))


def _proof(row: Row) -> str:
    return str(row.body.get("text") or f"the next attempt runs on {', '.join(_texts(row.body.get('nodes')))}")


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()
