"""What the ledger says of one incident, in labelled parts that `show` and `why` put together. Pure."""

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from relight.console.output import Part, joined, words
from relight.console.standing import Deed, Said, decisions, deeds, verdict_of
from relight.console.text import clean, count, local, nodes
from relight.domain.diagnosis import Diagnosis, Hypothesis
from relight.domain.evidence import Answer, Evidence
from relight.domain.incidents import Incident
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode
from relight.domain.policy import Verdict

SHOWN = 4
"""Pieces of evidence, unreadable sources and the like that are shown; JSON has all."""
_LINE = 220


def cause(incident: Incident) -> list[Part]:
    """Why it happened: the verdict, who is behind it, the lines it rests on, and what could not be read."""
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return [Part("Cause", (words("not diagnosed" + (" yet" if incident.open else ""), "dim"),))]
    verdict = diagnosis.verdict
    head = [words(verdict.summary or verdict.signature, "bold"), _measure(verdict)]
    behind = _behind(verdict)
    parts = [Part("Cause", (*head, behind) if behind else tuple(head))]
    if verdict.evidence:
        parts.append(Part("Evidence", tuple(line for e in verdict.evidence[:SHOWN] for line in _evidence(e))))
    beside = _beside(diagnosis, hidden=max(0, len(verdict.evidence) - SHOWN))
    if beside:
        parts.append(Part("" if verdict.evidence else "Beside", beside))
    return parts


def _measure(verdict: Hypothesis) -> Text:
    known = [(verdict.signature, ""), (str(verdict.category), ""), (f"{verdict.confidence:.0%} sure", "")]
    return joined(known, between=" · ")


def _behind(verdict: Hypothesis) -> Text | None:
    named = verdict.implicated
    if not named:
        return None
    some = [str(rank) for rank in named.ranks[:8]]
    ranks = ",".join(some) + (f" and {len(named.ranks) - 8} more" if len(named.ranks) > 8 else "")  # noqa: PLR2004
    pieces = [
        (f"node {nodes(named.nodes)}" if named.nodes else "", "bold"),
        (f"rank {ranks}" if ranks else "", ""),
        (f"GPU {', '.join(named.gpus[:4])}" if named.gpus else "", ""),
    ]
    return joined(pieces, between=", ")


def _evidence(evidence: Evidence) -> list[Text]:
    place = f"{evidence.file}:{evidence.line}" if evidence.file and evidence.line else evidence.file or ""
    where = joined(
        [
            (place or str(evidence.source).replace("_", " "), "cyan"),
            (f"node {evidence.node}" if evidence.node and evidence.node not in place else "", "dim"),
            (f"rank {evidence.rank}" if evidence.rank is not None else "", "dim"),
        ],
    )
    return [where, Text("  ").append(clean(evidence.text, _LINE))]


def _beside(diagnosis: Diagnosis, hidden: int) -> tuple[Text, ...]:
    lines = []
    if hidden:
        lines.append(words(f"{count(hidden, 'more piece')} of evidence: -o json", "dim"))
    if diagnosis.echoes:
        kinds = ", ".join(f"{echo.lines} {echo.signature}" for echo in diagnosis.folded[:SHOWN])
        told = f"{count(diagnosis.echoes, 'further line')} only echo it"
        lines.append(words(f"{told}: {kinds}" if kinds else told, "dim", _LINE))
    others = (f"less likely: {h.signature}, {h.category} ({h.confidence:.0%})" for h in diagnosis.hypotheses[1:3])
    lines.extend(words(other, "dim") for other in others)
    silent = (f"could not be read, its silence proves nothing: {source}" for source in diagnosis.unreadable[:SHOWN])
    lines.extend(words(source, "yellow", _LINE) for source in silent)
    if len(diagnosis.unreadable) > SHOWN:
        lines.append(words(f"and {len(diagnosis.unreadable) - SHOWN} more could not be read", "yellow"))
    lines.extend(words(f"would change it: {text}", "dim", _LINE) for text in diagnosis.would_change[:SHOWN])
    return tuple(lines)


