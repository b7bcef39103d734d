"""The web console over a real recovery: what the person on call sees and decides in a real browser."""

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relight.domain.ledger import RowKind
from relight.lab import faults
from relight.lab.processes import wait_until
from relight.lab.spec import Profile
from relight.lab.stack import Stack

from .conftest import Lab, NewStack, check_recovered

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("nicegui")
OnPage = Callable[[Callable[[Any], Any]], Any]
CHROMIUM = shutil.which("chromium") or ""
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
pytestmark = [pytest.mark.system, pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium")]


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """In approve; the console is open to who is on this machine."""
    with new_stack(nodes=2, profile=Profile.FAST, mode="approve") as stack:
        yield stack


@pytest.fixture
def on_page(stack: Stack) -> Iterator[OnPage]:
    """Does something in a tab that shows the console's first page.

    In a thread of its own: Playwright runs an event loop in its thread, and `lab` another one in the test's.
    """
    url = stack.start_console()
    log = stack.folder / "console.log"
    wait_until(lambda: "The console of cluster" in log.read_text(), 60, "the console to be ready", 0.1)
    with ThreadPoolExecutor(1) as thread:
        engine = thread.submit(playwright.sync_playwright().start).result()
        browser = thread.submit(engine.chromium.launch, executable_path=CHROMIUM, args=FLAGS).result()
        tab = thread.submit(browser.new_page).result()

        def do(act: Callable[[Any], Any]) -> Any:
            return thread.submit(act, tab).result()

        do(lambda tab: tab.set_default_timeout(60_000))
        do(lambda tab: tab.goto(url))
        yield do
        thread.submit(browser.close).result()
        thread.submit(engine.stop).result()


def test_an_incident_comes_up_by_itself_and_one_click_lets_the_job_train_on(lab: Lab, on_page: OnPage) -> None:
    """From the first page, left open, to the page that says recovered; the workflow has verified who decided what."""
    on_page(lambda tab: tab.wait_for_selector("#main h1"))
    job = lab.train()
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=1))
    on_page(lambda tab: tab.get_by_role("link", name="Look and decide").click())
    on_page(lambda tab: tab.wait_for_selector("#approve"))
    incident = lab.waiting(job)
    assert on_page(lambda tab: tab.url).endswith(f"/incidents/{incident.id}")
    assert f"Job {job}" in on_page(lambda tab: tab.inner_text("h1"))
    on_page(lambda tab: tab.fill("#reason", "seen in the log"))
    on_page(lambda tab: tab.dblclick("#approve"))
    incident = lab.outcome(job)
    check_recovered(lab, job, incident)
    on_page(lambda tab: tab.get_by_text(re.compile("Recovered in .*, past step")).wait_for())
    [decision] = [row.body for row in lab.view.rows(kind=RowKind.DECISION, incident=incident.id)]
    assert decision["counts"]
    assert decision["decision"]["verified"]
    assert decision["decision"]["reason"] == "seen in the log"
    assert lab.restarts(job) == 1
