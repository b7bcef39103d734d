"""What the detection benchmark's trials come to: numbers for a program, a table for people. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

P95_FROM = 60
"""Fewer trials than this say nothing about a 95th percentile."""
NAMED = 50
"""So many things that went wrong are named; all are counted."""


class Kind(StrEnum):
    """What is inflicted."""

    CRASH = "crash"
    FATAL_LINE = "fatal_line"
    NODE_SILENT = "node_silent"
    XID = "xid"
    HANG = "hang"
    STRAGGLER = "straggler"


class About(NamedTuple):
    """What is measured of a kind."""

    goal: float
    """For the 95th percentile."""
    begins: str
    ends: str
    unit: str = "s"


ABOUT = {
    Kind.CRASH: About(
        2, "the job's last instruction before exit 1", "the crash is in the ledger; no hook, polling alone"
    ),
    Kind.FATAL_LINE: About(2, "the line is written", "the follower has noted it (no incident yet: see `incident`)"),
    Kind.NODE_SILENT: About(10, "the node's power is cut, its agent with it", "the lost node is in the ledger"),
    Kind.XID: About(2, "NVML (a stand-in) has the event", "the GPU fault is in the ledger"),
    Kind.HANG: About(30, "the job stops within a step of 0.1 to 1 s", "the hang is in the ledger"),
    Kind.STRAGGLER: About(30, "steps take 10 to 30 % longer", "the slow-down is in the ledger", "steps"),
}
"""The goal for hangs is max(30 s, 5 x step time); no step here takes longer than a second."""


class Trial(NamedTuple):
    """One fault that was inflicted."""

    kind: Kind
    took: float | None
    """In the kind's unit; None: it was missed."""
    why: str = ""
    """How it was missed, or found later than the goal; or, where `ran` is False, why it could not be inflicted."""
    found_by: str = ""
    """The source of the first evidence."""
    variant: str = ""
    """Another way of measuring the same kind; empty: the one that counts."""
    parts: Mapping[str, float | None] = {}
    """Further measures of the same trial."""
    ran: bool = True


def summary(values: Sequence[float | None]) -> dict[str, Any]:
    """How many, how many missed, and the percentiles of all: the value that so many did not exceed.

    One that was missed took longer than any other, so a percentile among these is None.
    """
    known = sorted(value for value in values if value is not None)

    def rank(share: float) -> float | None:
        index = math.ceil(share * len(values)) - 1
        return round(known[index], 2) if 0 <= index < len(known) else None

    return {
        "n": len(values),
        "p50": rank(0.5),
        "p95": rank(0.95) if len(values) >= P95_FROM else None,
        "max": rank(1),
        "missed": len(values) - len(known),
    }


def kinds(trials: Iterable[Trial]) -> dict[str, Any]:
    """The numbers by kind, in the order of `Kind`; only of kinds that were tried."""
    ran = [trial for trial in trials if trial.ran]
    return {kind.value: _kind(kind, mine) for kind in Kind if (mine := [t for t in ran if t.kind is kind])}


def _kind(kind: Kind, trials: Sequence[Trial]) -> dict[str, Any]:
    about = ABOUT[kind]
    plain = [trial for trial in trials if not trial.variant]
    numbers = summary([trial.took for trial in plain])
    numbers |= {"goal": about.goal, "unit": about.unit, "from": about.begins, "to": about.ends}
    if by := Counter(trial.found_by for trial in plain if trial.found_by):
        numbers["found_by"] = dict(by)
    for name in dict.fromkeys(name for trial in plain for name in trial.parts):
        numbers[name] = summary([trial.parts[name] for trial in plain if name in trial.parts])
    for variant in dict.fromkeys(trial.variant for trial in trials if trial.variant):
        numbers[variant] = summary([trial.took for trial in trials if trial.variant == variant])
    return numbers


def wrong(trials: Iterable[Trial]) -> list[str]:
    """What went wrong, each trial in a line."""
    return [f"{t.kind}{' ' + t.variant if t.variant else ''}: {t.why}" for t in trials if t.why]


