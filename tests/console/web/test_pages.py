"""The pages in a real browser (Debian's chromium), over a ledger as after a bad night (`lab.console_seed`, made up).

Pictures of what was seen are left in `.relight/tests/console/`.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.request import urlopen

import pytest

from relight.clients.ledger_sql import SqlLedger
from relight.clients.signing_keys import public_half, read_key
from relight.config.settings import load
from relight.domain.base import Value
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.policy import Verdict
from relight.domain.rights import site_approver
from relight.lab.console_seed import write
from relight.workers.keys import make_approval_key

T = TypeVar("T")
playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
CHROMIUM = shutil.which("chromium") or ""
PICTURES = Path(__file__).parents[3] / ".relight" / "tests" / "console"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAITING, RECOVERED = "i3fa9c1d2e4", "i07be11ab02"
OLD = 120
WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
PLACES = {
    "now": "/",
    "incidents": "/incidents?q=gpu-044",
    "incident-waiting": f"/incidents/{WAITING}",
    "incident-recovered": f"/incidents/{RECOVERED}",
    "incident-not-there": "/incidents/i000nothere",
    "jobs": "/jobs?q=487",
    "job": "/jobs/48671",
    "nodes": "/nodes",
    "node": "/nodes/gpu-057",
    "goodput": "/goodput?q=dev",
    "scorecard": "/scorecard?since=7d",
    "audit": "/audit?incident=i0000000e05",
    "settings": "/settings?q=policy.hang",
}
"""Lists are kept short: axe looks at each row."""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium")]


def done(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a thread of its own: in this one Playwright keeps a loop running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Site(NamedTuple):
    """A console that serves, and its ledger."""

    url: str
    ledger: SqlLedger
    decisions: Path

    def commit(self, **change: object) -> None:
        done(self.ledger.commit(Change(**change)))

    def sent(self) -> list[str]:
        return self.decisions.read_text().splitlines() if self.decisions.exists() else []


def free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return int(there.getsockname()[1])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("console")
    (folder / "data").mkdir(mode=0o700)
    config = folder / "relight.yaml"
    config.write_text(f"data: {folder / 'data'}\ntemporal:\n  address: 127.0.0.1:1\npolicy:\n  mode: approve\n")
    settings = load(config)
    make_approval_key(settings.approval_key)
    ledger = SqlLedger.open(settings.ledger_url, settings.ledger_key)
    site_key = site_approver(public_half(read_key(settings.approval_key)))
    done(write(ledger, datetime.now(UTC), settings.cluster, many=OLD, approvers=(site_key,)))
    port, decisions = free_port(), folder / "decisions"
    command = [sys.executable, str(Path(__file__).with_name("console_server.py")), str(config), str(port), decisions]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "NICEGUI_SCREEN_TEST_PORT": ""})
    try:
        url = f"http://127.0.0.1:{port}"
        answers(url, server, folder / "log")
        yield Site(url, ledger, decisions)
    finally:
        server.terminate()
        server.wait(20)
        ledger.close()


def answers(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until it does; a wait of a start, not of a behaviour."""
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        with suppress(OSError), urlopen(f"{url}/healthz"):  # noqa: S310 - ours, on loopback
            return
        time.sleep(0.1)
    pytest.fail(f"no answer: {log.read_text()}")


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Seen:
    """A tab, and what must not be seen in it."""

    def __init__(self, tab: object, site: Site) -> None:
        self.tab, self.site = tab, site
        self.errors: list[str] = []
        self.outside: list[str] = []
        tab.set_default_timeout(20_000)
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("console", lambda told: self.errors.append(told.text) if told.type == "error" else None)
        ours = (site.url, site.url.replace("http", "ws"), "data:")
        tab.on("request", lambda asked: None if asked.url.startswith(ours) else self.outside.append(asked.url))

    def go(self, place: str) -> None:
        self.tab.goto(self.site.url + place)
        self.tab.wait_for_selector("#main h1, #main .empty")

    def text(self) -> str:
        return str(self.tab.inner_text("#main"))

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(path=PICTURES / f"{name}.png", full_page=True)