def plan(incident: Incident, rows: Sequence[Row]) -> list[Part]:
    """What was proposed, why exactly that, and in which mode."""
    verdict = verdict_of(rows)
    proposed = verdict.plan if verdict else incident.plan
    if proposed is None:
        return []
    would = "would: " if incident.mode is Mode.MONITOR and proposed.acts else ""
    lines = [words(would + proposed.describe(), "bold")]
    if not (incident.diagnosis and proposed.reason == incident.diagnosis.verdict.summary):
        lines.append(words(f"because {proposed.reason}", "", _LINE))
    if proposed.acts:
        lines.append(words(f"digest {proposed.digest[:12]}", "dim"))
    mode = verdict.mode_reason if verdict else ""
    told = joined([(str(incident.mode), "bold"), (mode, "")], between=": ")
    made_by = [Part("Policy", (_policy(verdict),))] if verdict and verdict.policy_version else []
    return [Part("Plan", tuple(lines)), *_checkpoints(verdict), Part("Mode", (told,)), *made_by]


def _checkpoints(verdict: Verdict | None) -> list[Part]:
    """What a restart would have gone on from when this was decided; nothing where nobody has looked."""
    look = verdict.checkpoints if verdict else None
    if look is None or (look.series is None and not look.problems):
        return []
    style = "yellow" if look.choice is not None and look.choice.safe is Answer.NO else "dim"
    lines = [words(look.sentence, style, 300)]
    if look.series is not None:
        lines.append(words(f"{look.series.folder} ({look.series.format})", "dim", _LINE))
    return [Part("Checkpoint", tuple(lines))]


def _policy(verdict: Verdict) -> Text:
    """The version that decided, and which of its rules fit the job."""
    rules = "; ".join(f"rule for {rule}" for rule in verdict.policy_rules[:SHOWN])
    return joined([(verdict.policy_version, ""), (rules or "no rule fits the job", "dim")])


def said(rows: Sequence[Row], now: datetime) -> list[Part]:
    """What people decided."""
    lines = tuple(_said(each, now) for each in decisions(rows))
    return [Part("Decided", lines)] if lines else []


def _said(each: Said, now: datetime) -> Text:
    decision = each.decision
    verb, style = ("approved", "green") if decision.approved else ("rejected", "yellow")
    by = decision.by or "an unverified sender"
    reason = f": {decision.reason}" if decision.reason else ""
    line = joined([(local(each.at, now), "dim"), (verb, style), (f"by {by}{reason}", "")])
    return line if each.counts else line.append(f"  not counted: {clean(each.remark)}", style="bold red")


def leaves(rows: Sequence[Row], now: datetime) -> list[Part]:
    """The guard's word on each drain."""
    lines = []
    for row in rows:
        if row.kind is RowKind.LEAVE:
            leave = row.body.get("leave", {})
            verb, style = ("granted", "green") if leave.get("granted") else ("refused", "yellow")
            told = [
                (local(row.at, now), "dim"),
                (f"drain {row.node} {verb}", style),
                (str(leave.get("reason", "")), ""),
            ]
            lines.append(joined(told))
    return [Part("Guard", tuple(lines))] if lines else []


def actions(rows: Sequence[Row], now: datetime) -> list[Part]:
    """What was written to Slurm, and what was read back."""
    lines = tuple(line for deed in deeds(rows) for line in _deed(deed, now))
    return [Part("Done", lines)] if lines else []


def _deed(deed: Deed, now: datetime) -> list[Text]:
    when = (local(deed.at, now), "dim")
    if not deed.intent:
        return [joined([when, (deed.name, ""), (f"nothing written: {deed.effect}", "dim")])]
    if deed.effect is None:
        return [joined([when, (deed.intent, ""), ("meant, and not (yet) read back", "bold yellow")])]
    return [joined([when, (deed.intent, "")]).append(" → ").append(clean(deed.effect, _LINE), style="green")]


def escalated(rows: Sequence[Row]) -> list[Part]:
    """What a person must do, where nothing was done."""
    told = [str(row.body.get("next", "")) for row in rows if row.kind is RowKind.ESCALATED]
    return [Part("To do", tuple(words(text, "bold yellow") for text in told))] if told else []


def verified(rows: Sequence[Row], now: datetime) -> list[Part]:
    """The proof that training moves again, as far as there is one."""
    lines = []
    for row in rows:
        if row.kind is RowKind.VERIFIED:
            where = f"the next attempt runs on {nodes(map(str, row.body.get('nodes', ())))}"
            lines.append(joined([(local(row.at, now), "dim"), (str(row.body.get("text") or where), "")]))
    return [Part("Verified", tuple(lines))] if lines else []
