"""A failure that is told by thousands at once: what reaches its incident, and how long that makes the history."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from relight.activities import contracts as c
from relight.activities import deliver as relay
from relight.activities.deliver import Deliver
from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.folding import MAX_SIGNAL_BYTES, MAX_SIGNALS
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Change
from relight.domain.plan import Mode
from relight.domain.policy import Policy
from relight.workers.controller import register_search_attributes
from relight.workflows.recover_job import Say

pytestmark = [pytest.mark.system, pytest.mark.slow]

RANKS = 2048
BURSTS = 260
MOST_EVENTS = 2000


def now():
    return datetime.now(UTC)


@pytest.fixture
async def incident(dev_server, stage):
    """An incident on the real server, its activities scripted."""
    await register_search_attributes(dev_server.client)
    async with stage(dev_server.client, job_id=2048) as made:
        yield made


@pytest.fixture
def site(tmp_path, incident):
    """A site with a ledger of its own, of which only Slurm is simulated."""
    slurm, ledger = MemorySlurm(now), memory_ledger()
    yield Site(
        cluster=incident.attempt.cluster,
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
    ledger.close()


def told(incident, first, count):
    """So many agents tell of one fault of the fabric."""
    at = now()
    return tuple(
        Detection(
            id=f"fault/{number}",
            attempt=incident.attempt,
            kind=Interruption.GPU_FAULT,
            detected_at=at + timedelta(microseconds=number),
            evidence=(Evidence(source=Source.NVML, text="Xid 74: NVLink error " * 20, node=f"gpu-{number:04}"),),
        )
        for number in range(first, first + count)
    )


async def test_two_thousand_ranks_that_never_stop_telling_leave_a_short_history(
    dev_server, incident, script, site, monkeypatch
):
    """Every rank tells again and again while a person is waited for: the incident takes its share, and recovers."""
    monkeypatch.setattr(relay, "SIGNALS_APART", timedelta(0))  # five hundred seconds of it, told without a pause
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy={"trust_temporal_ui": True}, exclude=("gpu-0001",)))
    deliver = Deliver(site, dev_server.client, incident.task_queue)
    await site.ledger.commit(Change(detections=told(incident, 0, RANKS)))
    rounds = ActivityEnvironment()
    assert await rounds.run(deliver._round) is False
    handle = dev_server.client.get_workflow_handle(incident.workflow_id)
    status = await incident.waiting(handle)
    opened = Incident(
        id=status.incident,
        workflow_id=incident.workflow_id,
        run_id="r",
        attempt=incident.attempt,
        lineage="j",
        kind=Interruption.GPU_FAULT,
        phase=Phase.PLANNING,
        mode=Mode.APPROVE,
        opened_at=now(),
        detected_at=now(),
    )
    await site.ledger.commit(Change(incidents=(opened,)))
    for burst in range(1, BURSTS):
        await site.ledger.commit(Change(detections=told(incident, RANKS + 8 * burst, 8)))
        await rounds.run(deliver._round)
        await handle.query("status")  # its own workflow task for each signal: the worst that can be
    assert await site.ledger.undelivered() == ()
    await handle.signal("approve", Say(digest=status.verdict.plan.digest[:8], reason="go"))
    assert (await handle.result())["outcome"] == Outcome.RECOVERED
    history = await handle.fetch_history()
    signals = [e for e in history.events if e.HasField("workflow_execution_signaled_event_attributes")]
    assert len(signals) == MAX_SIGNALS + 1
    assert all(e.ByteSize() < MAX_SIGNAL_BYTES + 1024 for e in signals)
    assert len(history.events) < MOST_EVENTS, f"{len(signals)} signals"
