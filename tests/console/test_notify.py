"""`relight notify test`, and how channels stand in status and doctor."""

import json
from datetime import UTC, datetime, timedelta
from email import message_from_bytes

import pytest
from aiosmtpd.smtp import SMTP
from click.testing import CliRunner

from relight.clients.memory import memory_ledger
from relight.config.settings import Settings
from relight.console.doctor_checks import Health
from relight.console.errors import NotFoundStop
from relight.console.notify import as_json, check_channels, lines, standings, try_channels
from relight.console.notify_command import notify
from relight.domain.ledger import Change
from relight.domain.notices_channel import Standing, cursor_name

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
MAIL = {"kind": "email", "host": "127.0.0.1", "tls": "none", "sender": "relight@example.org"}


def settings(**channels):
    return Settings(notify={"channels": channels})


class Post:
    """A real SMTP server's handler."""

    mails = ()

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        self.mails = (*self.mails, (envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 taken"


@pytest.fixture
async def post():
    import asyncio

    handler, loop = Post(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(handler, hostname="mail.example.org", loop=loop), "127.0.0.1", 0)
    handler.port = server.sockets[0].getsockname()[1]
    yield handler
    server.close()
    await server.wait_closed()


async def test_a_test_message_says_that_it_is_one_and_what_came_back(post):
    """One that does not get through is told beside the others."""
    mine = {**MAIL, "port": post.port, "to": ["{user}@example.org"], "about": ["users"]}
    gone = {**MAIL, "port": 9, "to": ["ops@example.org"]}
    mail, other = await try_channels(settings(mine=mine, ops=gone), "", "ada", NOW)
    assert (mail.good, other.good) == (True, False)
    ((to, sent),) = post.mails
    assert to == ["ada@example.org"]
    assert sent["Subject"] == "[main] TEST: this is only a test"


async def test_a_channel_that_is_not_there_is_told_with_those_that_are():
    """Nothing is sent."""
    with pytest.raises(NotFoundStop, match="there are: ops"):
        await try_channels(settings(ops={**MAIL, "to": ["ops@example.org"]}), "opps", "ada", NOW)


def test_the_command_ends_with_1_where_one_does_not_get_through(tmp_path):
    """And says so to programs."""
    file = tmp_path / "relight.yaml"
    channel = {**MAIL, "port": 9, "to": ["ops@example.org"]}
    file.write_text(json.dumps({"notify": {"channels": {"ops": channel}}}))
    done = CliRunner().invoke(notify, ["test", "--config", str(file), "-o", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["good"] is False


async def test_doctor_checks_secrets_and_sends_nothing(tmp_path):
    """A channel without its secret fails; that nobody tells approvers is a warning."""
    (tmp_path / "key").write_text("hush\n")
    good = {"kind": "pagerduty", "secret_file": str(tmp_path / "key"), "about": ["operators"]}
    bad = {"kind": "slack", "secret_file": str(tmp_path / "none"), "about": ["operators"]}
    checks = await check_channels(settings(good=good, bad=bad))
    assert [check.status for check in checks] == [Health.OK, Health.FAIL, Health.WARN]
    assert not any("hush" in f"{check.found}{check.advice}" for check in checks)
    assert await check_channels(settings()) == ()


async def test_status_says_since_when_nothing_gets_through():
    """By the ledger alone."""
    ledger = memory_ledger()
    known = settings(ops={**MAIL, "to": ["o@example.org"]}, new={**MAIL, "to": ["n@example.org"]})
    failing = Standing(since=NOW, failing=NOW - timedelta(minutes=5), problem="Slack: no answer within 10 s")
    await ledger.commit(Change(cursors={cursor_name("main", "ops"): failing.model_dump(mode="json")}))
    found = await standings(ledger, known)
    ops, new = (line.plain for line in lines(found, NOW))
    assert ops.startswith("ops: nothing gets through since ")
    assert "no answer within 10 s" in ops
    assert "no worker has followed" in new
    assert as_json(found)["ops"]["problem"] == "Slack: no answer within 10 s"
    ledger.close()
