"""Clicks in Slack, against the real workflow on a real Temporal server.

Slack itself is a *stand-in*: it signs and posts what docs.slack.dev says that Slack does, and keeps what is posted to
the `response_url`.
"""

# ruff: noqa: F811 - fixtures of another module

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
import uvicorn
from aiohttp import web as aio
from temporalio.client import Client

from relight.clients.notices import Frame
from relight.clients.notices_slack import written
from relight.config.settings import Settings
from relight.console.web import slack_answers
from relight.console.web.slack import MOST_AT_ONCE, below
from relight.domain.incidents import Incident, Outcome
from relight.domain.notices import Audience, Fact, Notice, Severity
from relight.domain.notices_channel import Message
from relight.domain.notices_slack import APPROVE, REASON, REJECT, signature

from ..test_decide import PLAN, closed, needed, site, waiting  # noqa: F401, TID252 - fixtures, too
from ..test_decide import Site as Worked  # noqa: TID252
from .asking import Site, empty_ledger, settings_in
from .asking import site as console_of
from .test_api_decisions import decisions, vouching

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
INCIDENT = "i0123456789"
PATH = "/slack/interactions"


class Slack:
    """The stand-in."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.silent: asyncio.Event | None = None

    async def hook(self, request: aio.Request) -> aio.Response:
        self.told.append(await request.json())
        if self.silent:
            await self.silent.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        return aio.Response(status=status, headers={"Retry-After": "1"} if status == 429 else {})


@pytest.fixture
async def slack() -> AsyncIterator[Slack]:
    made = Slack()
    app = aio.Application()
    app.router.add_post("/actions/T1/1/x", made.hook)
    runner = aio.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await aio.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"  # type: ignore[attr-defined]
    yield made
    if made.silent:
        made.silent.set()
    await runner.cleanup()


@pytest.fixture
def approvers() -> Any:
    return vouching()


@pytest.fixture
def may() -> list[str]:
    """What can be approved by a click."""
    return ["restart", "stop"]


def app_of(folder: Path, slack: Any, may: list[str]) -> dict[str, Any]:
    """What the settings say of `notify`."""
    (folder / "signing").write_text(SECRET)
    people = {"U0ADA": "ada", "U0BOB": {"name": "bob", "role": "operator"}, "U0ALI": {"name": "alice", "role": "user"}}
    app = {"signing_secret_file": str(folder / "signing"), "may": may, "hooks": slack.url, "people": people}
    return {"slack": app}


@pytest.fixture
def settings(data: Path, temporal: Client, approvers: Any, slack: Any, may: list[str]) -> Settings:
    return Settings.model_validate(
        {
            "data": str(data),
            "temporal": {"address": temporal.service_client.config.target_host},
            "policy": {"mode": "approve"},
            "approvals": {"approvers": approvers(data)},
            "notify": app_of(data, slack, may),
        }
    )


@pytest.fixture
async def web(waiting: Incident, settings: Settings) -> AsyncIterator[Site]:
    async with console_of(settings) as made:
        yield made


class Undecided:
    """Instead of `Decisions`, where none may get that far."""

    async def decide(self, *what: Any) -> Any:
        raise AssertionError(what)


@pytest.fixture
async def quiet(tmp_path: Path, slack: Any) -> AsyncIterator[Site]:
    """A console without a workflow."""
    async with console_of(settings_in(empty_ledger(tmp_path), notify=app_of(tmp_path, slack, ["restart"]))) as made:
        made.app.state.desk = made.app.state.desk._replace(decisions=Undecided())
        yield made


def posted(incident: str, digest: str = PLAN.digest) -> dict[str, Any]:
    """The message as the worker posts it."""
    plan = Fact(name="Plan", text=PLAN.describe())
    notice = Notice(
        id="main/7", at=PLAN.attempt.submit_time, topic=incident, incident=incident, about=(Audience.APPROVERS,),
        severity=Severity.WARNING, title="hang of job 4711", facts=(plan,), waits=True, digest=digest,
    )  # fmt: skip
    message = Message(id=notice.id, title=notice.title, severity=notice.severity, facts=notice.facts, notices=(notice,))
    return written(message, Frame("main", "https://relight.example.org"), decide=True)


def click(slack: Slack, incident: str, account: str = "U0ADA", **changes: Any) -> dict[str, Any]:
    """The payload as Slack makes it of a click on the message."""
    message = posted(incident, changes.pop("digest", PLAN.digest))
    (actions,) = [block for block in message["blocks"] if block["type"] == "actions"]
    wanted = changes.pop("action", APPROVE)
    button = next(each for each in actions["elements"] if each["action_id"] == wanted)
    reason = {"type": "plain_text_input", "value": changes.pop("reason", None)}
    return {
        "type": "block_actions",
        "user": {"id": account, "username": "whoever", "team_id": "T1"},
        "api_app_id": "A1",
        "container": {"type": "message", "message_ts": "1764493200.000100", "channel_id": "C1"},
        "trigger_id": "12321423423.333649436676.d8c1bb837935619ccad0f624c448ffb3",
        "message": {"type": "message", "ts": "1764493200.000100", **message},
        "state": {"values": {REASON: {REASON: reason}}},
        "response_url": f"{slack.url}/actions/T1/1/x",  # type: ignore[attr-defined]
        "actions": [{**button, "block_id": "b1", "action_ts": "1764493290.1"}],
        **changes,
    }


def request(web: Site, payload: Any, **changes: Any) -> dict[str, Any]:
    """The request as Slack signs it."""
    body = changes.pop("body", None) or urlencode({"payload": json.dumps(payload)}).encode()
    at = str(int(web.clock().timestamp()) - changes.pop("old", 0))
    signed = signature(changes.pop("secret", SECRET), at, body)
    headers = {"x-slack-request-timestamp": at, "x-slack-signature": signed}
    headers["content-type"] = changes.pop("content_type", "application/x-www-form-urlencoded")
    return {"content": changes.pop("sent", body), "headers": {**headers, **changes}}


async def send(web: Site, payload: Any, **changes: Any) -> httpx2.Response:
    async with web.client() as slack_:
        return await slack_.post(PATH, **request(web, payload, **changes))


async def test_a_click_counts_as_the_word_of_whom_the_site_lists(
    web: Site, waiting: Incident, site: Worked, slack: Any
):
    """Signed by the console, judged by the workflow; the message loses its buttons, keeps the link, tells by whom."""
    answer = await send(web, click(slack, waiting.id, reason="seen the\x1b[31m Xid"))
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await closed(site, waiting)).outcome is Outcome.STOPPED
    (row,) = await decisions(site)
    assert (row["counts"], row["decision"]["by"]) == (True, "ada (signed by console)")
    assert row["decision"]["reason"] == "seen the [31m Xid (by Slack account U0ADA)"
    (told,) = slack.told
    assert told["replace_original"] is True
    assert not {APPROVE, REJECT, REASON} & set(json.dumps(told).split('"'))
    assert [block["type"] for block in told["blocks"]] == ["header", "section", "actions", "context", "context"]
    assert told["blocks"][-1]["elements"][0]["text"] == "Approved by ada in Slack: counted: approved"


async def test_a_no_needs_no_more_than_an_operator(web: Site, waiting: Incident, site: Worked, slack: Any):
    """Whose yes is refused, to that person alone: the buttons stay for others."""
    await send(web, click(slack, waiting.id, "U0BOB"))
    assert (slack.told[0]["response_type"], slack.told[0]["replace_original"]) == ("ephemeral", False)
    assert "bob is operator here: that role may not approve" in slack.told[0]["text"]
    await send(web, click(slack, waiting.id, "U0BOB", action=REJECT, reason="maintenance"))
    assert (await closed(site, waiting)).outcome is Outcome.REJECTED
    assert slack.told[1]["replace_original"] is True


async def test_who_may_not_is_told_so_alone(web: Site, waiting: Incident, site: Worked, slack: Any):
    """An account that is not listed; the job's own user, for more than its restart. The link leads to the console."""
    for account, says in (("U0EVE", "U0EVE) is nobody whom this site lists"), ("U0ALI", "an approver decides")):
        assert (await send(web, click(slack, waiting.id, account))).status_code == 200
        told = slack.told[-1]
        assert (told["response_type"], says in told["text"]) == ("ephemeral", True)
        assert f"/incidents/{waiting.id}" in told["text"]
    assert await decisions(site) == []


