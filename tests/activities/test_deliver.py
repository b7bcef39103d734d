"""The outbox is delivered at least once: a detection is marked only after Temporal has taken it."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from relight.activities import contracts as c
from relight.activities import deliver as relay
from relight.activities.attributes import CLUSTER, JOB_ID, KIND
from relight.activities.deliver import AT_ONCE, Deliver
from relight.clients.ledger import LedgerUnavailableError
from relight.domain.detectors import Sees
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.folding import MAX_SIGNALS, SIGNALS_APART
from relight.domain.ledger import Change, RowKind

SHORT = c.WatchInput(cluster="test", run_for=timedelta(seconds=2))
UNAVAILABLE = RPCError("unavailable", RPCStatusCode.UNAVAILABLE, b"")


class Temporal:
    """Takes what is started; `refuses` tells for which workflows an error is raised instead."""

    def __init__(self, clock):
        self.clock = clock
        self.started = []
        self.at = []
        self.refuses = lambda _workflow_id: False
        self.together = None
        """A barrier: so many must have asked before one is answered."""

    async def start_workflow(self, name, arg, **options):
        if self.together:
            await self.together.wait()
        if self.refuses(options["id"]):
            raise UNAVAILABLE
        self.started.append((name, arg, options))
        self.at.append(self.clock())

    @property
    def told(self):
        """The detections sent, in order."""
        return [options["start_signal_args"][0] for _, _, options in self.started]


@pytest.fixture
def temporal(world):
    return Temporal(world.clock)


@pytest.fixture
def deliver(world, temporal):
    """Delivers for two seconds, or as many as are given."""
    relay = Deliver(world.site, temporal, "relight-test")

    async def call(seconds=2.0):
        await world.run(relay.deliver, SHORT.model_copy(update={"run_for": timedelta(seconds=seconds)}))

    return call


@pytest.fixture
def find(world, detection):
    """Puts so many findings about an attempt into the outbox, each with a witness on a node of its own."""

    async def put(attempt, count, kind=Interruption.GPU_FAULT, *, first=0):
        found = tuple(
            detection(
                attempt,
                world.clock.now + timedelta(milliseconds=number),
                kind,
                id=f"{attempt.key}/{kind}/{number}",
                evidence=(Evidence(source=Source.NVML, text="Xid 79", node=f"n{number}"),),
            )
            for number in range(first, first + count)
        )
        await world.ledger.commit(Change(detections=found))
        return found

    return put


async def test_a_detection_starts_its_incident(world, temporal, deliver):
    """By signal with start, so that one that runs already is told; marked then, and not delivered again."""
    attempt = await world.failed()
    (found,) = await world.ledger.undelivered()
    await deliver()
    ((name, arg, options),) = temporal.started
    assert (name, arg) == ("RecoverJob", c.RecoverInput(attempt=attempt.key, kind=found.kind))
    assert (options["id"], options["task_queue"]) == (f"recover/{attempt.key}", "relight-test")
    assert (options["start_signal"], options["start_signal_args"]) == ("evidence", [found])
    assert options["id_reuse_policy"] is WorkflowIDReusePolicy.ALLOW_DUPLICATE
    assert options["id_conflict_policy"] is WorkflowIDConflictPolicy.USE_EXISTING
    assert await world.ledger.undelivered() == ()


async def test_what_the_web_ui_can_filter_by(world, temporal, deliver):
    """Cluster, job and kind are known from the start."""
    attempt = await world.failed()
    await deliver()
    attributes = temporal.started[0][2]["search_attributes"]
    assert (attributes[CLUSTER], attributes[JOB_ID], attributes[KIND]) == ("test", str(attempt.key.job_id), "crash")
    assert len(temporal.started[0][2]["static_summary"]) <= 200


async def test_another_clusters_detections_are_not_ours(world, temporal, deliver, detection):
    """One database may serve several clusters, and only their own workers listen to their task queues."""
    attempt = await world.train()
    other = attempt.model_copy(update={"key": attempt.key.model_copy(update={"cluster": "east"})})
    await world.ledger.commit(Change(detections=(detection(other, world.clock.now),)))
    await deliver()
    assert (temporal.started, len(await world.ledger.undelivered())) == ([], 1)


# --- folding ---


async def test_the_first_is_sent_at_once_and_the_rest_as_one(world, temporal, deliver, find):
    """Two thousand agents tell of one fabric fault: two signals, the second with as much as it can carry."""
    attempt = await world.train()
    found = await find(attempt, 2048)
    began = world.clock.now
    await deliver(5)
    first, rest = temporal.told
    assert first == found[0]
    assert (rest.id, rest.folded) == (found[-1].id, 2046)
    assert [piece.node for piece in rest.evidence] == [f"n{number}" for number in range(1, 13)]
    assert [at - began for at in temporal.at] == [timedelta(0), SIGNALS_APART]
    assert await world.ledger.undelivered() == ()


async def test_signals_to_one_incident_keep_their_distance_and_their_order(world, temporal, deliver, find):
    """However the findings drip in; kinds are not mixed, and none is passed over."""
    attempt = await world.train()
    await find(attempt, 3)
    for second in range(1, 8):
        kind = Interruption.HANG if second == 3 else Interruption.GPU_FAULT
        world.after(second, lambda k=kind, s=second: find(attempt, 1, k, first=10 * s))
    await deliver(14)
    assert all(later - earlier >= SIGNALS_APART for earlier, later in zip(temporal.at, temporal.at[1:], strict=False))
    assert sum(1 + told.folded for told in temporal.told) == 10
    assert [told.kind for told in temporal.told].count(Interruption.HANG) == 1
    times = [told.detected_at for told in temporal.told if told.kind is Interruption.GPU_FAULT]
    assert times == sorted(times)


@pytest.fixture
def opened(world, ref, incident):
    """Writes an incident of an attempt into the ledger."""

    async def write(attempt, **fields):
        await world.ledger.commit(Change(incidents=(incident(ref(attempt), attempt, world.clock.now, **fields),)))

    return write


async def test_an_incident_is_sent_no_more_than_its_share(world, temporal, deliver, find, opened):
    """What comes then it has in the ledger; the first finding of another kind reaches it all the same."""
    attempt = await world.train()
    await opened(attempt)
    for number in range(MAX_SIGNALS + 20):
        world.after(2 * number, lambda n=number: find(attempt, 1, first=n))
    await deliver(2 * MAX_SIGNALS + 50)
    assert len(temporal.told) == MAX_SIGNALS
    assert await world.ledger.undelivered() == ()
    await find(attempt, 1, Interruption.CRASH)
    await deliver(3)
    assert (len(temporal.told), temporal.told[-1].kind) == (MAX_SIGNALS + 1, Interruption.CRASH)
    # Once it is closed, the next finding is another incident's.
    await opened(attempt, outcome="observed")
    await find(attempt, 1, first=999)
    await deliver(3)
    assert len(temporal.told) == MAX_SIGNALS + 2


async def test_a_clock_set_back_holds_nothing_up(world, temporal, deliver, find):
    """The distance is kept by our clock, and that may be set."""
    attempt = await world.train()
    await find(attempt, 1)
    await deliver()
    world.clock.on(-3600)
    await find(attempt, 1, first=1)
    await deliver()
    assert len(temporal.told) == 2


async def test_jobs_do_not_wait_for_each_other(world, temporal, deliver, find):
    """A power cut: a thousand jobs at once, some at a time, each once. Temporal answers when these all have asked."""
    temporal.together, number = asyncio.Barrier(AT_ONCE), 31 * AT_ONCE
    base = await world.train()
    attempts = [
        base.model_copy(update={"key": base.key.model_copy(update={"job_id": 1000 + each})}) for each in range(number)
    ]
    for attempt in attempts:
        await find(attempt, 1, Interruption.CRASH)
    began = world.clock.now
    async with asyncio.timeout(120):
        await deliver()
    jobs = [told.attempt.job_id for told in temporal.told]
    assert sorted(jobs) == list(range(1000, 1000 + number))
    assert all(abs(job - 1000 - place) < AT_ONCE for place, job in enumerate(jobs)), "the oldest come first"
    assert temporal.at[-1] == began


async def test_a_crowd_of_one_job_does_not_hold_up_the_others(world, temporal, deliver, find, monkeypatch):
    """More of its findings than are read at a time stand before another job's."""
    monkeypatch.setattr(relay, "READ_AT_ONCE", 50)
    first = await world.train()
    await find(first, 200)
    other = first.model_copy(update={"key": first.key.model_copy(update={"job_id": 99})})
    world.clock.on(1)
    await find(other, 1, Interruption.CRASH)
    began = world.clock.now
    await deliver(20)
    reached = dict(zip((told.attempt.job_id for told in temporal.told), temporal.at, strict=True))
    assert reached[99] - began <= 5 * SIGNALS_APART
    assert await world.ledger.undelivered() == ()


