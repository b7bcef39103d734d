"""Pieces that all pages share: states, times, facts, notices, empty lists, pagers. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from relight.console.output import state_style
from relight.console.text import local
from relight.console.web.look import Child, Html, link, path, tag
from relight.console.web.read_values import Told

_TONES = (("red", "bad"), ("yellow", "warn"), ("green", "good"), ("blue", "busy"), ("cyan", "busy"), ("dim", "soft"))
"""The command line's styles, and what they are here."""
_CHECK = Html(
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" aria-hidden="true">'
    '<path d="M20 6 9 17l-5-5"></path></svg>'
)


def tone(style: str) -> str:
    """The class for a style of the command line, such as `bold yellow`."""
    return next((found for word, found in _TONES if word in style), "")


def badge(state: str) -> Html:
    """An outcome, a phase or another state in a pill."""
    return tag("span", state.replace("_", " "), class_=f"badge {tone(state_style(state))}")


def pill(words: str, kind: str = "") -> Html:
    """Any short words in a pill; `kind` is good, warn, bad, busy, soft or nothing."""
    return tag("span", words, class_=f"badge {kind}")


def iso(at: datetime) -> str:
    """As the browser reads it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


def ago(at: datetime) -> Html:
    """How long ago; the browser keeps it true."""
    return tag("time", "", datetime=iso(at), data_ago=iso(at), data_local=iso(at))


def lasting(since: datetime) -> Html:
    """How long it has been going on; the browser keeps it true."""
    return tag("time", "", datetime=iso(since), data_for=iso(since), data_local=iso(since))


def until(at: datetime) -> Html:
    """How long is left; the browser keeps it true."""
    return tag("time", "", datetime=iso(at), data_until=iso(at), data_local=iso(at))


def clock(at: datetime, now: datetime) -> Html:
    """The time by the server's clock, as the command line tells it; the browser's own beside it."""
    return tag("time", local(at, now), datetime=iso(at), data_local=iso(at), class_="num")


def facts(pairs: Iterable[tuple[Child, Child]]) -> Html:
    """Labels and what they say."""
    return tag("dl", [(tag("dt", label), tag("dd", value)) for label, value in pairs], class_="facts")


def lines(told: Iterable[Told]) -> Html:
    """Lines for people, each as it is meant."""
    each = [tag("div", line.text, class_="soft" if line.tone == "quiet" else line.tone or None) for line in told]
    return tag("div", each, class_="tight small wrap")


def card(title: Child, /, *children: Child, beside: Child = None, **attributes: str) -> Html:
    """A titled box."""
    heading = tag("h2", title, beside and [" ", tag("span", beside, class_="soft")])
    return tag("section", heading, *children, class_=f"card {attributes.pop('class_', '')}".strip(), **attributes)


def notice(kind: str, *children: Child) -> Html:
    """A sentence that must be seen; `kind` is bad, warn, good or nothing."""
    return tag("div", *children, class_=f"notice {kind}", role="status")


def empty(title: Child, *children: Child, fine: bool = True) -> Html:
    """Where there is nothing to show: what that means."""
    body = [_CHECK if fine else None, tag("h2", title), tag("div", *children)]
    return tag("section", tag("div", body, class_="empty"), class_="card")


def head(title: Child, *right: Child) -> Html:
    """A page's own title."""
    return tag("div", tag("h1", title), right and tag("span", *right, class_="right"), class_="head")


def table(headings: Iterable[tuple[str, str]], rows: Iterable[Iterable[Html]], caption: str) -> Html:
    """A list.

    Args:
        headings: words and class of each column.
        rows: of cells made by `cell`.
        caption: what it lists, for those who do not see it.
    """
    first = tag("tr", [tag("th", words, class_=kind or None, scope="col") for words, kind in headings])
    body = tag("tbody", [tag("tr", row) for row in rows])
    return tag(
        "div",
        tag("table", tag("caption", caption, class_="unseen"), tag("thead", first), body),
        class_="card list",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def cell(*children: Child, kind: str = "", label: str = "") -> Html:
    """A cell; `label` stands before it where columns do not fit."""
    return tag("td", *children, class_=kind or None, data_label=label or None)


def sub(*children: Child) -> Html:
    """A second, softer line."""
    return tag("div", *children, class_="sub")


def pager(place: str, kept: Mapping[str, str], here: str, further: str, told: str = "") -> Html:
    """Where a list goes on.

    Args:
        place: the list's page.
        kept: its filters.
        here: the cursor of the page that is shown; empty for the first.
        further: the cursor of the next one; empty where there is none.
        told: what to say between the two.
    """
    newer = here and link(path(place, **kept), "Newer", class_="button", rel="prev")
    older = further and link(path(place, **kept, after=further), "Older", class_="button", rel="next")
    return tag("nav", tag("span", told, class_="grow"), newer, older, class_="pager", aria_label="More")


def counted(total: int | None) -> str:
    """How many a list has in all; empty where they were not counted."""
    return f"{total:,} found" if total is not None else ""


def choice(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str) -> Html:
    """A filter that is applied as soon as it is chosen."""
    listed = [tag("option", words, value=value, selected=value == chosen) for value, words in options]
    return tag("select", listed, name=name, aria_label=label)


def search(place: str, value: str, hint: str, *filters: Html) -> Html:
    """The line above a list: what is looked for, and the filters beside it. It works without any script."""
    field = tag("input", type="search", name="q", value=value, placeholder=hint, aria_label=hint, autocomplete="off")
    return tag(
        "form", field, filters, tag("button", "Search"), action=place, method="get", class_="filters", role="search"
    )
