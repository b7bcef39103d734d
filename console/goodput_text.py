"""Where time went, printed for people."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.console.output import joined, words
from relight.console.text import count, local_short, span
from relight.domain.goodput import Account, Badput
from relight.domain.goodput_costs import CauseCost, Cost
from relight.domain.goodput_interval import LEAST, Interval
from relight.domain.goodput_report import AttemptAccount, Group, JobAccount, Report

SHOWN = 10
"""Rows of a table; JSON has all."""
_WIDE = 110
_BAR = 30
_HOUR = timedelta(hours=1)
WORTH = 0.001
"""A gain of less than this share is none that anybody would see."""
NAMES: dict[Badput, str] = {
    Badput.STARTUP: "start-up",
    Badput.SAVE: "saving checkpoints",
    Badput.WASTED: "steps done again",
    Badput.RECOVERY: "between attempts",
    Badput.STALL: "stalled",
    Badput.UNKNOWN: "not known",
}
"""Google's names for people."""
_STYLES = {Badput.UNKNOWN: "dim", Badput.STARTUP: "yellow", Badput.SAVE: "yellow"}


def tell(console: Console, told: Report) -> None:
    """Print the report: the sums first, then what each part of it cost, last what is not known."""
    alone = told.jobs[0] if told.jobs_in_all == 1 and told.jobs else None
    console.print(_headline(told, alone))
    if told.total.runs == 0:
        console.print(words("No attempt ran in that time.", "dim"))
    else:
        console.print(_ratios(told))
        console.print()
        console.print(_where(told.total, console.width))
    if alone:
        _titled(console, "Attempts", _attempts(alone.attempts, told.until), len(alone.attempts))
    elif told.jobs:
        _titled(console, "By partition", _groups(told.partitions, told.currency), len(told.partitions))
        _titled(console, "Jobs that lost most", _jobs(told.jobs), told.jobs_in_all)
    if told.interruptions:
        _titled(console, "What caused it", _causes(told.causes, told.currency), len(told.causes))
        _titled(console, "Interruptions, the dearest first", _costs(told, console.width), told.interruptions_in_all)
    _intervals(console, told, alone)
    for note in told.notes:
        console.print(words(f"Note: {note}", "dim"))


def _titled(console: Console, title: str, table: Table, rows: int) -> None:
    console.print()
    console.print(words(title, "bold"))
    console.print(table)
    if rows > SHOWN:
        console.print(words(f"and {rows - SHOWN} more: -o json", "dim"))


def _headline(told: Report, alone: JobAccount | None) -> Text:
    if alone:
        facts = alone.facts
        where = f"partition {facts.partition}" if facts.partition else ""
        whose = ", ".join(filter(None, (facts.user, where)))
        gpus = max(attempt.gpus for attempt in alone.attempts)
        nodes = max(attempt.nodes for attempt in alone.attempts)
        size = ", ".join(filter(None, (count(nodes, "node"), count(gpus, "GPU") if gpus else "")))
        head = [(f"Job {facts.job}", "bold"), (facts.name, ""), (whose, "dim"), (size, "dim")]
        return joined([*head, ("running" if alone.running else "", "green")])
    head = [(told.scope[:1].upper() + told.scope[1:], "bold"), (count(told.jobs_in_all, "job"), "")]
    since = f"since {local_short(told.since, told.until)}" if told.since else ""
    return joined([*head, (count(told.total.runs, "attempt"), ""), (since, "dim")])


def _ratios(told: Report) -> Text:
    account = told.total
    pieces = [
        (f"Goodput {percent(account.goodput)}", "bold green"),
        (f"ETTR {percent(account.ettr)}", ""),
        (f"{account.explained:.0%} of the time explained" if account.explained is not None else "", "dim"),
        (count(account.interruptions, "interruption"), "" if account.interruptions else "dim"),
        (f"{_lost(account)} lost" if account.explained else "", ""),
        (money(told.money_lost, told.currency), "bold"),
    ]
    return joined(pieces, between=" · ")


