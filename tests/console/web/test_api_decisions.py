"""Decisions from the web against the real workflow on a real Temporal server; only what acts is a stub."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.client import Client

from relight.clients.signing_keys import make_key, public_half, read_key
from relight.config.settings import Settings
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import RowKind

from ..test_decide import PLAN, closed, listed, needed, site, waiting  # noqa: F401, TID252 - fixtures, too
from ..test_decide import Site as Worked  # noqa: TID252
from .asking import Site
from .asking import site as console_of

RESTART_ONLY = ("restart",)


def console_entry(data: Path, **more: Any) -> dict[str, Any]:
    """The console as the settings list it, with its key."""
    key = data / "console.key"
    if not key.exists():
        make_key(key)
    return {"name": "console", "key": public_half(read_key(key)), **more}


@pytest.fixture
def approvers() -> Any:
    """What the settings list; nobody, where a test does not parametrise it."""
    return lambda _data: []


@pytest.fixture
def settings(data: Path, temporal: Client, approvers: Any, needed: dict[str, int]) -> Settings:  # noqa: F811
    return Settings.model_validate(
        {
            "data": str(data),
            "temporal": {"address": temporal.service_client.config.target_host},
            "policy": {"mode": "approve", "approvers": needed},
            "approvals": {"approvers": approvers(data)},
            "console": {"decisions_per_minute": 3},
        }
    )


@pytest.fixture
async def web(waiting: Incident, settings: Settings) -> AsyncIterator[Site]:  # noqa: F811
    async with console_of(settings) as made:
        yield made


async def said(program: httpx2.AsyncClient, incident: str, *, approve: bool = True, **more: str) -> httpx2.Response:
    body = {"approve": approve, "digest": PLAN.digest, "reason": "seen it", "once": "a-click-of-mine", **more}
    return await program.post(f"/api/v1/incidents/{incident}/decisions", json=body)


async def decisions(worked: Worked) -> list[dict[str, Any]]:
    return [row.body for row in await worked.ledger.rows(kind=RowKind.DECISION)]


def vouching(**more: Any) -> Any:
    """Lists ada with a key of her own, and a console that vouches for her and bob."""

    def made(data: Path) -> list[dict[str, Any]]:
        people = listed(data, ada={})["approvers"]
        return [*people, console_entry(data, vouches_for=["ada", "bob"], **more)]

    return made


async def test_on_a_site_that_lists_nobody_the_sites_key_signs(web: Site, waiting: Incident, site: Worked):  # noqa: F811
    """In the name of who has signed in; the ledger says whose word it was, and by which key."""
    program = web.program("ada", "approver")
    page = (await program.get(f"/api/v1/incidents/{waiting.id}")).json()
    assert (page["approval"]["may_approve"], page["approval"]["why_not"]) == (True, "")
    answer = await said(program, waiting.id)
    assert (answer.status_code, answer.json()) == (200, {"counted": True, "answer": "counted: approved"})
    assert (await closed(site, waiting)).outcome is Outcome.STOPPED
    (row,) = await decisions(site)
    assert row["decision"]["by"] == "ada (console) (by the site key)"
    assert (row["counts"], row["decision"]["verified"], row["decision"]["reason"]) == (True, True, "seen it")


@pytest.mark.parametrize("approvers", [vouching()])
async def test_the_console_signs_for_whom_it_vouches(web: Site, waiting: Incident, site: Worked):  # noqa: F811
    """Bob has no key of his own here; the ledger says that the console signed."""
    answer = await said(web.program("bob", "approver"), waiting.id, approve=False, reason="maintenance")
    assert answer.status_code == 200, answer.text
    end = await closed(site, waiting)
    assert (end.outcome, end.outcome_reason) == (Outcome.REJECTED, "maintenance")
    (row,) = await decisions(site)
    assert row["decision"]["by"] == "bob (signed by console)"


@pytest.mark.parametrize("approvers", [vouching()])
async def test_a_double_click_counts_once_and_both_get_the_same_answer(web: Site, waiting: Incident, site: Worked):  # noqa: F811
    """Also when the second comes after the first was answered."""
    program = web.program("ada", "approver")
    both = await asyncio.gather(*(said(program, waiting.id) for _ in range(2)))
    later = await said(program, waiting.id)
    assert [each.json() for each in (*both, later)] == [{"counted": True, "answer": "counted: approved"}] * 3
    assert len(await decisions(site)) == 1
    other = await said(program, waiting.id, approve=False)
    assert (other.status_code, "used for another decision" in other.text) == (422, True)


@pytest.mark.parametrize("approvers", [vouching()])
async def test_a_plan_that_has_changed_is_refused_in_clear_words(web: Site, waiting: Incident, site: Worked):  # noqa: F811
    """Nothing is sent; the person is told to look at the new plan. Then the right one counts."""
    program = web.program("ada", "approver")
    answer = await said(program, waiting.id, digest="0" * 64, once="an-old-tab")
    assert (answer.status_code, answer.json()["title"]) == (409, "Not counted")
    assert f"its digest is {PLAN.digest[:8]} now, not 00000000" in answer.json()["detail"]
    assert await decisions(site) == []
    assert (await said(program, waiting.id)).status_code == 200
    await closed(site, waiting)
    late = await said(web.program("bob", "approver"), waiting.id)
    assert (late.status_code, "is over: stopped" in late.json()["detail"]) == (409, True)


@pytest.mark.parametrize("approvers", [vouching(may=RESTART_ONLY, owner_may=RESTART_ONLY)])
async def test_who_may_not_is_refused_with_the_reason(web: Site, waiting: Incident, site: Worked):  # noqa: F811
    """By role here, by the site's list, as the user of a job whose plan is more than its restart; and not too often."""
    tries = [
        ("vera", "viewer", 403, "vera is viewer here: that role may not approve"),
        ("olga", "operator", 403, "olga is operator here: that role may not approve"),
        ("ada", "approver", 403, "the console may not sign for ada: stop; decide with your own key: relight approve"),
        ("carol", "admin", 403, "the console may not sign for carol: stop"),
        ("alice", "user", 403, "the job is yours, but the plan is more than its restart (stop): an approver decides"),
        ("mallory", "user", 404, f"no incident {waiting.id}"),
    ]
    for name, role, status, told in tries:
        answer = await said(web.program(name, role), waiting.id)
        assert (answer.status_code, told in answer.json()["detail"]) == (status, True), answer.text
    seen = (await web.program("ada", "approver").get(f"/api/v1/incidents/{waiting.id}")).json()["approval"]
    assert (seen["may_approve"], seen["may_reject"], "may not sign for ada" in seen["why_not"]) == (False, True, True)
    program = web.program("vera", "viewer")
    last = [await said(program, waiting.id, once=f"another-{number}") for number in range(3)]
    assert [each.status_code for each in last] == [403, 403, 429]
    assert int(last[-1].headers["retry-after"]) > 0
    assert await decisions(site) == []


