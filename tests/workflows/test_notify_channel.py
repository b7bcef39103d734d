"""NotifyChannel: waits, sends, tries again for ever, and carries nothing but its count."""

import asyncio
import socket
from datetime import UTC, datetime
from email import message_from_bytes

import pytest
from aiosmtpd.smtp import SMTP
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.config.settings import Settings
from relight.domain.ledger import Change, RowKind
from relight.domain.notices_channel import Standing, cursor_name
from relight.domain.policy import Policy
from relight.workers.controller import notices, sandbox
from relight.workflows.notify_channel import MESSAGES_PER_RUN, NotifyChannel

TITLE = c.ToSend(title="the breaker is open")


@pytest.fixture
async def incident(dev_server, stage):
    async with stage(dev_server.client, job_id=7) as made:
        yield made


@pytest.fixture
async def told(incident):
    """Starts the workflow of channel `ops`."""
    started = []

    async def start(messages=0):
        cluster = incident.attempt.cluster
        arg = c.NotifyInput(cluster=cluster, channel="ops", messages=messages)
        id_ = c.notify_id(cluster, "ops")
        handle = await incident.client.start_workflow(NotifyChannel.run, arg, id=id_, task_queue=incident.task_queue)
        started.append(handle)
        return handle

    yield start
    for handle in started:
        if (await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
            await incident.client.get_workflow_handle(handle.id).terminate()


async def test_a_message_is_tried_until_it_gets_through_and_counted(told, script):
    """Whatever the error is called; the query says what is on its way and what came back."""
    script.on(c.GATHER_NOTICES, c.ToSend())
    hold = script.hold(c.GATHER_NOTICES)
    wrong = [
        ApplicationError("no", type=kind) for kind in ("NoticeNotSentError", "NoticeNotAllowedError", "ValueError")
    ]
    script.on(c.GATHER_NOTICES, TITLE, hold)
    script.on(c.SEND_NOTICE, *wrong, c.NoticeSent(text="taken"))
    handle = await told(messages=4)
    await hold.started.wait()
    assert script.names.count(c.SEND_NOTICE.name) == 4
    status = await handle.query(NotifyChannel.status)
    assert (status.messages, status.sending, status.last) == (5, "", "taken")


async def test_it_continues_as_new_before_its_history_is_long_and_ends_where_the_channel_is_gone(told, script):
    """Nothing but the count is carried: where the channel stands is in the ledger."""
    script.on(c.GATHER_NOTICES, *[c.ToSend()] * MESSAGES_PER_RUN, c.ToSend(gone=True))
    handle = await told(messages=9)
    await handle.result()
    history = [arg for name, arg in script.calls if name == c.GATHER_NOTICES.name]
    assert len(history) == MESSAGES_PER_RUN + 1
    assert history[-1].messages == 9
    assert (await handle.describe()).run_id != handle.first_execution_run_id


class Post:
    """A real SMTP server's handler: keeps the subjects."""

    def __init__(self):
        self.subjects, self.came = [], asyncio.Event()

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        self.subjects.append(message_from_bytes(envelope.content)["Subject"])
        self.came.set()
        return "250 taken"


async def test_a_slack_that_never_answers_holds_up_no_mail(dev_server, tmp_path, monkeypatch):
    """The worker's own activities and sandbox, a ledger, real SMTP, and a server that takes a connection in silence."""
    post, loop = Post(), asyncio.get_running_loop()
    smtp = await loop.create_server(lambda: SMTP(post, hostname="mail.example.org", loop=loop), "127.0.0.1", 0)
    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("SLACK", f"http://127.0.0.1:{silent.getsockname()[1]}/services/x")
    mail = {"kind": "email", "host": "127.0.0.1", "port": smtp.sockets[0].getsockname()[1], "tls": "none"}
    mail |= {"sender": "relight@example.org", "to": ["ops@example.org"]}
    slack = {"kind": "slack", "secret_env": "SLACK", "timeout": "1s"}
    settings = Settings(cluster="told", notify={"channels": {"slack": slack, "mail": mail}})
    now, ledger = (lambda: datetime.now(UTC)), memory_ledger()
    slurm = MemorySlurm(now)
    site = Site(
        cluster="told",
        slurm=slurm,
        nodes=slurm,
        ledger=ledger,
        logs=LogFiles(),
        kernel_logs=KernelLogFiles(""),
        policy=Policy(),
        clock=now,
        sleep=asyncio.sleep,
        kept=tmp_path,
    )
    queue, client = "told", dev_server.client
    tells = notices(site, settings)
    worker = Worker(client, task_queue=queue, workflows=[NotifyChannel], activities=tells, workflow_runner=sandbox())

    async def standing():
        return Standing.model_validate(await ledger.cursor(cursor_name("told", "slack")))

    async with worker:
        handles = {}
        for name in settings.notify.channels:
            arg = c.NotifyInput(cluster="told", channel=name)
            id_ = c.notify_id("told", name)
            handles[name] = await client.start_workflow(NotifyChannel.run, arg, id=id_, task_queue=queue)
        while not all([await ledger.cursor(cursor_name("told", name)) for name in handles]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        entry = site.entry("guard/1", RowKind.GUARD, {"what": "tripped", "text": "3 nodes"})
        await ledger.commit(Change(entries=(entry,)))
        await post.came.wait()
        while not (held := await standing()).failing:  # noqa: ASYNC110 - a ledger has no event
            await asyncio.sleep(0.05)
        for handle in handles.values():
            await handle.terminate()
    smtp.close()
    silent.close()
    ledger.close()
    assert post.subjects == ["[told] the breaker is open"]
    assert held.problem == "Slack: no answer within 1 s"
    assert held.sending.title == "the breaker is open"