def percent(ratio: tuple[float, float] | None) -> str:
    """`71.2 %`, or a range where not all is known: `60 to 85 %`."""
    if ratio is None:
        return "not known"
    low, high = (100 * each for each in ratio)
    return f"{low:.1f} %" if high - low < 0.05 else f"{low:.0f} to {high:.0f} %"  # noqa: PLR2004 - both print alike


def hours(gpu: float, node: float, *, known: bool) -> str:
    """GPU-hours, or node-hours where the GPUs are not known."""
    return f"{_number(gpu)} GPU-h" if known else f"{_number(node)} node-h"


def _lost(account: Account) -> str:
    if not account.explained:
        return "not known"
    return hours(account.gpu_hours_lost, account.node_hours_lost, known=bool(account.gpu_hours))


def lasted(time: timedelta) -> str:
    """As `span`, but in hours however many they are: days would hide too much."""
    return f"{time / _HOUR:,.1f} h" if time > 1.5 * _HOUR else span(time)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004 - small ones need their hundredths


def money(amount: float | None, currency: str) -> str:
    """An amount; empty where no price is known."""
    return "" if amount is None else f"{amount:,.2f} {currency}"


def _where(account: Account, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title, justify in (("WHERE THE TIME WENT", "left"), ("TIME", "right"), ("SHARE", "right"), ("", "left")):
        table.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True)
    bar = min(_BAR, max(8, width - 50))

    def row(name: Text, seconds: float, style: str, *, bars: bool = True) -> None:
        share = seconds / account.elapsed.total_seconds() if account.elapsed else 0.0
        length = "█" * round(bar * share) or ("▏" if seconds else "")
        told = lasted(account.elapsed * share)
        table.add_row(name, told, f"{share:.1%}", words(length, style) if bars else "", style="" if bars else "dim")

    row(words("productive", "green"), account.productive.total_seconds(), "green")
    for kind, time in account.lost.items():
        style = _STYLES.get(kind, "red")
        row(words(NAMES[kind], style), time.total_seconds(), style)
        inside = {Badput.RECOVERY: account.gap_parts, Badput.STALL: account.tail_parts}.get(kind, {})
        for part, length in inside.items():
            if len(inside) > 1 or part != "stall":
                row(words(f"  {part}"), length.total_seconds(), "dim", bars=False)
    table.add_row(words("in all", "dim"), lasted(account.elapsed), "", "")
    if account.queued:
        table.add_row(words("before the first start: queue wait", "dim"), words(span(account.queued), "dim"), "", "")
    return table