@pytest.fixture
def seen(chromium: object, site: Site) -> Iterator[Seen]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield Seen(context.new_page(), site)
    context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_page_is_accessible_fits_and_loads_nothing_from_outside(
    chromium: object, site: Site, scheme: str, width: int
) -> None:
    """WCAG A and AA by axe, on a desk in the light and on a phone in the dark; no page scrolls sideways."""
    context = chromium.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    seen = Seen(context.new_page(), site)
    found = []
    for name, place in PLACES.items():
        seen.go(place)
        told = axe.Axe().run(seen.tab, options=WCAG).response["violations"]
        found += [(place, each["id"], each["nodes"][0]["target"]) for each in told]
        wider = seen.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        found += [(place, f"{wider} px wider than the screen")] if wider > 0 else []
        seen.picture(f"{name}-{scheme}-{width}")
    context.close()
    assert (found, seen.errors, seen.outside) == ([], [], [])


def test_a_log_line_with_a_script_is_text(seen: Seen) -> None:
    """What a job prints is shown, and does nothing: no element, no control character."""
    seen.go(f"/incidents/{WAITING}")
    seen.tab.click("summary:has-text('The lines around it')")
    told = seen.tab.inner_text("#around")
    assert "</pre><script>window.owned=1</script><img src=x onerror=window.owned=1>" in told
    assert all(character.isprintable() or character == "\n" for character in told)
    assert seen.tab.evaluate(
        "[window.owned ?? null, document.querySelectorAll('#around img, #around script').length]"
    ) == [
        None,
        0,
    ]
    seen.go(f"/audit?incident={WAITING}")
    for each in seen.tab.query_selector_all("#main summary"):
        each.click()
    assert "onerror=window.owned=1" in seen.text()
    assert seen.tab.evaluate("window.owned ?? null") is None


def test_an_incident_that_opens_shows_without_a_reload(seen: Seen) -> None:
    """*Now* shows it, and the list too."""
    seen.go("/")
    template = done(seen.site.ledger.incident("i00000011b8"))
    new = template.model_copy(update={"id": "ifeed000001", "opened_at": datetime.now(UTC)})
    entry = Entry(id="test/opened", kind=RowKind.OPENED, at=datetime.now(UTC), cluster="main", incident=new.id)
    assert new.id not in seen.text()
    seen.site.commit(entries=(entry,), incidents=(new,))
    seen.tab.wait_for_selector(f"#row-{new.id}")


def test_filters_stand_in_the_address(seen: Seen) -> None:
    """A choice is applied at once and can be sent to somebody; search and pages are the server's."""
    seen.go("/incidents")
    seen.tab.select_option("select[name=state]", "recovered")
    seen.tab.wait_for_url("**/incidents?*state=recovered*")
    seen.tab.wait_for_selector("a.go")
    states = set(seen.tab.locator("td:last-child .badge").all_inner_texts())
    assert states == {"recovered"}
    seen.go("/incidents?q=gpu-044&state=open")
    assert seen.tab.locator("a.go").all_inner_texts() == ["i00000010a7"]
    seen.go("/incidents?q=there-is-no-such-thing")
    assert "No incident fits" in seen.text()
    seen.go("/incidents")
    first = set(seen.tab.locator("a.go").all_inner_texts())
    seen.tab.click("a:has-text('Older')")
    seen.tab.wait_for_url("**after=*")
    seen.tab.wait_for_selector("a.go")
    older = set(seen.tab.locator("a.go").all_inner_texts())
    assert older
    assert not first & older


