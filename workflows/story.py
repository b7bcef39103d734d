"""What the Temporal web UI shows of an incident: pure text, so that the page alone tells the story."""

from collections.abc import Sequence
from datetime import datetime

from relight.activities.contracts import Confirmation
from relight.domain.base import Value, clip
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection
from relight.domain.incidents import Outcome, Phase, StepTime
from relight.domain.plan import Mode
from relight.domain.policy import Verdict
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
    outcome: Outcome | None = None
    reason: str = ""
    steps: tuple[StepTime, ...] = ()


def tell(status: Status) -> str:
    """The incident in Markdown, at most `MAX_DETAILS` bytes."""
    parts = [*_who(status), *_why(status), *_proposed(status), *_waiting(status), *_done(status.steps)]
    return "\n".join(parts).encode()[:MAX_DETAILS].decode(errors="ignore")


_MARKUP = str.maketrans("`<>|[]*", "'()¦()·")
_SENTENCE = 400
"""Characters of any one text: a plan names up to 4,096 nodes, and what a person waits for stands below it."""


def _plain(text: str, limit: int = _SENTENCE) -> str:
    """Text from logs, safe inside Markdown: one line, no markup, nothing that a terminal obeys."""
    return clip("".join(c if c.isprintable() else " " for c in text).translate(_MARKUP), limit)


def _who(status: Status) -> list[str]:
    detection, confirmation = status.detection, status.confirmation
    ended = f"**{status.outcome}** — {_plain(status.reason)}" if status.outcome else f"**{status.phase}**"
    lines = [f"### Incident {status.incident}: {ended}"]
    if detection:
        who = f"job **{detection.attempt.job_id}**"
        if confirmation and confirmation.job_name:
            who += f" ({_plain(confirmation.job_name)}, user {_plain(confirmation.user)})"
        lines.append(f"**Who:** {who} on {detection.attempt.cluster}, {detection.kind}")
    return lines


def _why(status: Status) -> list[str]:
    if not status.diagnosis:
        return []
    cause = status.diagnosis.verdict
    lines = [f"**Why:** {_plain(cause.summary)} ({cause.signature}, {cause.category}, {cause.confidence:.0%})"]
    named = cause.implicated
    if named:
        where = [f"nodes {_plain(', '.join(named.nodes[:8]))}"] if named.nodes else []
        where += [f"ranks {', '.join(map(str, named.ranks[:8]))}"] if named.ranks else []
        where += [f"GPUs {_plain(', '.join(named.gpus[:8]))}"] if named.gpus else []
        lines.append(f"**Behind it:** {'; '.join(where)}")
    lines.append("")  # Markdown takes dashes for a list only after an empty line
    lines += [
        f"- `{_plain(e.text, 160)}`" + (f" ({_plain(e.file)}:{e.line})" if e.file else "") for e in cause.evidence[:5]
    ]
    lines.append("")
    return lines


def _proposed(status: Status) -> list[str]:
    if not status.verdict:
        return []
    plan = status.verdict.plan
    return [
        f"**Plan:** {_plain(plan.describe())} — {_plain(plan.reason)}",
        f"**Mode:** {status.verdict.mode} ({_plain(status.verdict.mode_reason)}) · plan digest `{plan.digest[:12]}`",
    ]


def _waiting(status: Status) -> list[str]:
    if status.phase is not Phase.WAITING or status.outcome or not status.verdict:
        return []
    digest = status.verdict.plan.digest[:12]
    until = f"{status.decide_until:%Y-%m-%d %H:%M:%S} UTC" if status.decide_until else "decided"
    lines = [
        f"**Waiting for a person until {until}**; without an answer nothing is done.",
        f"- `relight approve {status.incident}` or `relight reject {status.incident} --reason ...`",
    ]
    if status.verdict.policy.trust_temporal_ui:
        lines.append(f'- or send the signal `approve` here: `{{"digest": "{digest}", "reason": "..."}}`')
    return lines


def _done(steps: Sequence[StepTime]) -> list[str]:
    if not steps:
        return []
    first = steps[0].at
    rows = [f"| {(s.at - first).total_seconds():.1f} s | {s.name} | {_plain(s.text, 160)} |" for s in steps]
    return ["", "| after | what | |", "| --- | --- | --- |", *rows]


def summary_of(mode: Mode, text: str) -> str:
    """A step's text as it is put where it may not have been carried out."""
    return f"would have: {text}" if mode is Mode.MONITOR else text
