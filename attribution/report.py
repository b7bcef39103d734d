"""A diagnosis in words for a tired person, and as JSON for a program."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relight.attribution.catalogue import Catalogue
from relight.attribution.signature import Role, Tell
from relight.domain.base import clip
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Evidence, Source

SHOWN_LINES = 3
SHOWN_ROWS = 12
SHOWN_ECHOES = 4
EMPTY = ": empty"
"""What an entry of `Diagnosis.unreadable` ends with that was read, and held nothing."""
_SAYS = {
    Source.KERNEL_LOG: "its own kernel",
    Source.NVML: "its GPU driver",
    Source.DCGM: "DCGM",
    Source.AGENT: "its own agent",
    Source.SLURMCTLD: "Slurm",
}
HEADS = {
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
        "around": [one.model_dump() for one in diagnosis.around],
        "hypotheses": [_summary(one) for one in diagnosis.hypotheses],
        "suspects": [one.model_dump() for one in diagnosis.suspects],
        "ranks": [one.model_dump() for one in diagnosis.ranks],
        "echoes": diagnosis.echoes,
        "folded": [one.model_dump() for one in diagnosis.folded],
        "failed_step": diagnosis.failed_step,
        "would_change": list(diagnosis.would_change),
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


def as_text(diagnosis: Diagnosis, catalogue: Catalogue) -> Iterator[RenderableType]:
    """The verdict, the line that shows it, what was folded, and what to do next, part by part."""
    verdict = diagnosis.verdict
    good = verdict.category is Category.CONTROL
    head = Text(HEADS[verdict.category], style="bold green" if good else "bold red")
    yield head.append(f"  {verdict.signature}, confidence {verdict.confidence:.0%}", style="not bold dim")
    yield Text(f"{verdict.summary}\n")
    if shown := _shown(diagnosis):
        yield shown
    for table in _tables(diagnosis):
        yield Padding(table, (0, 0, 1, 2), expand=False)
    for name, text in next_steps(diagnosis, catalogue):
        yield _row(name, text)
    for text in also_seen(diagnosis, catalogue):
        yield _row("Also seen:", text, "dim")
    for name, text in zip(("Open:", *[""] * len(diagnosis.would_change)), diagnosis.would_change, strict=False):
        yield _row(name, text)
    for source in unread(diagnosis)[:SHOWN_ROWS]:
        yield _row("Not read:", source, "yellow")


def _row(name: str, text: str, style: str = "") -> Text:
    return Text(f"{name:<11}", style=style or "bold").append(text, style=f"not bold {style}".strip())


def _shown(diagnosis: Diagnosis) -> Text:
    """The first line with those around it, some more like it, and how many there were."""
    text = Text()
    others = diagnosis.verdict.evidence[:SHOWN_LINES]
    if diagnosis.around and (first := shown_line(diagnosis)):
        shown = {near.line for near in diagnosis.around}
        others = tuple(one for one in others if one.file != first.file or one.line not in shown)
        text.append(f"  {first.file}\n", style="cyan")
        width = len(str(diagnosis.around[-1].line))
        for near in diagnosis.around:
            here = near.line == first.line
            text.append(f"  {'>' if here else ' '} {near.line:>{width}}  ", style="bold red" if here else "dim")
            text.append(f"{clip(near.text, 200)}\n", style="" if here else "dim")
    for one in others:
        text.append(f"  {place(one)}", style="cyan")
        text.append(f"{clip(one.text, 200)}\n")
    if told := folded(diagnosis):
        text.append(f"  {told}\n", style="dim")
    return text


def shown_line(diagnosis: Diagnosis) -> Evidence | None:
    """The evidence that `Diagnosis.around` is about: the first that stands in a log."""
    return next((one for one in diagnosis.verdict.evidence if one.file and one.line), None)


def place(one: Evidence) -> str:
    """`slurm-7.out:1042: `; empty where the evidence stands in no file."""
    return f"{one.file}:{one.line}: " if one.file and one.line else ""


def folded(diagnosis: Diagnosis) -> str:
    """How many more lines there were, of which kinds, and how far training had come; empty where there is nothing."""
    parts = []
    shown = SHOWN_LINES
    if (more := len(diagnosis.verdict.evidence) - shown) > 0:
        parts.append(f"{more} more such line{'s' * (more > 1)}")
    if diagnosis.echoes:
        kinds = ", ".join(_echo(one.signature, one.lines, one.ranks) for one in diagnosis.folded[:SHOWN_ECHOES])
        more = len(diagnosis.folded) - SHOWN_ECHOES
        kinds += f" and {more} more kind{'s' * (more > 1)}" if more > 0 else ""
        which = f": {kinds}" if kinds else ""
        parts.append(f"{diagnosis.echoes} other line{'s' * (diagnosis.echoes > 1)} folded as echoes{which}")
    if diagnosis.failed_step is not None:
        parts.append(f"last training step {diagnosis.failed_step}")
    return f"({'; '.join(parts)})" if parts else ""


def _echo(signature: str, lines: int, ranks: int) -> str:
    return f"{lines} {signature}" + (f" of {ranks} ranks" if ranks > 1 else "")


def _tables(diagnosis: Diagnosis) -> Iterator[Table]:
    """Nodes against which more than one thing speaks, and ranks where there are several."""
    if len(diagnosis.suspects) > 1 or any(len(one.why) > 1 for one in diagnosis.suspects):
        yield _table(NODE_COLUMNS, node_rows(diagnosis))
    if len(diagnosis.ranks) > 1:
        yield _table(RANK_COLUMNS, rank_rows(diagnosis))


NODE_COLUMNS = ("node", "score", "left out", "what speaks against it")
RANK_COLUMNS = ("rank", "node", "GPU", "last step", "its first failure line")


def node_rows(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The nodes against which anything speaks, the most suspect first, under `NODE_COLUMNS`."""
    named = set(diagnosis.verdict.implicated.nodes)
    excluding = diagnosis.verdict.action is Action.RESTART_EXCLUDING_NODE
    return [
        (one.node, f"{one.score:.2f}", "yes" if excluding and one.node in named else "no", "; ".join(one.why))
        for one in diagnosis.suspects
    ]