@pytest.mark.parametrize("may", [["restart"]])
async def test_a_click_approves_no_more_than_the_site_trusts_slack_with(
    web: Site, waiting: Incident, site: Worked, slack: Any
):
    """The same person may, in the console."""
    await send(web, click(slack, waiting.id))
    (told,) = slack.told
    assert "nobody approves this by a click here (stop: notify.slack.may)" in told["text"]
    assert await decisions(site) == []


async def test_a_plan_that_has_changed_is_not_approved(web: Site, waiting: Incident, site: Worked, slack: Any):
    """The old message loses its buttons and says why; one that is over likewise."""
    await send(web, click(slack, waiting.id, digest="0" * 64))
    said = slack.told[0]["blocks"][-1]["elements"][0]["text"]
    assert "the plan has changed since you looked" in said
    assert f"/incidents/{waiting.id}" in said
    assert await decisions(site) == []
    await send(web, click(slack, waiting.id))
    await closed(site, waiting)
    await send(web, click(slack, waiting.id, "U0BOB", action=REJECT))
    assert "is over: stopped" in slack.told[-1]["blocks"][-1]["elements"][0]["text"]


async def test_a_double_click_and_a_request_that_comes_again_count_once(
    web: Site, waiting: Incident, site: Worked, slack: Any
):
    """Two clicks are two requests, told the same; the same request again is taken, and nothing more is done."""
    first = request(web, click(slack, waiting.id))
    web.clock.move(seconds=1)
    second = request(web, click(slack, waiting.id))
    async with web.client() as slack_:
        both = await asyncio.gather(*(slack_.post(PATH, **each) for each in (first, second)))
        again = await slack_.post(PATH, **first)
    assert [each.status_code for each in (*both, again)] == [200] * 3
    assert len(slack.told) == 2
    assert {each["blocks"][-1]["elements"][0]["text"] for each in slack.told} == {
        "Approved by ada in Slack: counted: approved"
    }
    assert len(await decisions(site)) == 1


