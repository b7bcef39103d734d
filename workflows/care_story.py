"""What the Temporal web UI shows of a node in quarantine. Pure text."""

from datetime import datetime

from relight.activities.care_contracts import Judged
from relight.domain.approvals import Approval, Request
from relight.domain.base import Value
from relight.domain.care import CareOutcome, CarePhase, Word
from relight.domain.incidents import StepTime
from relight.domain.reports import NodeCheck
from relight.workflows.approval import waiting_lines
from relight.workflows.markdown import plain, steps_table
from relight.workflows.options import MAX_DETAILS


class CareStatus(Value):
    """A quarantine as it stands: the answer to the query `status`."""

    id: str
    workflow_id: str
    run_id: str
    cluster: str
    node: str
    incident: str
    cls: str = ""
    summary: str = ""
    phase: CarePhase
    outcome: CareOutcome | None = None
    reason: str = ""
    since: datetime
    judged: Judged | None = None
    checks: tuple[NodeCheck, ...] = ()
    words: tuple[Word, ...] = ()
    folder: str = ""
    approval: Approval | None = None
    release: Request | None = None
    """What `relight release` signs."""
    steps: tuple[StepTime, ...] = ()


def tell_care(status: CareStatus) -> str:
    """The quarantine in Markdown, at most `MAX_DETAILS` bytes."""
    ended = f"**{status.outcome}** — {plain(status.reason)}" if status.outcome else f"**{status.phase}**"
    lines = [
        f"### Node {plain(status.node)} ({status.id}): {ended}",
        f"**Why:** {plain(status.summary)} ({plain(status.cls)}, incident {status.incident})",
    ]
    judged = status.judged
    if judged:
        lines.append(f"**Now:** {judged.verdict.next} — {plain(judged.verdict.reason)}")
        lemon = f"{judged.score:.1f} ({plain(', '.join(judged.score_why))})" if judged.score_why else "0"
        lines.append(f"**Lemon score:** {lemon}")
        if judged.ticket:
            lines.append(f"**Ticket:** `{plain(judged.ticket)}`")
    if status.checks:
        lines += ["", "| check | result | |", "| --- | --- | --- |"]
        lines += [f"| {check.name} | {check.result} | {plain(check.text, 160)} |" for check in status.checks]
        lines.append("")
    if status.approval and not status.approval.over and not status.outcome:
        lines += waiting_lines(status.approval)
    elif status.phase is CarePhase.KEPT and not status.outcome:
        name = plain(status.node)
        lines += [
            "**It stays out until a person says otherwise:**",
            f'- `relight release {name} --reason "..."` once it is repaired: it is checked again',
            f'- `relight keep {name} --reason "..."` to leave it out',
        ]
    return "\n".join([*lines, *steps_table(status.steps)]).encode()[:MAX_DETAILS].decode(errors="ignore")