# --- failures ---


async def test_what_temporal_does_not_take_stays(world, temporal, deliver):
    """The activity ends, Temporal starts it again, and nothing is lost; meanwhile the detector is blind."""
    await world.failed()
    temporal.refuses = lambda _workflow_id: True
    with pytest.raises(RPCError):
        await deliver()
    assert len(await world.ledger.undelivered()) == 1
    assert world.site.detectors.sights()["outbox"].state(world.clock.now) is Sees.BLIND
    temporal.refuses = lambda _workflow_id: False
    await deliver()
    assert (len(temporal.started), await world.ledger.undelivered()) == (1, ())
    assert world.site.detectors.sights()["outbox"].state(world.clock.now) is Sees.SEES


async def test_one_that_is_refused_does_not_hold_up_the_others(world, temporal, deliver, find):
    """They are delivered and marked before the failure is told."""
    base = await world.train()
    for number in range(3 * AT_ONCE):
        key = base.key.model_copy(update={"job_id": 1000 + number})
        await find(base.model_copy(update={"key": key}), 1)
    temporal.refuses = lambda workflow_id: "/1005/" in workflow_id
    with pytest.raises(RPCError):
        await deliver()
    assert [each.attempt.job_id for each in await world.ledger.undelivered()] == [1005]


async def test_what_could_not_be_marked_is_delivered_again(world, temporal, deliver, monkeypatch):
    """At least once: the workflow knows the detection by its id."""
    await world.failed()

    async def fails(*_detection_ids):
        raise LedgerUnavailableError("the database does not answer")

    monkeypatch.setattr(world.ledger, "delivered", fails, raising=False)
    with pytest.raises(LedgerUnavailableError):
        await deliver()
    monkeypatch.undo()
    assert len(await world.ledger.undelivered()) == 1
    await deliver(3)
    first, second = temporal.told
    assert first == second


async def test_what_an_incident_has_answered_is_not_told_again(world, temporal, deliver, ref):
    """The worker died between signal and mark, and the incident is closed: a second one would be another answer."""
    attempt = await world.failed()
    (found,) = await world.ledger.undelivered()
    body = {"detection": found.model_dump(mode="json")}
    opened = world.site.entry("recover/x/run/open/done", RowKind.OPENED, body, attempt)
    await world.ledger.commit(Change(entries=(opened,)))
    await deliver()
    assert (temporal.started, await world.ledger.undelivered()) == ([], ())


async def test_a_ledger_that_is_away_is_waited_for(world, temporal, deliver):
    """Looked at again and again; delivered once it is back."""
    await world.failed()
    world.ledger.down = True

    def back():
        world.ledger.down = False

    world.after(1, back)
    await deliver()
    assert len(temporal.started) == 1