@pytest.mark.parametrize("approvers", [vouching()])
async def test_a_forged_word_of_the_console_does_not_count(web: Site, waiting: Incident, site: Worked, data: Path):  # noqa: F811
    """The workflow judges for itself: another key in the console's file signs nothing that counts."""
    (data / "console.key").unlink()
    make_key(data / "console.key")
    answer = await said(web.program("ada", "approver"), waiting.id)
    assert (answer.status_code, "lets no console sign" in answer.json()["detail"]) == (403, True)
    assert await decisions(site) == []


@pytest.mark.parametrize("approvers", [lambda data: listed(data, ada={})["approvers"]])
async def test_a_site_that_lists_no_console_sends_people_to_their_own_keys(web: Site, waiting: Incident):  # noqa: F811
    """With the command."""
    answer = await said(web.program("ada", "approver"), waiting.id)
    assert answer.status_code == 403
    assert "lets no console sign for people (approvals.approvers: vouches_for); decide with your own key" in answer.text


async def test_temporal_that_is_away_is_said_and_the_same_click_counts_later(
    web: Site,
    waiting: Incident,  # noqa: F811
    site: Worked,  # noqa: F811
):
    """503: it may have counted; said again with the same `once`, it counts once."""
    made = web.app.state.desk.decisions
    right = made._connect
    nowhere = web.settings.temporal.model_copy(update={"address": "127.0.0.1:1"})
    away = web.settings.model_copy(update={"temporal": nowhere})

    async def cannot(_settings: Settings) -> Client:
        return await right(away)

    made._connect = cannot
    program = web.program("ada", "approver")
    answer = await said(program, waiting.id)
    assert (answer.status_code, "cannot be reached" in answer.json()["detail"]) == (503, True)
    made._connect = right
    assert (await said(program, waiting.id)).status_code == 200
    assert len(await decisions(site)) == 1
