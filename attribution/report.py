"""A diagnosis in words for a tired person, and as JSON for a program."""

from typing import Any

from rich.text import Text

from relight.attribution.catalogue import Catalogue, Tell
from relight.domain.base import clip
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Evidence

SHOWN_LINES = 3
_HEADS = {
    Category.GPU: "GPU failure",
    Category.NODE: "Node failure",
    Category.NETWORK: "Network failure",
    Category.STORAGE: "Storage failure",
    Category.HOST_MEMORY: "Host memory",
    Category.SCHEDULER: "Ended by the scheduler",
    Category.FRAMEWORK: "Library or framework failure",
    Category.USER_CODE: "Error in the program",
    Category.CONFIG: "Wrong settings",
    Category.DATA: "Bad data",
    Category.NUMERICS: "Training diverged",
    Category.STRAGGLER: "Straggler",
    Category.UNKNOWN: "Cause unknown",
    Category.CONTROL: "Nothing failed",
}


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as one plain object."""
    verdict = diagnosis.verdict
    return {
        **_summary(verdict),
        "evidence": [_evidence(one) for one in verdict.evidence],
        "hypotheses": [_summary(one) for one in diagnosis.hypotheses],
        "echoes": diagnosis.echoes,
        "failed_step": diagnosis.failed_step,
        "unreadable": list(diagnosis.unreadable),
    }


def _summary(one: Hypothesis) -> dict[str, Any]:
    who = one.implicated
    return {
        "signature": one.signature,
        "category": one.category.value,
        "action": one.action.value,
        "action_if_it_repeats": one.action_if_it_repeats.value,
        "confidence": round(one.confidence, 2),
        "implicated": {"ranks": list(who.ranks), "nodes": list(who.nodes), "gpus": list(who.gpus)},
        "drain_nodes": list(one.drain_nodes),
        "summary": one.summary,
    }


def _evidence(one: Evidence) -> dict[str, Any]:
    return {
        "file": one.file,
        "line": one.line,
        "time": one.at.isoformat() if one.at else None,
        "text": one.text,
        "source": one.source.value,
    }


def as_text(diagnosis: Diagnosis, catalogue: Catalogue) -> Text:
    """The verdict, the line that shows it, what was folded, and what to do next."""
    verdict = diagnosis.verdict
    text = Text()
    text.append(
        _HEADS[verdict.category], style="bold red" if verdict.category is not Category.CONTROL else "bold green"
    )
    text.append(f"  {verdict.signature}, confidence {verdict.confidence:.0%}\n", style="dim")
    text.append(f"{verdict.summary}\n\n")
    for one in verdict.evidence[:SHOWN_LINES]:
        text.append(f"  {_place(one)}", style="cyan")
        text.append(f"{clip(one.text, 200)}\n")
    text.append(_folded(diagnosis))
    text.append("Next:      ", style="bold")
    text.append(f"{_next(verdict.action, verdict)}\n")
    if verdict.action is not Action.NONE:
        text.append("If again:  ", style="bold")
        text.append(f"{_next(verdict.action_if_it_repeats, verdict)}\n")
    tell = catalogue[verdict.signature].tell if verdict.signature in catalogue else Tell.USER
    if tell is not Tell.NOBODY:
        text.append("Tell:      ", style="bold")
        text.append(f"{'the user' if tell is Tell.USER else tell.value}\n")
    for other in diagnosis.hypotheses[1:3]:
        text.append(f"Also seen: {other.signature}: {clip(other.summary, 160)}\n", style="dim")
    for source in diagnosis.unreadable:
        text.append(f"Not read:  {clip(source, 300)}\n", style="yellow")
    text.rstrip()
    return text


def _place(one: Evidence) -> str:
    return f"{one.file}:{one.line}: " if one.file and one.line else ""


def _folded(diagnosis: Diagnosis) -> str:
    parts = []
    if more := len(diagnosis.verdict.evidence) - SHOWN_LINES:
        parts += [f"{more} more such line{'s' * (more > 1)}"] if more > 0 else []
    if diagnosis.echoes:
        parts.append(f"{diagnosis.echoes} other line{'s' * (diagnosis.echoes > 1)} folded as echoes")
    if diagnosis.failed_step is not None:
        parts.append(f"last training step {diagnosis.failed_step}")
    return f"  ({'; '.join(parts)})\n\n" if parts else "\n"


def _next(action: Action, verdict: Hypothesis) -> str:
    if action is Action.RESTART:
        return "restart from the last checkpoint."
    if action is Action.RESTART_EXCLUDING_NODE:
        nodes = ", ".join(verdict.implicated.nodes[:8])
        return f"restart without {nodes or 'the node it ran on (find it in the allocation: the log does not name it)'}."
    if action is Action.STOP:
        return "do not restart: it would fail the same way. Fix the cause first."
    return "nothing to do."