def rank_rows(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The ranks worth a look, under `RANK_COLUMNS`."""
    return [
        (str(one.rank), one.node or "", one.gpu or "", "" if one.last_step is None else str(one.last_step), one.said)
        for one in diagnosis.ranks
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    more = len(rows) - SHOWN_ROWS
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left", caption_style="dim")
    table.caption = f"and {more} more (--json, --html)" if more > 0 else None
    for name in columns:
        table.add_column(name, justify="right" if name in {"score", "rank", "last step"} else "left")
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*(Text(cell or "-") for cell in row))
    return table


def next_steps(diagnosis: Diagnosis, catalogue: Catalogue) -> list[tuple[str, str]]:
    """What to do, what to do if it happens again, and whom to tell."""
    verdict = diagnosis.verdict
    steps = [("Next:", _next(verdict.action, verdict))]
    if verdict.action_if_it_repeats is not verdict.action:
        steps.append(("If again:", _next(verdict.action_if_it_repeats, verdict)))
    if verdict.drain_nodes:
        said = sorted({_SAYS[one.source] for one in verdict.evidence if one.source in _SAYS})
        steps.append(
            ("Drain:", f"{', '.join(verdict.drain_nodes[:8])} ({' and '.join(said) or 'the platform'} says so)")
        )
    tell = catalogue[verdict.signature].tell if verdict.signature in catalogue else Tell.USER
    if tell is not Tell.NOBODY:
        steps.append(("Tell:", "the user" if tell is Tell.USER else tell.value))
    return steps


def also_seen(diagnosis: Diagnosis, catalogue: Catalogue) -> list[str]:
    """The next hypotheses in a line each: beside a cause only other causes, its echoes are counted elsewhere."""
    others = diagnosis.hypotheses[1:]
    if _is_root(diagnosis.verdict, catalogue):
        others = tuple(other for other in others if _is_root(other, catalogue))
    return [f"{other.signature}: {clip(other.summary, 160)}" for other in others[:2]]


def unread(diagnosis: Diagnosis) -> list[str]:
    """What could not be read, with the reason; that a log is empty is no failure to read it."""
    empty = [source for source in diagnosis.unreadable if source.endswith(EMPTY)]
    told = [clip(source, 300) for source in diagnosis.unreadable if not source.endswith(EMPTY)]
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        told.append(f"{clip(empty[0].removesuffix(EMPTY), 200)}{more}: empty, nothing was printed to it")
    return told


def _is_root(one: Hypothesis, catalogue: Catalogue) -> bool:
    return one.signature in catalogue and catalogue[one.signature].role is Role.ROOT


def _next(action: Action, verdict: Hypothesis) -> str:
    if action is Action.RESTART:
        return "restart from the last checkpoint."
    if action is Action.RESTART_EXCLUDING_NODE:
        nodes = ", ".join(verdict.implicated.nodes[:8])
        return f"restart without {nodes or 'the node it ran on (find it in the allocation: the log does not name it)'}."
    if action is Action.STOP and verdict.category is Category.SCHEDULER:
        return "do not restart: it was ended on purpose."
    if action is Action.STOP:
        return "do not restart: it would fail the same way. Fix the cause first."
    return "nothing to do."
