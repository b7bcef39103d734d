"""The score card, printed for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.console.output import joined, words
from relight.console.text import count, local_short
from relight.domain.permits import Permit
from relight.domain.scorecard import Judged, Verdict
from relight.domain.scorecard_card import LEAST, PRECISION, Card, CardRow, Gate, Missed, Rate, counted

SHOWN = 10
"""Decisions that are told one by one; JSON has more."""
_WIDE = 100
_NOW = {Permit.AUTO: "(is auto)", Permit.APPROVE: "(is approve)", Permit.OFF: "(is off)"}
_STYLES = {
    Verdict.RIGHT: "green",
    Verdict.WRONG: "bold red",
    Verdict.NOT_YET: "dim",
    Verdict.UNKNOWN: "dim",
}


def tell(console: Console, told: Card) -> None:
    """Print it: what may go to auto first, then what speaks against, last what is not known."""
    sums = counted(told.rows)
    since = f"since {local_short(told.since, told.until)}"
    head = [(f"Score card of cluster {told.cluster}", "bold"), (since, "dim")]
    console.print(joined([*head, (count(sums["decisions"], "decision"), "")]))
    if not told.rows:
        console.print(words("Nothing was decided, and nothing missed, in that time.", "dim"))
    else:
        open_ = sums["not_yet"] + sums["unknown"]
        pieces = [
            (f"{sums['right']} right", "green"),
            (f"{sums['wrong']} wrong", "bold red" if sums["wrong"] else ""),
            (f"{open_} of which nobody knows (yet)", "dim"),
            (f"{told.missed_in_all} missed", "yellow" if told.missed_in_all else ""),
        ]
        console.print(joined(pieces, between=" · "))
        console.print()
        console.print(_rows(told.rows, console.width))
        rule = f"auto: {LEAST} judged decisions or more, {PRECISION:.0%} of them right, no well node drained"
        console.print(words(f"{rule}; in brackets 95 % intervals", "dim"))
    wrong = [each for each in told.judged if each.verdict is Verdict.WRONG]
    _titled(console, "Wrong", _judged(wrong), len(wrong))
    _titled(console, "Missed", _missed(told), told.missed_in_all)
    _titled(console, "Newest decisions", _judged(told.judged), told.judged_in_all)
    if told.policy:
        console.print()
        console.print(words("The policy that follows from it (rules for single jobs come before it):", "bold"))
        for line in told.policy:
            console.print(words(line, "cyan"))
    for note in told.notes:
        console.print(words(f"Note: {note}", "dim"))


def _titled(console: Console, title: str, table: Table, rows: int) -> None:
    if not rows:
        return
    console.print()
    console.print(words(title, "bold"))
    console.print(table)
    if rows > SHOWN:
        console.print(words(f"and {rows - SHOWN} more: -o json", "dim"))


def _table(*titles: str) -> Table:
    """Titles that begin with `>` are of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title.removeprefix(">"), justify="right" if title.startswith(">") else "left", overflow="fold")
    return table


def _rows(rows: Sequence[CardRow], width: int) -> Table:
    wide = width >= _WIDE
    counts = (">RIGHT", ">WRONG", ">OPEN", ">MISSED") if wide else (">RIGHT", ">WRONG")
    table = _table("DETECTOR", "ACTION", *counts, "PRECISION", "RECALL", "MAY GO TO AUTO")
    for row in rows:
        open_ = words(str(row.not_yet + row.unknown), "dim")
        missed = words("" if row.missed is None else str(row.missed), "yellow" if row.missed else "dim")
        table.add_row(
            words(str(row.kind)),
            words(str(row.action), "bold"),
            words(str(row.right), "green" if row.right else "dim"),
            words(str(row.wrong), "bold red" if row.wrong else "dim"),
            *((open_, missed) if wide else ()),
            words(_rate(row.precision)),
            words(_rate(row.recall)),
            _gate(row.gate),
        )
    return table


def _rate(rate: Rate | None) -> str:
    return f"{rate.value:.0%} ({100 * rate.low:.0f}-{100 * rate.high:.0f})" if rate else ""


def _gate(gate: Gate | None) -> Text:
    if gate is None:
        return words("no action", "dim")
    style = "bold green" if gate.may else "bold red" if gate.why.startswith("no:") else "yellow"
    return joined([(gate.why, style), (_NOW.get(gate.now, ""), "dim")], between=" ")


def _judged(judged: Sequence[Judged]) -> Table:
    table = _table("DECIDED", "INCIDENT", "WHAT", "", "WHY")
    until = judged[0].at if judged else None
    for each in judged[:SHOWN]:
        what = f"{each.action} {each.node}".rstrip()
        table.add_row(
            words(local_short(each.at, until or each.at), "dim"),
            words(each.incident),
            words(f"{each.kind}: {'' if each.acted else 'would '}{what}"),
            words(str(each.verdict), _STYLES[each.verdict]),
            words(each.why, "", 160),
        )
    return table


def _missed(told: Card) -> Table:
    table = _table("AT", "JOB", "WHAT", "WHY")
    for one in told.missed[:SHOWN]:
        table.add_row(
            words(local_short(one.at, told.until), "dim"),
            words(str(one.attempt.job_id)),
            words(_what(one)),
            words(one.why, "", 160),
        )
    return table


def _what(one: Missed) -> str:
    return f"{one.kind}: {one.action} {one.node}".rstrip()
