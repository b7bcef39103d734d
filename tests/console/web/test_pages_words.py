"""What the pages say, without a browser: escaping, sentences, and the states where nothing can be shown."""

import socket
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients.ledger import LedgerUnavailableError
from relight.console.errors import Stop
from relight.console.web.app import check_free
from relight.console.web.errors import NotThere, Refused, Unreachable
from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_sign_in import sign_in_page
from relight.console.web.pages import incident, incidents, now, states
from relight.console.web.pages.incident_words import doing, happened, way

from . import views


@given(st.text())
def test_no_text_becomes_an_element_or_ends_an_attribute(text: str) -> None:
    """Whatever a log holds: no tag, no quote, no control or reordering character is left of it."""
    made = tag("p", text, title=text)
    inside = made.removeprefix('<p title="').removesuffix("</p>")
    assert inside.count("<") == 0
    assert inside.count('"') == 1
    assert made.isprintable()


def test_only_what_is_html_already_is_taken_as_it_is() -> None:
    """An f-string around HTML is text again: it is escaped, never the other way round."""
    bold = tag("b", "x")
    assert join(bold) == "<b>x</b>"
    assert join(f"{bold}") == "&lt;b&gt;x&lt;/b&gt;"
    assert isinstance(tag("p", bold), Html)


@pytest.mark.parametrize("href", ["javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "vbscript:x"])
def test_an_address_that_runs_something_is_no_link(href: str) -> None:
    """Such as one that stands in the settings as Temporal's."""
    assert link(href, "there") == "<span>there</span>"
    assert path("incidents", "../x y", q="a&b", none=None) == "/incidents/..%2Fx%20y?q=a%26b"


def test_the_first_sentences_say_what_where_and_what_next() -> None:
    """Ten seconds: what happened, where, and what Relight does."""
    waiting = views.line(views.SCENES[views.WAITING])
    assert happened(waiting) == "Job 48711 llama3-70b-pretrain crashed on gpu-012"
    assert doing(waiting) == "Relight proposes: requeue job 48711 excluding gpu-012; drain gpu-012."
    back = views.line(views.SCENES["i07be11ab02"])
    assert happened(back) == "Job 48671 llama3-70b-pretrain lost node gpu-057"
    assert doing(back) == "Recovered in 48 s: step 1841, past step 1840."
    late = views.line(views.SCENES["i0000000b02"])
    assert doing(late) == "Nobody decided in time, so nothing was done: nobody decided within 30 min."


def test_the_way_back_has_a_length_for_each_leg() -> None:
    """From the first evidence to verified progress; what is not reached has none."""
    scene = views.SCENES["i07be11ab02"]
    legs = way(views.line(scene), views.steps(scene))
    assert [(leg.name, leg.state) for leg in legs] == [
        (name, "done") for name in ("Noticed", "Diagnosed", "Decided", "Restarted", "Verified")
    ]
    assert sum((leg.took or timedelta() for leg in legs), timedelta()) == timedelta(seconds=49.8)
    waiting = views.SCENES[views.WAITING]
    assert [leg.state for leg in way(views.line(waiting), views.steps(waiting))] == ["done", "done", "now", "", ""]
    expired = views.SCENES["i0000000b02"]
    assert [leg.state for leg in way(views.line(expired), views.steps(expired))] == ["done", "done", "failed", "", ""]


def test_who_may_not_decide_sees_no_button_and_why() -> None:
    """No permission is a state of its own."""
    page = views.incident(approval=views.approval(may_approve=False, may_reject=False, why_not="a viewer only looks"))
    told = incident.decision(page, views.DIGEST, None, sending=False)
    assert "a viewer only looks" in told
    assert "<button" not in told
    half = views.incident(approval=views.approval(may_approve=False, why_not="it needs an approver"))
    told = incident.decision(half, views.DIGEST, None, sending=False)
    assert 'data-send="reject"' in told
    assert 'data-send="approve"' not in told


def test_all_quiet_is_said_only_where_all_is_seen() -> None:
    """A blind detector must not look like a healthy cluster."""
    quiet = {"waiting": (), "opened": (), "escalated": ()}
    fine = join(*now.show(views.now(**quiet, well=True, problem="")))
    blind = join(*now.show(views.now(**quiet)))
    assert "All quiet" in fine
    assert "All quiet" not in blind
    assert "metrics" in blind
    assert "not all is seen" in blind


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NotThere("no incident i1"), "Not found"),
        (Refused("eve is user here"), "This is not for you to see"),
        (Unreachable("the database is away"), "tries again by itself"),
        (LedgerUnavailableError("disk I/O error"), "tries again by itself"),
        (ZeroDivisionError("secret"), "Something went wrong here"),
    ],
)
def test_each_failure_has_its_own_page(error: Exception, says: str) -> None:
    """With what helps; what is a fault of ours is not spelled out to everybody."""
    view = states.failed(error)
    told = join(*view.blocks)
    assert says in told
    assert "secret" not in told


def test_an_address_in_use_is_said_before_anything_starts() -> None:
    """Which, and what to do."""
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        there.listen()
        port = there.getsockname()[1]
        with pytest.raises(Stop, match=f"127.0.0.1:{port}: Address already in use\nAnother address: --listen"):
            check_free("127.0.0.1", port)


def test_an_address_that_makes_no_sense_asks_for_everything() -> None:
    """A bad filter is left out, not an error."""
    fits, ask = incidents.wanted({"state": "<script>", "kind": "x", "since": "9y", "q": "x" * 999}, views.NOW)
    assert (fits.outcome, fits.kind, fits.since, len(fits.text), ask.cursor) == ("", "", None, 200, "")


def test_the_sign_in_page_needs_no_script() -> None:
    """And gives back what went wrong as text."""
    from relight.console.web.sign_in import SignInView

    told = sign_in_page(SignInView(token=True, oidc="Sign in with Acme", wrong="<b>no</b>", next="/incidents?q=1"))
    assert "<script" not in told
    assert "&lt;b&gt;no&lt;/b&gt;" in told
    assert 'type="password"' in told
