"""What the Temporal web UI shows of an incident: pure text, so that the page alone tells the story."""

from datetime import datetime

from relight.activities.contracts import Confirmation
from relight.domain.approvals import Approval
from relight.domain.base import Value
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection
from relight.domain.incidents import Outcome, Phase, StepTime
from relight.domain.plan import Mode, Plan
from relight.domain.policy import Verdict
from relight.workflows.approval import waiting_lines
from relight.workflows.markdown import plain, steps_table
from relight.workflows.options import MAX_DETAILS


class Status(Value):
    """An incident as it stands: the answer to the query `status`."""

    incident: str
    workflow_id: str
    phase: Phase
    detection: Detection | None = None
    confirmation: Confirmation | None = None
    diagnosis: Diagnosis | None = None
    verdict: Verdict | None = None
    decide_until: datetime | None = None
    approval: Approval | None = None
    """Where the approval stands; None where nobody is asked, or the incident began before there were quorums."""
    outcome: Outcome | None = None
    reason: str = ""
    steps: tuple[StepTime, ...] = ()


def tell(status: Status) -> str:
    """The incident in Markdown, at most `MAX_DETAILS` bytes."""
    parts = [*_who(status), *_why(status), *_proposed(status), *_waiting(status), *steps_table(status.steps)]
    return "\n".join(parts).encode()[:MAX_DETAILS].decode(errors="ignore")


def _who(status: Status) -> list[str]:
    detection, confirmation = status.detection, status.confirmation
    ended = f"**{status.outcome}** — {plain(status.reason)}" if status.outcome else f"**{status.phase}**"
    lines = [f"### Incident {status.incident}: {ended}"]
    if detection:
        who = f"job **{detection.attempt.job_id}**"
        if confirmation and confirmation.job_name:
            who += f" ({plain(confirmation.job_name)}, user {plain(confirmation.user)})"
        lines.append(f"**Who:** {who} on {detection.attempt.cluster}, {detection.kind}")
    return lines


def _why(status: Status) -> list[str]:
    if not status.diagnosis:
        return []
    cause = status.diagnosis.verdict
    lines = [f"**Why:** {plain(cause.summary)} ({cause.signature}, {cause.category}, {cause.confidence:.0%})"]
    named = cause.implicated
    if named:
        where = [f"nodes {plain(', '.join(named.nodes[:8]))}"] if named.nodes else []
        where += [f"ranks {', '.join(map(str, named.ranks[:8]))}"] if named.ranks else []
        where += [f"GPUs {plain(', '.join(named.gpus[:8]))}"] if named.gpus else []
        lines.append(f"**Behind it:** {'; '.join(where)}")
    lines.append("")  # Markdown takes dashes for a list only after an empty line
    lines += [
        f"- `{plain(e.text, 160)}`" + (f" ({plain(e.file)}:{e.line})" if e.file else "") for e in cause.evidence[:5]
    ]
    lines.append("")
    return lines


def _proposed(status: Status) -> list[str]:
    if not status.verdict:
        return []
    plan = status.verdict.plan
    return [
        f"**Plan:** {plain(plan.describe())} — {plain(plan.reason)}",
        f"**Mode:** {status.verdict.mode} ({plain(status.verdict.mode_reason)}) · plan digest `{plan.digest[:12]}`",
    ]


def _waiting(status: Status) -> list[str]:
    if status.phase is not Phase.WAITING or status.outcome or not status.verdict:
        return []
    digest = status.verdict.plan.digest[:12]
    until = f"{status.decide_until:%Y-%m-%d %H:%M:%S} UTC" if status.decide_until else "decided"
    if status.approval:
        return [*waiting_lines(status.approval), *_afterwards(status.verdict.plan)]
    lines = [
        f"**Waiting for a person until {until}**; without an answer nothing is done.",
        f"- `relight approve {status.incident}` or `relight reject {status.incident} --reason ...`",
    ]
    if status.verdict.policy.trust_temporal_ui:
        lines.append(f'- or send the signal `approve` here: `{{"digest": "{digest}", "reason": "..."}}`')
    return lines


def _afterwards(plan: Plan) -> list[str]:
    """Until when Slurm can still requeue the attempt, and what remains then."""
    if not plan.requeue_until:
        return []
    # A command is copied as it is: inside a code span only a backtick means anything.
    whole = plan.fresh.isprintable() and "`" not in plan.fresh
    command = f"`{plan.fresh}`" if whole else "a fresh submission, which `relight show` tells"
    remains = f"; after that: {command}" if plan.fresh else ""
    return [f"- Slurm can requeue it until {plan.requeue_until:%Y-%m-%d %H:%M:%S} UTC{remains}"]


def summary_of(mode: Mode, text: str) -> str:
    """A step's text as it is put where it may not have been carried out."""
    return f"would have: {text}" if mode is Mode.MONITOR else text
