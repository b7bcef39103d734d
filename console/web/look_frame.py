"""What stands around every page: navigation, search, who is signed in, help. Pure."""

from typing import NamedTuple

from relight.console.web.look import Html, join, link, tag
from relight.console.web.look_parts import pill

PLACES = (
    ("/", "Now"),
    ("/incidents", "Incidents"),
    ("/jobs", "Jobs"),
    ("/nodes", "Nodes"),
    ("", ""),
    ("/goodput", "Goodput"),
    ("/scorecard", "Score card"),
    ("", ""),
    ("/audit", "Audit"),
    ("/settings", "Settings"),
)
"""Addresses and names of the pages; an empty one is a gap."""
_MAIN = 4
"""Places that a phone shows at once; the others stand under *More*."""
_KEYS = (
    ("j k", "next, previous of a list"),
    ("Enter", "open it"),
    ("/", "search"),
    ("g n, g i, g j, g o", "go to now, incidents, jobs, nodes"),
    ("?", "this help"),
    ("Esc", "close, leave a field"),
)
_LOGO = Html(
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" '
    'stroke-linejoin="round" aria-hidden="true"><path d="M4 12a8 8 0 1 1 2.6 5.9"></path>'
    '<path d="M4 19v-4h4"></path><path d="M12 8v4l2.5 1.5"></path></svg>'
)


class Frame(NamedTuple):
    """What the frame says."""

    cluster: str
    place: str = "/"
    """The page that is shown, as in `PLACES`."""
    person: str = ""
    role: str = ""
    dev: bool = False
    """Nobody signs in here."""
    waiting: int = 0
    """Incidents that wait for a person."""
    csrf: str = ""
    """What the form that ends the session must carry; empty: there is no session to end."""


def top(frame: Frame) -> Html:
    """The bar above, the navigation beside (below on a phone) and the help that `?` shows."""
    who = [frame.person, f" ({frame.role})" if frame.role else ""]
    field = tag("input", id="search", type="search", name="q", placeholder="Search incidents, jobs, nodes")
    form = tag(
        "form",
        tag("label", "Search", for_="search", class_="unseen"),
        field,
        action="/incidents",
        method="get",
        class_="search",
        role="search",
    )
    bar = [
        link("/", _LOGO, "Relight", class_="brand"),
        tag("span", frame.cluster, class_="cluster"),
        tag("span", class_="grow"),
        form,
        pill("--dev: no sign-in", "warn") if frame.dev else tag("span", *who, class_="who"),
        _sign_out(frame) if frame.csrf else None,
        tag("button", "Theme", type="button", class_="plain", data_theme_button=True),
        tag("button", "?", type="button", class_="plain who", data_keys="show", aria_label="Keyboard shortcuts"),
    ]
    return join(
        link("#main", "Skip to the content", class_="skip"),
        tag("header", bar, class_="top"),
        tag("nav", [_place(frame, *each) for each in PLACES], class_="side", aria_label="Pages"),
        _tabs(frame),
        _help(),
        tag(
            "div",
            "The console does not answer; trying again",
            id="offline",
            class_="offline",
            role="alert",
            hidden=True,
        ),
    )


def _sign_out(frame: Frame) -> Html:
    """A form, not a link: following a link must not end a session."""
    field = tag("input", type="hidden", name="csrf", value=frame.csrf)
    return tag("form", field, tag("button", "Sign out", class_="plain"), action="/sign-out", method="post")


def _place(frame: Frame, address: str, name: str) -> Html:
    if not address:
        return tag("div", class_="gap")
    tally = (
        tag("span", frame.waiting, class_="tally", title="waiting for a person")
        if frame.waiting and address == "/"
        else None
    )
    return link(address, name, tally, aria_current="page" if frame.place == address else None)


def _tabs(frame: Frame) -> Html:
    main = PLACES[:_MAIN]
    rest = [each for each in PLACES[_MAIN:] if each[0]]
    more = tag("details", tag("summary", "More"), tag("div", [_place(frame, *each) for each in rest]), id="more")
    return tag("nav", [_place(frame, *each) for each in main], more, class_="tabs", aria_label="Pages, on a phone")


def _help() -> Html:
    lines = [
        (
            tag(
                "dt", [tag("kbd", key) for key in keys.split()] if " " in keys and "," not in keys else tag("kbd", keys)
            ),
            tag("dd", what),
        )
        for keys, what in _KEYS
    ]
    body = [
        tag("h2", "Keyboard"),
        tag("dl", lines, class_="facts"),
        tag("button", "Close", type="button", data_keys="hide"),
    ]
    box = tag("div", body, class_="card stack", role="dialog", aria_modal="true", aria_label="Keyboard shortcuts")
    return tag("div", box, id="keys", class_="keys", hidden=True)
