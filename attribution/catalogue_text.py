"""Entries of the catalogue for people, on terminals of any width, and as plain objects for programs."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relight.attribution.nvlink5 import Decoded
from relight.attribution.signature import Blame, Isolates, Retry, Role, Signature, Tell, Witness
from relight.attribution.xids import SXid, Xid
from relight.domain.diagnosis import Action

NARROW = 100
"""Columns below which a list has no room for summaries."""
NAMES = {"xid": "Xid", "sxid": "SXid"}
_ROLES = {Role.ROOT: "bold red", Role.CASCADE: "yellow", Role.WRAPPER: "cyan", Role.CONTEXT: "dim"}
_ACTIONS = {
    Action.RESTART: "restart",
    Action.RESTART_EXCLUDING_NODE: "restart without the node",
    Action.STOP: "stop",
    Action.NONE: "nothing",
}
_RETRIES = {
    Retry.ANYWHERE: "may well run",
    Retry.ELSEWHERE: "runs only without the node",
    Retry.AFTER_RESET: "runs there only after a reset or reboot, elsewhere at once",
    Retry.ONCE: "is worth one try",
    Retry.NEVER: "fails the same way",
    Retry.NOT_APPLICABLE: "is to be asked of the cause, if there is one",
}
_ISOLATES = {
    Isolates.NEVER: "no",
    Isolates.JOB_EXCLUSION: "from this job's own retry only",
    Isolates.PLATFORM: "from this job's retry; for everybody (drain) when the platform itself says it",
}
_WITNESSES = {
    Witness.PLATFORM: "the node's kernel log, NVML, DCGM or agent tells of a fault in the same window",
    Witness.ONE_NODE: "only this node of the job shows it",
    Witness.PEERS: "several other nodes name it",
    Witness.AGAIN: "the same node or GPU shows it again",
    Witness.CHECK: "a check of the node fails",
    Witness.STACKS: "stacks or flight-recorder dumps single it out",
    Witness.SLURM: "Slurm itself has taken the node out",
}
_BLAMES = {
    Blame.ALL: "everyone who printed it",
    Blame.FIRST: "who printed it first",
    Blame.SAME_CODE: "who printed the same code as the first",
    Blame.NAMED: "whom the line names",
    Blame.PEER: "the other end that the line names",
    Blame.SILENT: "who did not print it, or is behind",
    Blame.NOBODY: "nobody",
}


class _Named(defaultdict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def as_json(signature: Signature) -> dict[str, Any]:
    """One entry, with the expressions that its Xids stand for."""
    return {**signature.model_dump(mode="json"), "expressions": list(signature.expressions)}


def _summary(signature: Signature) -> str:
    return signature.summary.format_map(_Named())


def table(signatures: Sequence[Signature], width: int) -> RenderableType:
    """Entries as a list; summaries only where there is room for them."""
    wide = width >= NARROW
    shown = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    shown.add_column("id", no_wrap=True)
    for name in ("role", "category"):
        shown.add_column(name, no_wrap=True)
    shown.add_column("action", overflow="fold")
    if wide:
        shown.add_column("summary", no_wrap=True, overflow="ellipsis", ratio=1)
    group = None
    for one in signatures:
        if one.group != group:
            group = one.group
            shown.add_row(Text(group, style="bold cyan"))
        cells: list[str | Text] = [f"  {one.id}", Text(one.role, style=_ROLES[one.role]), one.category.value]
        cells.append(_ACTIONS[one.action])
        shown.add_row(*cells, *([_summary(one)] if wide else []))
    count = len(signatures)
    return Group(shown, Text(f"{count} entr{'y' if count == 1 else 'ies'}", style="dim"))


def entry(signature: Signature) -> RenderableType:
    """One entry in full."""
    one = signature
    head = Text.assemble((one.id, "bold"), "  ", (one.role, _ROLES[one.role]), f"  {one.category.value}, {one.group}")
    lines: list[tuple[str, str]] = [
        ("broken", one.entity),
        ("do", _ACTIONS[one.action]),
        ("if again", _ACTIONS[one.action_if_it_repeats]),
        ("if all have it", _ACTIONS[one.if_every_node] if one.if_every_node else ""),
        *(("unless", _variant(variant)) for variant in one.variants),
        ("a retry", _RETRIES[one.retry]),
        ("isolates", _ISOLATES[one.isolates_node]),
        ("  only if", "; or ".join(_WITNESSES[witness] for witness in one.witness)),
        ("blames", _BLAMES[one.blame]),
        ("explains", ", ".join("everything after it" if other == "*" else other for other in one.explains)),
        ("tell", "the user" if one.tell is Tell.USER else one.tell.value),
        ("confidence", f"{one.weight:.0%}"),
        ("Xids", ", ".join(str(number) for number in one.xids)),
        *(("pattern", pattern) for pattern in one.patterns),
        ("source", one.source),
    ]
    return Group(head, Text(_summary(one)), _grid(lines))


def _variant(variant: Any) -> str:
    changes = [variant.category.value if variant.category else "", _ACTIONS[variant.action] if variant.action else ""]
    if variant.action_if_it_repeats:
        changes.append(f"if again {_ACTIONS[variant.action_if_it_repeats]}")
    return f"{variant.when.value.replace('_', ' ')}: {', '.join(change for change in changes if change)}"


def xid(code: Xid, entries: Sequence[Signature]) -> RenderableType:
    """An Xid as NVIDIA describes it, and what we make of it."""
    head = Text.assemble((f"Xid {code.number}", "bold"), f"  {code.mnemonic}")
    facts = [
        ("NVIDIA: do", code.immediate or "(says nothing)"),
        ("NVIDIA: look", code.investigatory),
        ("disagreement", code.sources_disagree),
        ("source", "NVIDIA Xid catalogue"),
    ]
    shown: list[RenderableType] = [head, Text(code.means), _grid(facts)]
    for one in entries:
        shown += [Text(), entry(one)]
    return Group(*shown)


def sxid(code: SXid) -> RenderableType:
    """An SXid as NVIDIA describes it."""
    entries = {"non-fatal": "SXID_NONFATAL", "notable": "SXID_NONFATAL, unless the line says Fatal"}
    facts = [
        ("severity", code.severity),
        ("entry", entries.get(code.severity, "SXID_FATAL, unless the line says Non-fatal")),
        ("source", "NVIDIA Fabric Manager user guide, SXid errors"),
    ]
    return Group(Text(f"SXid {code.number}", style="bold"), Text(code.means), _grid(facts))


def line(entries: Sequence[Signature], decoded: Decoded | None) -> RenderableType:
    """The entries that recognise a line, and what its words in hexadecimal say."""
    shown: list[RenderableType] = []
    if decoded:
        facts = [
            ("severity", decoded.severity),
            ("NVIDIA: do", decoded.resolution),
            ("NVIDIA: look", decoded.investigate),
            ("here", decoded.local or "nothing follows"),
            ("at the peer", decoded.remote or "nothing follows"),
            ("of", decoded.kind),
        ]
        link = f", link {decoded.link}" if decoded.link is not None else ""
        shown += [Text(f"Xid {decoded.xid}, {decoded.unit}{link}", style="bold"), _grid(facts), Text()]
    for one in entries:
        shown += [entry(one), Text()]
    return Group(*shown[:-1])


def _grid(lines: Sequence[tuple[str, str]]) -> RenderableType:
    """Labels and values, those without a value left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in lines:
        if value:
            grid.add_row(label, Text(value))
    return Padding(grid, (0, 0, 0, 2), expand=False)