def test_the_keyboard_is_enough(seen: Seen) -> None:
    """`j`, Enter, `/`, `?`, Escape; and the first Tab offers to skip the navigation."""
    seen.go("/incidents")
    seen.tab.keyboard.press("Tab")
    assert seen.tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    seen.tab.keyboard.press("j")
    seen.tab.keyboard.press("j")
    name = seen.tab.evaluate("document.activeElement.textContent")
    assert name == seen.tab.locator("a.go").nth(1).inner_text()
    seen.tab.keyboard.press("?")
    assert seen.tab.is_visible("#keys")
    seen.tab.keyboard.press("Escape")
    assert not seen.tab.is_visible("#keys")
    seen.tab.locator(f"#row-{name}").focus()
    seen.tab.keyboard.press("Enter")
    seen.tab.wait_for_url(f"**/incidents/{name}")
    seen.tab.wait_for_selector("h1")
    seen.tab.keyboard.press("/")
    assert seen.tab.evaluate("document.activeElement.id") == "search"


# --- decisions ----


def test_a_double_click_sends_one_decision_of_the_plan_that_was_shown(seen: Seen) -> None:
    """The digest is the page's; the answer says what became of it; a rejection needs a reason."""
    before = len(seen.site.sent())
    seen.go("/incidents/i00000010a7")
    digest = seen.tab.get_attribute("#approve", "data-digest")
    seen.tab.click("#reject")
    assert "Say why you reject it" in seen.tab.inner_text(".decide .answer")
    seen.tab.fill("#reason", "seen the same last week")
    seen.tab.dblclick("#approve")
    seen.tab.wait_for_selector(".notice.good:has-text('1 of 1 approval')")
    told = seen.site.sent()[before:]
    assert [line.split(" ", 1)[1] for line in told] == [f"i00000010a7 True {digest} seen the same last week"]


def test_a_refusal_is_said_in_its_own_words(seen: Seen) -> None:
    """Nothing is lost in a red box without a reason."""
    seen.go("/incidents/i00000010a7")
    seen.tab.fill("#reason", "too late")
    seen.tab.click("#reject")
    seen.tab.wait_for_selector(".notice.bad:has-text('the incident has ended meanwhile')")


def test_a_plan_that_changes_must_be_looked_at_again(seen: Seen) -> None:
    """What is being typed stays; the buttons go until the new plan has been asked for; then they carry its digest."""
    seen.go(f"/incidents/{WAITING}")
    old = seen.tab.get_attribute("#approve", "data-digest")
    seen.tab.fill("#reason", "half a sent")
    note = Entry(
        id="test/note",
        kind=RowKind.NOTE,
        at=datetime.now(UTC),
        cluster="main",
        incident=WAITING,
        body={"text": "a note"},
    )
    seen.site.commit(entries=(note,))
    seen.tab.wait_for_selector(".line li:has-text('a note')")
    assert seen.tab.input_value("#reason") == "half a sent"
    new = plan_anew(seen.site, WAITING)
    seen.tab.wait_for_selector("text=The plan has changed while this page was open")
    assert not seen.tab.query_selector("#approve")
    seen.picture("incident-plan-changed")
    seen.tab.click("text=Show me the new plan")
    seen.tab.wait_for_selector("#approve")
    assert seen.tab.get_attribute("#approve", "data-digest") == new != old


def plan_anew(site: Site, name: str) -> str:
    """Another plan for the incident, as the workflow writes it; returns its digest."""
    incident = done(site.ledger.incident(name))
    rows = done(site.ledger.rows(incident=name, kind=RowKind.PLANNED))
    verdict = Verdict.model_validate(rows[-1].body)
    plan = verdict.plan.model_copy(update={"drain": ()})
    body = plain(verdict.model_copy(update={"plan": plan}))
    entry = Entry(
        id="test/planned",
        kind=RowKind.PLANNED,
        at=datetime.now(UTC),
        cluster="main",
        incident=name,
        attempt=str(incident.attempt),
        body={"digest": plan.digest, **body},
    )
    site.commit(entries=(entry,), incidents=(incident.model_copy(update={"plan": plan}),))
    return plan.digest


def plain(value: Value) -> dict[str, object]:
    return value.model_dump(mode="json")