FORGED = [
    ({"secret": "another"}, 401, "not of this app"),
    ({"x-slack-signature": ""}, 401, "not of this app"),
    ({"sent": b"payload=%7B%7D"}, 401, "not of this app"),
    ({"old": 301}, 401, "more than five minutes ago"),
    ({"old": -301}, 401, "more than five minutes ago"),
    ({"content_type": "application/json"}, 422, "content-type application/json; accepted"),
    ({"body": b"payload=%7B"}, 422, "no payload"),
    ({"body": b"payload=" + b"[" * 20_000}, 422, "no payload"),
    ({"body": b"\xff\xfe"}, 422, "no payload"),
    ({"body": b"payload=" + b"x" * (1 << 20)}, 422, "at most 65536"),
    ({"origin": "https://evil.example"}, 403, "another site"),
]


@pytest.mark.parametrize(("changes", "status", "says"), FORGED)
async def test_what_slack_has_not_sent_just_now_is_refused(
    quiet: Site, slack: Any, changes: Any, status: int, says: str
):
    """Forged, changed on its way, late, of another kind, unreadable, too long: nothing is decided, nobody is told."""
    answer = await send(quiet, click(slack, INCIDENT), **changes)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert slack.told == []


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"type": "view_submission"}, 422),
        ({"response_url": "https://hooks.slack.com.evil.example/x"}, 422),
        ({"response_url": "http://169.254.169.254/latest"}, 422),
        ({"response_url": ""}, 422),
        ({"actions": [{"action_id": "relight_open"}], "response_url": "http://169.254.169.254/"}, 200),
        ({"actions": []}, 200),
    ],
)
async def test_a_proven_request_that_is_no_click_of_ours_does_nothing(
    quiet: Site, slack: Any, changes: Any, status: int
):
    """Also one whose answer would go elsewhere than to Slack: nothing is sent there."""
    answer = await send(quiet, click(slack, INCIDENT, **changes))
    assert answer.status_code == status, answer.text
    assert slack.told == []


async def test_slack_that_limits_us_is_told_again_and_one_that_fails_is_let_be(quiet: Site, slack: Any, caplog: Any):
    """Whatever becomes of the answer, the word counts once."""
    slack.statuses = [429, 200]
    await send(quiet, click(slack, INCIDENT, "U0EVE"))
    assert len(slack.told) == 2
    slack.statuses = [500]
    await send(quiet, click(slack, INCIDENT, "U0EVE", reason="another"))
    assert len(slack.told) == 3
    assert "could not be told: Slack cannot answer now" in caplog.text


async def test_slack_has_its_answer_at_once(web: Site, waiting: Incident, site: Worked, slack: Any, free_tcp_port: int):
    """By a real server: while nobody answers at the response_url, the word counts, and further clicks are bounded."""
    slack.silent = asyncio.Event()
    server = uvicorn.Server(uvicorn.Config(web.app, port=free_tcp_port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{free_tcp_port}") as slack_:
            while not server.started:  # noqa: ASYNC110 - uvicorn tells it in no other way
                await asyncio.sleep(0.02)
            async with asyncio.timeout(10):
                answer = await slack_.post(PATH, **request(web, click(slack, waiting.id)))
            assert answer.status_code == 200
            assert (await closed(site, waiting)).outcome is Outcome.STOPPED
            web.app.state.clicks._busy += MOST_AT_ONCE
            full = await slack_.post(PATH, **request(web, click(slack, waiting.id, reason="x")))
            assert (full.status_code, "click again" in full.text) == (503, True)
            web.app.state.clicks._busy -= MOST_AT_ONCE
            slack.silent.set()
    finally:
        server.should_exit = True
        await serving
    assert web.app.state.clicks._busy == 0


def test_only_one_place_gets_answers():
    """Scheme, host and port are compared as they are."""
    root = "https://hooks.slack.com"
    assert below("https://hooks.slack.com/actions/T/1/x", root)
    for other in ("http://hooks.slack.com/", "https://hooks.slack.com:444/", "https://x@hooks.slack.com/", "//x", "["):
        assert not below(other, root)


async def test_a_site_without_the_app_has_no_such_place(tmp_path: Path, slack: Any):
    """Whatever is sent there. Nor is anything taken while the secret cannot be read."""
    async with console_of(settings_in(empty_ledger(tmp_path))) as none:
        assert (await send(none, click(slack, INCIDENT))).status_code == 404
    settings = settings_in(tmp_path, notify=app_of(tmp_path, slack, ["restart"]))
    (tmp_path / "signing").unlink()
    async with console_of(settings) as unread:
        assert (await send(unread, click(slack, INCIDENT))).status_code == 503


def test_nobody_is_told_more_than_slack_takes():
    """Markup in a text is none."""
    told = slack_answers.ephemeral("<!channel> " + "x" * 9000)["text"]
    assert told.startswith("&lt;!channel&gt;")
    assert len(told) <= 3000