def report(result: Mapping[str, Any]) -> Group:
    """All of it for people."""
    parts: list[Any] = []
    if result["kinds"]:
        parts.append(_kinds_table(result["kinds"]))
        parts += [Text(_measured(kind, told)) for kind, told in result["kinds"].items()]
    if result["healthy_job_hours"]:
        parts.append(Text(_healthy(result)))
    if cost := result.get("cost"):
        parts += [_cost_table(cost), Text(cost["what"])]
    parts += [Text(f"wrong: {line}") for line in result["wrong"]]
    parts += [Text(f"failed: {step}: {why}") for step, why in result["failed"].items()]
    parts += [Text(f"{name}: {value}") for name, value in result["conditions"].items()]
    if result["interrupted"]:
        parts.append(Text("interrupted: these numbers are partial"))
    return Group(*parts)


def _measured(kind: str, told: Mapping[str, Any]) -> str:
    by = ", ".join(f"{source} {number}" for source, number in told.get("found_by", {}).items())
    return f"{kind}: from when {told['from']}, until {told['to']}" + (f"; found by {by}" if by else "")


def _healthy(result: Mapping[str, Any]) -> str:
    of = result["healthy"]
    return (
        f"false alarms: {result['false_alarms']} in {result['healthy_job_hours']} healthy job-hours "
        f"({of['replayed']} replayed through the models, {of['beside']} of real jobs beside the trials)"
    )


def _kinds_table(numbers: Mapping[str, Any]) -> Table:
    shown = Table(title="From fault to detection")
    shown.add_column("kind")
    for name in ("n", "p50", "p95", "max", "missed", "goal"):
        shown.add_column(name, justify="right")
    shown.add_column("unit")
    for kind, told in numbers.items():
        shown.add_row(kind, *_cells(told), f"p95 ≤ {told['goal']:g}", told["unit"], style="bold")
        for name, part in told.items():
            if isinstance(part, Mapping) and "p50" in part:
                shown.add_row(f"  {name}", *_cells(part), "", told["unit"])
    return shown


def _cells(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    values = (numbers[name] for name in ("p50", "p95", "max"))
    return str(numbers["n"]), *(_shown(value, "{:.2f}") for value in values), str(numbers["missed"])


def _cost_table(cost: Mapping[str, Any]) -> Table:
    shown = Table(title="What detection costs the controller")
    for name in ("part", "logs", "agents", "jobs and nodes", *COST_COLUMNS, "remarks"):
        shown.add_column(name, justify="left" if name in ("part", "remarks") else "right")
    for point in cost["points"]:
        shown.add_row(
            point["part"],
            *(str(point[name]) for name in ("logs", "agents", "slurm")),
            *(_shown(point.get(name), form) for name, form in COST_COLUMNS.values()),
            _remarks(point),
            style="bold" if point["part"] == "all" else "",
        )
    return shown


COST_COLUMNS = {
    "cores": ("cores", "{:.3f}"),
    "MiB": ("rss_mib", "{:.0f}"),
    "own MiB": ("worker_mib", "{:.0f}"),
    "for each": ("core_us_each", "{:.0f} µs/s"),
}
"""By heading: the number's name and its form."""


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _remarks(point: Mapping[str, Any]) -> str:
    """Why it failed, or what the load really was."""
    parts = [point["why"]] if "why" in point else []
    if lines := point.get("load_logs"):
        parts.append(f"{lines['lines_a_second']:.0f} lines/s")
    if noted := point.get("fatal_line"):
        seconds = " / ".join(_shown(noted[name], "{:.1f}") for name in ("p50", "max"))
        parts.append(f"fatal line noted after {seconds} s (p50 / max), {noted['missed']} of {noted['n']} missed")
    if beats := point.get("load_beats"):
        parts.append(f"{beats['answered_a_second']:.0f} beats/s answered, p95 {beats['answer_p95_ms']:.0f} ms")
        parts += [f"{name}: {beats[name]}" for name in ("refused", "unanswered", "broken") if beats[name]]
    return "; ".join(parts)
