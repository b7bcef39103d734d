"""Channels against servers that speak their protocols.

Those of Slack, PagerDuty and a site's webhook are stand-ins; the SMTP server is a real one (aiosmtpd).
"""

import asyncio
import hashlib
import hmac
import json
import shutil
import socket
import ssl
import subprocess
import time
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult

from relight.clients.notices import (
    Frame,
    NoticeNotAllowedError,
    NoticeNotSentError,
    NoticeRefusedError,
)
from relight.clients.notices_open import SetChannel
from relight.clients.notices_webhook import signature
from relight.config.notify import ChannelSettings
from relight.domain.notices import Audience, Fact, Notice, Severity
from relight.domain.notices_channel import Message
from relight.domain.notices_slack import escaped

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
FRAME = Frame("main", "https://relight.example.org")
EVIL = "<!channel> *Approved by root* <https://evil.example|click> & `rm -rf`"
SECRET = "s3cr3t-of-the-channel"


def message(*, recipient="", thread="", resolves=False, **fields):
    given = {
        "id": "main/7",
        "at": NOW,
        "topic": "i0123456789",
        "incident": "i0123456789",
        "about": (Audience.OPERATORS,),
        "severity": Severity.WARNING,
        "title": f"crash of job 7: {EVIL}",
        "facts": (Fact(name="Evidence", text=EVIL), Fact(name="Plan", text="requeue job 7")),
    }
    notice = Notice(**{**given, **fields})
    return Message(
        id=notice.id,
        recipient=recipient,
        title=notice.title,
        severity=notice.severity,
        facts=notice.facts,
        notices=(notice,),
        thread=thread,
        resolves=resolves,
    )