def _table(*titles: str) -> Table:
    """Titles that begin with `>` are of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        right = title.startswith(">")
        table.add_column(title.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return table


def _attempts(attempts: Sequence[AttemptAccount], now: datetime) -> Table:
    table = _table(">#", "STARTED", ">RAN", "STEPS", "END", ">GOODPUT", "LOST MOST TO")
    for each in attempts[-SHOWN:]:
        known = f"{each.first_step if each.first_step is not None else '?'} to {each.last_step}"
        steps = known if each.last_step is not None else "none seen" if each.read else "not read"
        end = "runs" if each.running else "failed" if each.ended_badly else "completed" if each.completed else "ended"
        table.add_row(
            str(each.number),
            words(local_short(each.started_at, now), "dim"),
            span(each.ended_at - each.started_at),
            steps,
            words(end, "red" if each.ended_badly else "green" if each.running or each.completed else ""),
            percent(each.account.goodput),
            _most(each.account),
        )
    return table


def _most(account: Account) -> Text:
    ordered = sorted(account.lost.items(), key=lambda item: -item[1])[:2]
    return words(", ".join(f"{NAMES[kind]} {span(time)}" for kind, time in ordered))


def _groups(groups: Iterable[Group], currency: str) -> Table:
    table = _table("PARTITION", ">JOBS", ">GOODPUT", ">EXPLAINED", ">INTERRUPTIONS", ">LOST", ">")
    for group in list(groups)[:SHOWN]:
        account = group.total
        table.add_row(
            words(group.name or "none", "bold"),
            str(group.jobs),
            percent(account.goodput),
            f"{account.explained:.0%}" if account.explained is not None else "",
            str(account.interruptions),
            _lost(account),
            money(group.money_lost, currency),
        )
    return table


def _jobs(jobs: Iterable[JobAccount]) -> Table:
    table = _table("JOB", "NAME", "USER", ">ATTEMPTS", ">GOODPUT", ">LOST", "MOST TO")
    for job in list(jobs)[:SHOWN]:
        account = job.total
        table.add_row(
            words(job.facts.job, "bold"),
            words(job.facts.name, "", 24),
            words(job.facts.user, "dim"),
            str(account.runs),
            percent(account.goodput),
            _lost(account),
            _most(account),
        )
    return table


def _causes(causes: Iterable[CauseCost], currency: str) -> Table:
    table = _table("CAUSE", "", ">TIMES", ">TIME LOST", ">", ">")
    for cause in list(causes)[:SHOWN]:
        at_least = "at least " if cause.unknown else ""
        table.add_row(
            words(cause.cause, "bold"),
            words(cause.category, "dim"),
            str(cause.count),
            f"{at_least}{lasted(cause.time)}",
            hours(cause.gpu_hours, cause.node_hours, known=bool(cause.gpu_hours)),
            money(cause.money, currency),
        )
    return table


def _costs(told: Report, width: int) -> Table:
    wide = width >= _WIDE
    table = _table("ENDED", "INCIDENT", *(("CAUSE",) if wide else ()), ">LOST", ">", "OF IT")
    for cost in told.interruptions[:SHOWN]:
        lost = hours(cost.gpu_hours, cost.node_hours, known=bool(cost.gpus))
        worth = money(cost.money, told.currency)
        name = words(cost.incident or "none", "bold" if cost.incident else "dim")
        cause = words(cost.cause)
        table.add_row(
            words(local_short(cost.at, told.until), "dim"),
            *((name, cause) if wide else (Text("\n").join([name, cause]),)),
            lasted(cost.time) if cost.time else "not known",
            f"{lost}\n{worth}" if worth else lost if cost.time else "",
            _parts(cost),
        )
    return table


def _parts(cost: Cost) -> Text:
    known = [f"{part} {span(time)}" for part, time in cost.parts.items()]
    not_known = [f"{part} not known" for part in cost.unknown]
    return words(", ".join([*known, *not_known, *(["goes on"] if cost.ongoing else [])]))


def _intervals(console: Console, told: Report, alone: JobAccount | None) -> None:
    """What other checkpoint intervals would save; of a job alone also why nothing is said."""
    advised = [job for job in told.jobs if job.interval]
    if not advised and alone is None:
        return
    console.print()
    console.print(words("Checkpoint interval", "bold"))
    for job in advised[:SHOWN]:
        if job.interval:
            head = "" if alone else f"job {job.facts.job}: "
            console.print(words(head + advice(job.interval, job.total)))
    if not advised and alone:
        account = alone.total
        console.print(
            words(
                f"Nothing to say yet: {count(account.interruptions, 'interruption')}, "
                f"{count(account.timed_saves, 'timed save')}; it takes {LEAST} of each.",
                "dim",
            )
        )


def advice(found: Interval, account: Account) -> str:
    """The measured rates, what would be best by them, and how well that is known."""
    low, high = found.best_range
    least, most = found.saved_range
    measured = (
        f"now every {span(found.now)}; a save takes {span(found.save_cost)}, and an interruption comes every "
        f"{span(found.mean_time_between)} of training ({found.interruptions} seen; 95 % interval "
        f"{span(found.between[0])} to {span(found.between[1])}). Best by Daly: every {span(found.best)} "
        f"({span(low)} to {span(high)})"
    )
    if found.saved_share < WORTH:
        return f"{measured}: nothing to gain."
    trained = found.saved_share * account.training / _HOUR
    gpu, node = (trained * _per_hour(each, account) for each in (account.gpu_hours, account.node_hours))
    worth = hours(gpu, node, known=bool(account.gpu_hours))
    share = f"{found.saved_share:.1%} of the training time ({least:.1%} to {most:.1%})"
    return f"{measured}: it would have saved {share}, {worth}."


def _per_hour(hours_: float, account: Account) -> float:
    elapsed = account.elapsed.total_seconds() / 3600
    return hours_ / elapsed if elapsed else 0.0
