"""Goodput: where the time of the cluster's jobs went, and what interruptions cost."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial

from relight.console.text import count, span
from relight.console.web.errors import Refused
from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_parts import (
    badge,
    card,
    cell,
    choice,
    clock,
    empty,
    facts,
    head,
    notice,
    search,
    sub,
    table,
)
from relight.console.web.pages.asked import Asked, View
from relight.console.web.pages.kept import KEPT
from relight.console.web.roles import May
from relight.domain.goodput import Account, Badput
from relight.domain.goodput_report import Report

SHOWN = 20
_SPANS = {"1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30), "90d": timedelta(days=90)}
_SINCE = [("1d", "Last day"), ("7d", "Last week"), ("30d", "Last 30 days"), ("90d", "Last 90 days")]
_NAMES = {
    Badput.STARTUP: ("Starting up", "p2"),
    Badput.SAVE: ("Waiting for saves", "p3"),
    Badput.WASTED: ("Done again", "p4"),
    Badput.RECOVERY: ("Between attempts", "p5"),
    Badput.STALL: ("Standing still", "p6"),
    Badput.UNKNOWN: ("Not seen", "p0"),
}


async def view(asked: Asked) -> View:
    """The page; `q` is a partition or an account."""
    from relight.console.errors import NotFoundStop
    from relight.console.goodput import Wanted, account

    if not asked.who.may(May.SEE_ALL):
        raise Refused("Goodput of the whole cluster is for those who may see all jobs")
    since = _SPANS.get(asked.query.get("since", ""), _SPANS["7d"])
    word = asked.query.get("q", "").strip()[:200]
    known = Wanted(partition=word, since=since)
    try:
        reckon = partial(account, asked.desk.reading.ledger, asked.desk.settings, known, asked.now)
        found = await KEPT.get(("goodput", known), reckon)
    except NotFoundStop as error:
        return View(
            "Goodput", (_head(asked.query), empty("Nothing to count", str(error).partition("\n")[0], fine=False))
        )
    return View("Goodput", show(found, asked))


def _head(query: Mapping[str, str]) -> Html:
    since = choice("since", "Since when", _SINCE, query.get("since", "7d"))
    return join(head("Goodput"), search("/goodput", query.get("q", ""), "Partition", since))


def show(found: Report, asked: Asked) -> tuple[Html, ...]:
    """Its blocks."""
    notes = [notice("", note) for note in found.notes]
    if found.total.elapsed <= timedelta():
        return (_head(asked.query), empty("No job ran in this time", "Nothing to count.", fine=False), join(*notes))
    return (
        join(_head(asked.query), _totals(found)),
        tag("div", _causes(found), _partitions(found), class_="cards wide"),
        _jobs(found),
        _interruptions(found, asked),
        join(*notes),
    )


def share(range_: tuple[float, float] | None) -> str:
    """A share that is known at least and at most."""
    if range_ is None:
        return "-"
    low, high = (f"{each:.1%}" for each in range_)
    return low if low == high else f"{low} to {high}"


def _totals(found: Report) -> Html:
    total = found.total
    money = [("Lost", f"{found.money_lost:,.0f} {found.currency}")] if found.money_lost is not None else []
    pairs = [
        ("Goodput", tag("span", share(total.goodput), class_="strong")),
        ("With the queue (ETTR)", share(total.ettr)),
        ("GPU hours", f"{total.gpu_hours:,.0f}, of these lost {total.gpu_hours_lost:,.0f}"),
        ("Interruptions", f"{found.interruptions_in_all} of {count(found.jobs_in_all, 'job')}"),
        ("Done again", f"{total.steps_redone:,} steps"),
        *money,
    ]
    return card("Where the time went", bar(total), facts(pairs), beside=found.scope, class_="stack")


def bar(total: Account) -> Html:
    """The time as one bar of its parts, each named below it."""
    whole = total.elapsed.total_seconds() or 1.0
    parts = [
        ("Training", "p1", total.productive),
        *((*_NAMES[kind], total.lost.get(kind, timedelta())) for kind in Badput),
    ]
    known = [(name, cls, length) for name, cls, length in parts if length > timedelta()]
    at, boxes = 0.0, []
    for _, cls, length in known:
        wide = 1000 * length.total_seconds() / whole
        boxes.append(tag("rect", x=round(at, 1), y=0, width=round(wide, 1), height=20, class_=cls))
        at += wide
    told = "; ".join(f"{name} {length.total_seconds() / whole:.1%}" for name, _, length in known)
    picture = tag(
        "svg", boxes, viewBox="0 0 1000 20", preserveAspectRatio="none", role="img", aria_label=told, class_="parts"
    )
    names = [
        tag(
            "span",
            tag("span", class_=f"swatch {cls}"),
            f"{name} {length.total_seconds() / whole:.1%}",
            tag("span", f" {span(length)}", class_="soft"),
        )
        for name, cls, length in known
    ]
    return tag("figure", picture, tag("figcaption", names, class_="key"))


def _causes(found: Report) -> Html | None:
    if not found.causes:
        return None
    listed = [
        [
            cell(tag("span", each.cause, class_="strong"), sub(each.category)),
            cell(each.count, kind="r num", label="Times:"),
            cell(span(each.time), kind="r num", label="Time:"),
            cell(f"{each.gpu_hours:,.1f}", kind="r num", label="GPU hours:"),
        ]
        for each in found.causes[:SHOWN]
    ]
    headings = (("Cause", ""), ("Times", "r"), ("Time", "r"), ("GPU hours", "r"))
    return tag(
        "section", tag("h2", "What interruptions cost, by cause"), table(headings, listed, "Causes"), class_="tight"
    )


def _partitions(found: Report) -> Html | None:
    if not found.partitions:
        return None
    listed = [
        [
            cell(tag("span", each.name or "not known", class_="strong")),
            cell(each.jobs, kind="r num", label="Jobs:"),
            cell(share(each.total.goodput), kind="r num", label="Goodput:"),
            cell(f"{each.total.gpu_hours_lost:,.1f}", kind="r num", label="GPU hours lost:"),
        ]
        for each in found.partitions[:SHOWN]
    ]
    headings = (("Partition", ""), ("Jobs", "r"), ("Goodput", "r"), ("GPU hours lost", "r"))
    return tag("section", tag("h2", "By partition"), table(headings, listed, "Partitions"), class_="tight")


def _jobs(found: Report) -> Html:
    listed = [
        [
            cell(
                link(path("jobs", each.facts.job), each.facts.job, class_="go mono", id=f"row-{each.facts.lineage}"),
                f" {each.facts.name}",
                sub(each.facts.user),
            ),
            cell(share(each.total.goodput), kind="r num", label="Goodput:"),
            cell(span(each.total.elapsed), kind="r num", label="Time:"),
            cell(each.total.interruptions, kind="r num", label="Interruptions:"),
            cell(f"{each.total.gpu_hours_lost:,.1f}", kind="r num", label="GPU hours lost:"),
        ]
        for each in found.jobs[:SHOWN]
    ]
    headings = (("Job", ""), ("Goodput", "r"), ("Time", "r"), ("Interruptions", "r"), ("GPU hours lost", "r"))
    body = table(headings, listed, "Jobs, those that lost most first")
    return tag("section", tag("h2", f"Jobs that lost most, of {found.jobs_in_all}"), body, class_="tight")


def _interruptions(found: Report, asked: Asked) -> Html:
    if not found.interruptions:
        return Html()
    listed = [
        [
            cell(
                clock(each.at, asked.now),
                sub(link(path("incidents", each.incident), each.incident, class_="mono")) if each.incident else None,
            ),
            cell(tag("span", each.cause, class_="strong"), sub(f"job {each.attempt.job_id}")),
            cell(badge(each.outcome) if each.outcome else "-"),
            cell(span(each.time), sub("and goes on") if each.ongoing else None, kind="r num", label="Time:"),
            cell(f"{each.gpu_hours:,.1f}", kind="r num", label="GPU hours:"),
        ]
        for each in found.interruptions[:SHOWN]
    ]
    headings = (("When", ""), ("Cause", ""), ("Outcome", ""), ("Time", "r"), ("GPU hours", "r"))
    return tag(
        "section",
        tag("h2", "Dearest interruptions"),
        table(headings, listed, "Interruptions, the dearest first"),
        class_="tight",
    )