class StandIn:
    """A hosted service in small: keeps what it is sent, and answers as it is told, in order; the last answer stays."""

    def __init__(self):
        self.over = asyncio.Event()
        self.requests, self.answers = [], [web.json_response({"ok": True, "ts": "1764493200.000100", "channel": "C1"})]

    async def answer(self, request):
        body = await request.read()
        self.requests.append((request.path, dict(request.headers), body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await self.over.wait()
            return web.Response()
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    @property
    def sent(self):
        return [json.loads(body) for _, _, body in self.requests]


@pytest.fixture
async def service():
    """The stand-in, with its address."""
    stand_in = StandIn()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", stand_in.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield stand_in
    stand_in.over.set()
    await runner.cleanup()


def channel(kind, secret=SECRET, **fields):
    settings = ChannelSettings(kind=kind, secret_env="TOKEN", **fields)
    return SetChannel(settings, FRAME, environment={"TOKEN": secret}, clock=lambda: NOW)


def bot(service, **fields):
    return channel("slack", channel="C1", url=service.url, **fields)


# --- Slack ------------------------------------------------------------------------------------------------------------


async def test_a_bot_posts_blocks_and_goes_on_in_the_thread(service):
    """The thread's name is what Slack called the first message; a warning is shown in the channel too."""
    receipt = await bot(service).send(message())
    await bot(service).send(message(thread=receipt.ref))
    first, second = service.sent
    path, headers, _ = service.requests[0]
    assert path == "/chat.postMessage"
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert first["channel"] == "C1"
    assert "thread_ts" not in first
    assert (second["thread_ts"], second["reply_broadcast"]) == ("1764493200.000100", True)


async def test_only_a_plan_that_waits_gets_buttons_and_only_where_the_site_wants_them(service):
    """Each names the incident and the whole digest, and asks again; beside the link."""
    waits = {"waits": True, "digest": "d" * 64}
    for settings, fields in (({}, waits), ({"buttons": True}, {}), ({"buttons": True}, waits)):
        await bot(service, **settings).send(message(**fields))
    actions = [[each for each in sent["blocks"] if each["type"] == "actions"] for sent in service.sent]
    names = [[button["action_id"] for block in blocks for button in block["elements"]] for blocks in actions]
    assert names == [["relight_open"], ["relight_open"], ["relight_approve", "relight_reject", "relight_open"]]
    approve, reject, _ = actions[2][0]["elements"]
    assert approve["value"] == reject["value"] == f"i0123456789 {'d' * 64}"
    assert approve["confirm"]["text"]["text"] == "requeue job 7 (plan dddddddd)"
    assert [block["type"] for block in service.sent[2]["blocks"]][-3:] == ["input", "actions", "context"]


async def test_nothing_from_logs_is_markup_in_slack(service):
    """It stands in plain text, which Slack does not read as markup; the line for phones is escaped."""
    await bot(service).send(message())
    (sent,) = service.sent
    assert "<!channel>" not in sent["text"]
    assert escaped("<!channel>") in sent["text"]
    texts = [block["text"] for block in sent["blocks"] if "text" in block]
    assert {text["type"] for text in texts} == {"plain_text"}
    assert any(EVIL in text["text"] for text in texts)
    assert sent["unfurl_links"] is sent["unfurl_media"] is False


async def test_messages_keep_slacks_limits(service):
    """The longest notice, and a digest of many."""
    long = message(title="t" * 5000, facts=tuple(Fact(name="x", text="y" * 9000) for _ in range(80)))
    await bot(service).send(long)
    (sent,) = service.sent
    assert len(sent["blocks"]) <= 50
    assert all(len(block["text"]["text"]) <= 3000 for block in sent["blocks"] if "text" in block)
    assert len(sent["blocks"][0]["text"]["text"]) <= 150


async def test_the_only_button_is_a_link_to_the_incident(service):
    """Where the console has an address; no click decides anything."""
    await bot(service).send(message(waits=True, digest="d" * 64))
    buttons = [b for block in service.sent[0]["blocks"] for b in block.get("elements", ()) if b["type"] == "button"]
    assert [button["url"] for button in buttons] == ["https://relight.example.org/incidents/i0123456789"]


async def test_an_incoming_webhook_is_its_secret_and_has_no_threads(service):
    """Its address stands in no error."""
    hook = channel("slack", secret=f"{service.url}/services/T1/B1/hush")
    service.answers = [web.Response(text="ok"), web.Response(status=404, text="no_service"), web.Response(status=302)]
    receipt = await hook.send(message(thread="x"))
    assert receipt.ref == ""
    assert "thread_ts" not in service.sent[0]
    for _ in range(2):
        with pytest.raises(NoticeNotAllowedError) as told:
            await hook.send(message())
        assert "hush" not in str(told.value)
    gone = channel("slack", secret="http://127.0.0.1:9/services/hush")
    with pytest.raises(NoticeNotSentError) as told:
        await gone.send(message())
    assert "hush" not in str(told.value)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("invalid_auth", NoticeNotAllowedError),
        ("channel_not_found", NoticeNotAllowedError),
        ("is_archived", NoticeNotAllowedError),
        ("never_heard_of", NoticeNotAllowedError),
        ("invalid_blocks", NoticeRefusedError),
        ("msg_too_long", NoticeRefusedError),
        ("internal_error", NoticeNotSentError),
    ],
)
async def test_slacks_words_say_whether_trying_again_helps(service, said, error):
    """With status 200: Slack says `ok: false`."""
    service.answers = [web.json_response({"ok": False, "error": said})]
    with pytest.raises(error, match=said):
        await bot(service).send(message())


# --- whoever speaks HTTP ----------------------------------------------------------------------------------------------


