"""The score card: how often Relight was right, by detector and action, and what may be let run by itself."""

from datetime import timedelta
from functools import partial

from relight.console.web.errors import Refused
from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_parts import card, cell, choice, clock, empty, head, notice, pill, sub, table
from relight.console.web.pages.asked import Asked, View
from relight.console.web.pages.kept import KEPT
from relight.console.web.roles import May
from relight.domain.scorecard import Judged, Verdict
from relight.domain.scorecard_card import Card, CardRow, Missed, Rate

SHOWN = 50
_SPANS = {"7d": timedelta(days=7), "30d": timedelta(days=30), "90d": timedelta(days=90), "365d": timedelta(days=365)}
_SINCE = [("7d", "Last week"), ("30d", "Last 30 days"), ("90d", "Last 90 days"), ("365d", "Last year")]
_HEADINGS = (
    ("After", ""),
    ("Right", "r"),
    ("Wrong", "r"),
    ("Not known", "r"),
    ("Missed", "r"),
    ("Precision", "r"),
    ("Recall", "r"),
    ("May it run by itself?", ""),
)
_KINDS = {Verdict.RIGHT: "good", Verdict.WRONG: "bad"}


async def view(asked: Asked) -> View:
    """The page."""
    from relight.console.scorecard import card as made

    if not asked.who.may(May.SEE_ALL):
        raise Refused("The score card is for those who may see all jobs")
    since = _SPANS.get(asked.query.get("since", ""), _SPANS["30d"])
    reckon = partial(made, asked.desk.reading.ledger, asked.desk.settings, asked.now - since, asked.now)
    found = await KEPT.get(("scorecard", since), reckon)
    return View("Score card", show(found, asked))


def show(found: Card, asked: Asked) -> tuple[Html, ...]:
    """Its blocks."""
    since = choice("since", "Since when", _SINCE, asked.query.get("since", "30d"))
    line = tag("form", since, tag("button", "Show"), action="/scorecard", method="get", class_="filters")
    top = join(head("Score card", "what it did, or would have done, against what then happened"), line)
    notes = join(*(notice("", note) for note in found.notes))
    if not found.rows:
        return (top, empty("Nothing to judge yet", "No decision has been made in this time.", fine=False), notes)
    rows = table(_HEADINGS, (_row(row) for row in found.rows), "Detectors and actions")
    return (top, rows, _policy(found), _missed(found.missed, asked), _judged(found.judged, asked), notes)


def rate(found: Rate | None) -> Html:
    """A share with its 95 % interval."""
    if found is None:
        return tag("span", "-", class_="soft")
    return join(
        tag("span", f"{found.value:.0%}", class_="strong"), sub(f"{found.low:.0%} to {found.high:.0%}, of {found.of}")
    )


def _row(row: CardRow) -> list[Html]:
    gate = tag("span", "not asked of a policy", class_="soft")
    if row.gate:
        kind = "good" if row.gate.may else "warn"
        gate = join(pill("may" if row.gate.may else "not yet", kind), sub(f"{row.gate.why}; now {row.gate.now}"))
    return [
        cell(tag("span", str(row.kind).replace("_", " "), class_="strong"), f" {row.action}"),
        cell(row.right, kind="r num", label="Right:"),
        cell(tag("span", row.wrong, class_="bad strong" if row.wrong else None), kind="r num", label="Wrong:"),
        cell(row.not_yet + row.unknown, kind="r num", label="Not known:"),
        cell("-" if row.missed is None else row.missed, kind="r num", label="Missed:"),
        cell(rate(row.precision), kind="r num", label="Precision:"),
        cell(rate(row.recall), kind="r num", label="Recall:"),
        cell(gate),
    ]


def _policy(found: Card) -> Html:
    if not found.policy:
        return Html()
    lines = [tag("div", tag("code", line)) for line in found.policy]
    return card("What a policy could now say", tag("div", lines, class_="tight"))


def _missed(missed: tuple[Missed, ...], asked: Asked) -> Html:
    if not missed:
        return Html()
    listed = [
        [
            cell(clock(each.at, asked.now)),
            cell(link(path("jobs", str(each.attempt.job_id)), f"job {each.attempt.job_id}")),
            cell(f"{str(each.kind).replace('_', ' ')} {each.action} {each.node}".strip()),
            cell(each.why),
        ]
        for each in missed[:SHOWN]
    ]
    headings = (("When", ""), ("Job", ""), ("What", ""), ("Why", ""))
    return _titled("Missed, the newest first", table(headings, listed, "Missed interruptions"))


def _judged(judged: tuple[Judged, ...], asked: Asked) -> Html:
    if not judged:
        return Html()
    listed = [_one(each, number, asked) for number, each in enumerate(judged[:SHOWN])]
    headings = (("When", ""), ("What", ""), ("Why", ""), ("Verdict", ""))
    return _titled("Judged one by one, the newest first", table(headings, listed, "Judged decisions"))


def _one(each: Judged, number: int, asked: Asked) -> list[Html]:
    to = link(path("incidents", each.incident), each.incident, class_="go mono", id=f"row-{number}")
    would = "" if each.acted else "would have: "
    return [
        cell(to, sub(clock(each.at, asked.now))),
        cell(f"{would}{each.action} {each.node}".strip(), sub(f"{str(each.kind).replace('_', ' ')}, {each.cause}")),
        cell(each.why),
        cell(pill(str(each.verdict), _KINDS.get(each.verdict, "soft"))),
    ]


def _titled(title: str, body: Html) -> Html:
    return tag("section", tag("h2", title), body, class_="tight")
