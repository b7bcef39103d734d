"""The attribution benchmark's numbers for people. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from relight.lab.bench_attribution import Naming

GOAL = 0.95
_SHORT = {"RESTART_EXCLUDING_NODE": "EXCLUDE"}
"""Column heads; the rows have the whole word."""
_ROWS = {
    "both": "category and action",
    "category": "category",
    "action": "action",
    "repeats": "action if it repeats",
    "signature": "signature",
}


def report(result: Mapping[str, Any]) -> Group:
    """All of it."""
    return Group(*_parts(result))


def _parts(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"Attribution of {result['cases']} cases in {result['corpus']} ({result['seconds']:.1f} s)", "bold")
    yield _scores(result)
    yield _healthy(result["healthy_isolated"])
    for name, table in result["confusion"].items():
        yield Text(f"\n{name.capitalize()}: label down, verdict across", "bold")
        yield _confusion(table)
    yield Text(_confidence(result["calibration"]), "bold")
    yield _calibration(result["calibration"])
    if result["misses"]:
        yield Text("Misses", "bold")
        yield _misses(result["misses"])
    # A silent rank's empty file is what it should be.
    broken = [line for line in result["unreadable"] if not line.endswith(": empty")]
    yield from (Text(f"not read: {line}", style="yellow") for line in broken)


def _scores(result: Mapping[str, Any]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("what")
    for name in ("right", "of", "share"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    rows = {
        "both": "category and action",
        "category": "category",
        "action": "action",
        "repeats": "action if it repeats",
    }
    for key, words in {**rows, "signature": "signature"}.items():
        if result[key]["of"]:
            _row(shown, words, result[key]["right"], result[key]["of"], "")
    where = result["localisation"]
    named = where[Naming.EXACT] + where[Naming.PARTLY]
    parts = ", ".join(f"{where[naming]} {naming}" for naming in Naming if where[naming])
    if where["checked"]:
        _row(shown, "guilty rank, node or GPU named", named, where["checked"], parts)
    if where["nobody"]:
        _row(
            shown,
            "nobody named where nobody is guilty",
            where["nobody"] - where["nobody_but_named"],
            where["nobody"],
            "",
        )
    if where["free_text"]:
        shown.add_row("guilty one told in free text", "", str(where["free_text"]), "", "not scored", style="dim")
    return shown


def _row(shown: Table, words: str, right: int, of: int, remark: str) -> None:
    share = right / of
    shown.add_row(words, str(right), str(of), Text(f"{share:.1%}", style="green" if share >= GOAL else "red"), remark)


def _healthy(told: Mapping[str, Any]) -> Text:
    if not told["cases"]:
        return Text("Healthy nodes isolated: none", style="green")
    named = "; ".join(f"{each['file']}: {', '.join(each['nodes'])}" for each in told["nodes"])
    return Text(f"Healthy nodes isolated in {told['cases']} cases: {named}", style="bold red")


def _confusion(table: Mapping[str, Mapping[str, int]]) -> Table:
    """Labels down, verdicts across; what is right stands on the diagonal."""
    shown = Table(box=box.SIMPLE_HEAD)
    heads = sorted({*table, *(got for row in table.values() for got in row)})
    shown.add_column("")
    for head in heads:
        shown.add_column(_SHORT.get(head, head), justify="right")
    for label, row in table.items():
        cells = [Text(str(row[got]), style="green" if got == label else "red") if got in row else "·" for got in heads]
        shown.add_row(label, *cells)
    return shown


def _confidence(told: Mapping[str, Any]) -> str:
    right, wrong = (_shown(told[f"mean_confidence_{which}"]) for which in ("right", "wrong"))
    return f"Confidence: {right} on average where right, {wrong} where wrong; Brier score {told['brier']:.3f}"


def _calibration(told: Mapping[str, Any]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD)
    for name in ("confidence", "cases", "right", "share right", "mean confidence"):
        shown.add_column(name, justify="right")
    for each in told["deciles"]:
        span = f"{each['from']:.1f} to {each['to']:.1f}"
        shown.add_row(span, str(each["of"]), str(each["right"]), _shown(each["share"]), _shown(each["mean_confidence"]))
    return shown


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _misses(misses: list[Mapping[str, Any]]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD)
    for name in ("file", "label", "verdict", "label names", "verdict names", "by", "confidence"):
        shown.add_column(name, overflow="fold", justify="right" if name == "confidence" else "left")
    for each in misses:
        label, got = each["label"], each["got"]
        named = Text(got["who"], style="red" if each["naming"] in {Naming.SILENT, Naming.WRONG} else "")
        shown.add_row(
            each["file"],
            f"{label['category']} {label['action']}",
            Text(f"{got['category']} {got['action']}", style="" if _same(label, got) else "red"),
            label["who"],
            named,
            each["signature"],
            _shown(each["confidence"]),
        )
    return shown


def _same(label: Mapping[str, str], got: Mapping[str, str]) -> bool:
    return (label["category"], label["action"]) == (got["category"], got["action"])