KINDS = {
    "slack": bot,
    "pagerduty": lambda service, **f: channel("pagerduty", url=service.url, **f),
    "webhook": lambda service, **f: channel("webhook", url=service.url, **f),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_429_is_honoured(service, kind):
    """For as long as it asks, at most an hour."""
    limits = [{"Retry-After": "17"}, {"Retry-After": "99999999"}, {}]
    service.answers = [web.Response(status=429, headers=each) for each in limits]
    for seconds in (17, 3600, 30):
        with pytest.raises(NoticeNotSentError, match="limits our rate") as told:
            await KINDS[kind](service).send(message())
        assert told.value.again == timedelta(seconds=seconds)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_never_answers_is_given_up(service, kind):
    """After its time-out."""
    service.answers = [None]
    with pytest.raises(NoticeNotSentError, match="no answer within 1 s"):
        await KINDS[kind](service, timeout=timedelta(seconds=1)).send(message())


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outage_and_nobody_there_are_worth_another_try(service, kind):
    """503, and a port at which nobody listens."""
    service.answers = [web.Response(status=503, headers={"Retry-After": "5"})]
    with pytest.raises(NoticeNotSentError) as told:
        await KINDS[kind](service).send(message())
    assert told.value.again == timedelta(seconds=5)
    service.url = "http://127.0.0.1:9"
    with pytest.raises(NoticeNotSentError):
        await KINDS[kind](service).send(message())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_redirect_is_not_followed(service, kind):
    """Another host gets nothing of ours."""
    service.answers = [web.Response(status=307, headers={"Location": f"{service.url}/elsewhere"})]
    with pytest.raises((NoticeNotAllowedError, NoticeNotSentError)):
        await KINDS[kind](service).send(message())
    assert len(service.requests) == 1


# --- PagerDuty --------------------------------------------------------------------------------------------------------


async def test_an_alert_is_raised_and_resolved_under_the_incidents_id(service):
    """The incident's id is the `dedup_key`; an end that resolves nothing is not sent."""
    service.answers = [web.json_response({"status": "success", "dedup_key": "x"}, status=202)]
    pager = KINDS["pagerduty"](service)
    raised = await pager.send(message())
    await pager.send(message(thread=raised.ref, resolves=True, ends=True))
    await pager.send(message(thread=raised.ref, ends=True))
    trigger, resolve = service.sent
    assert service.requests[0][0] == "/v2/enqueue"
    assert trigger["dedup_key"] == resolve["dedup_key"] == "i0123456789"
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["routing_key"] == SECRET
    assert trigger["payload"]["severity"] == "warning"
    assert {"summary", "source", "severity"} <= trigger["payload"].keys()
    assert trigger["client_url"].endswith("/incidents/i0123456789")


async def test_a_wrong_key_is_told_from_a_wrong_event(service):
    """Both are 400; the key stands in no error."""
    service.answers = [
        web.json_response({"status": "invalid event", "errors": [f"Length of 'routing_key' {SECRET}"]}, status=400),
        web.json_response({"status": "invalid event", "errors": ["'payload.summary' is missing"]}, status=400),
    ]
    with pytest.raises(NoticeNotAllowedError) as told:
        await KINDS["pagerduty"](service).send(message())
    assert SECRET not in str(told.value)
    with pytest.raises(NoticeRefusedError):
        await KINDS["pagerduty"](service).send(message())


# --- webhook ----------------------------------------------------------------------------------------------------------


async def test_the_webhook_is_signed_over_time_and_body(service):
    """As docs/notifications.md says; the id is the same when it is sent again."""
    hook = KINDS["webhook"](service)
    await hook.send(message())
    await hook.send(message())
    (_, headers, body), (_, again, _) = service.requests
    stamp = headers["X-Relight-Timestamp"]
    assert stamp == str(int(NOW.timestamp()))
    expected = hmac.new(SECRET.encode(), b"v1:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    assert headers["X-Relight-Signature"] == f"v1={expected}" == signature(SECRET, stamp, body)
    assert headers["X-Relight-Id"] == again["X-Relight-Id"] == "main/7"
    told = json.loads(body)
    assert told["notices"][0]["incident"] == "i0123456789"
    assert (told["version"], told["cluster"], told["severity"], told["digest"]) == (1, "main", "warning", False)


# --- mail, with a real SMTP server ------------------------------------------------------------------------------------


class Post:
    """Keeps mails; refuses those whom a test names."""

    def __init__(self):
        self.mails, self.refuse = [], {}

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        self.mails.append((tuple(envelope.rcpt_tos), message_from_bytes(envelope.content, policy=default)))
        return "250 taken"


@pytest.fixture
async def post():
    handler = Post()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(handler, hostname="mail.example.org", loop=loop), "127.0.0.1", 0)
    handler.port = server.sockets[0].getsockname()[1]
    yield handler
    server.close()
    await server.wait_closed()


def mail(post, to=("ops@example.org",), tls="none", **fields):
    given = {"about": ("users",)} if any("{user}" in each for each in to) else {}
    settings = ChannelSettings(
        kind="email",
        host="127.0.0.1",
        port=post.port,
        tls=tls,
        sender="relight@example.org",
        to=to,
        **given,
        **fields,
    )
    return SetChannel(settings, FRAME, environment={"TOKEN": SECRET}, clock=lambda: NOW)


async def test_a_mail_is_text_and_html_with_everything_escaped(post):
    """It answers to the first of its thread, and no absence note answers it."""
    first = await mail(post).send(message())
    await mail(post).send(message(id="main/8", thread=first.ref))
    (to, sent), (_, reply) = post.mails
    assert to == ("ops@example.org",)
    text = sent.get_body(("plain",)).get_content()
    page = sent.get_body(("html",)).get_content()
    assert EVIL in text
    assert "<!channel>" not in page
    assert "&lt;!channel&gt;" in page
    assert 'href="https://relight.example.org/incidents/i0123456789"' in page
    assert sent["Auto-Submitted"] == "auto-generated"
    assert reply["In-Reply-To"] == sent["Message-ID"] == first.ref
    assert reply["Message-ID"] != sent["Message-ID"]


async def test_no_text_makes_a_header(post):
    """Line breaks and control characters end in one line of subject; the same message has the same Message-ID."""
    evil = message(title="crash\r\nBcc: everybody@example.org\x00\u202e \x1b[31m")
    await mail(post).send(evil)
    await mail(post).send(evil)
    (to, sent), (_, again) = post.mails
    assert to == ("ops@example.org",)
    assert sent["Bcc"] is None
    assert sent["Subject"] == "[main] crash Bcc: everybody@example.org [31m"
    assert sent["Message-ID"] == again["Message-ID"]


async def test_each_user_gets_the_own_mail_and_no_name_makes_another_address(post):
    """A user name that is none is refused, and nothing is sent."""
    channel_ = mail(post, to=("{user}@example.org",))
    await channel_.send(message(recipient="ada"))
    assert post.mails[0][0] == ("ada@example.org",)
    for name in ("ada@evil.example,bob", "a b", "", "ada\n"):
        with pytest.raises(NoticeRefusedError):
            await channel_.send(message(recipient=name))
    assert len(post.mails) == 1


async def test_a_mail_server_says_whether_trying_again_helps(post):
    """For nobody, later or never; for some, told."""
    post.refuse = {"ops@example.org": "450 busy"}
    with pytest.raises(NoticeNotSentError, match="450 busy"):
        await mail(post).send(message())
    post.refuse = {"ops@example.org": "550 no such user"}
    with pytest.raises(NoticeRefusedError, match="550 no such user"):
        await mail(post).send(message())
    receipt = await mail(post, to=("ops@example.org", "b@example.org")).send(message())
    assert "not to ops@example.org" in receipt.text


async def test_mail_is_not_sent_unencrypted_where_tls_is_wanted(post):
    """A server that offers none gets nothing."""
    with pytest.raises(NoticeNotAllowedError, match="STARTTLS"):
        await mail(post, tls="starttls").send(message())
    assert post.mails == []


@pytest.fixture
def certificate(tmp_path):
    """For 127.0.0.1, signs itself; and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=mail -days 2"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return cert, key


@pytest.fixture
async def guarded(certificate):
    """A server that takes mail only after STARTTLS and a login."""
    cert, key = certificate
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    handler, loop = Post(), asyncio.get_running_loop()
    handler.ca = str(cert)

    def judged(server, session, envelope, mechanism, data):
        return AuthResult(success=(data.login, data.password) == (b"relight", SECRET.encode()), handled=False)

    options = {"tls_context": tls, "require_starttls": True, "auth_required": True, "authenticator": judged}
    server = await loop.create_server(lambda: SMTP(handler, loop=loop, **options), "127.0.0.1", 0)
    handler.port = server.sockets[0].getsockname()[1]
    yield handler
    server.close()
    await server.wait_closed()


async def test_mail_goes_encrypted_and_signed_in_and_only_to_a_server_that_is_trusted(guarded):
    """A wrong password is told from an outage, and stands in no error."""
    given_ = {"tls": "starttls", "user": "relight", "secret_env": "TOKEN"}
    await mail(guarded, ca=guarded.ca, **given_).send(message())
    assert len(guarded.mails) == 1
    with pytest.raises(NoticeNotSentError, match="certificate"):
        await mail(guarded, **given_).send(message())
    wrong = mail(guarded, ca=guarded.ca, **given_)
    wrong._environment = {"TOKEN": "wrong-word"}
    with pytest.raises(NoticeNotAllowedError, match="does not let us in") as told:
        await wrong.send(message())
    assert "wrong-word" not in str(told.value)
    assert len(guarded.mails) == 1


async def test_a_mail_server_that_never_speaks_is_given_up_and_holds_up_nothing():
    """The event loop goes on meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = SimpleNamespace(port=silent.getsockname()[1])
        waiting = asyncio.create_task(mail(port, timeout=timedelta(seconds=1)).send(message()))
        before = time.monotonic()
        await asyncio.sleep(0)
        assert not waiting.done()
        assert time.monotonic() - before < 0.9
        with pytest.raises(NoticeNotSentError):
            await waiting
