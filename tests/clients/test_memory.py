"""The simulated Slurm behaves as the real one was seen to, where Relight depends on it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from relight.clients.memory import BEGIN_DELAY, Call, MemorySlurm, memory_ledger
from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeControl,
    NodeNotFoundError,
    RefusedError,
    Slurm,
    SlurmBusyError,
    SlurmUnavailableError,
)
from relight.domain.hands import held_by_slurm
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.slurm import JobFlag, JobState, NodeFlag, NodeState

OURS = "relight:i1:gpu: Xid 79"


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def on(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slurm(clock: Clock) -> MemorySlurm:
    return MemorySlurm(clock)


def running(slurm: MemorySlurm, **fields: object) -> int:
    job = slurm.submit(**fields)
    assert slurm.start(job).running
    return job


def test_it_is_both_slurm_and_node_control(slurm: MemorySlurm):
    """The type checker accepts it for both contracts."""
    reads: Slurm = slurm
    nodes: NodeControl = slurm
    assert reads is nodes


async def test_a_job_runs_fails_and_is_accounted(slurm: MemorySlurm, clock: Clock):
    """A started job holds its nodes; once failed they are free and accounting has the execution."""
    job = running(slurm)
    assert (await slurm.job(job)).nodes == ("n1", "n2")
    assert (await slurm.node("n1")).state is NodeState.ALLOCATED
    clock.on(60)
    slurm.fail(job, exit_code=9)
    record = await slurm.job(job)
    assert (record.state, record.exit_code, record.completing) == (JobState.FAILED, 9, False)
    assert (await slurm.node("n1")).state is NodeState.IDLE
    (row,) = await slurm.executions(job)
    assert (row.state, row.nodes, row.end_time) == (JobState.FAILED, ("n1", "n2"), clock.now)


async def test_requeue_waits_for_its_begin_time(slurm: MemorySlurm, clock: Clock):
    """A requeued job is a new submission that runs by itself 121 s later: the dead man's switch."""
    job = running(slurm)
    before = (await slurm.job(job)).submit_time
    clock.on(10)
    slurm.fail(job)
    await slurm.requeue(job)
    record = await slurm.job(job)
    assert (record.state, record.reason, record.restarts, record.nodes) == (JobState.PENDING, "BeginTime", 1, ())
    assert record.submit_time == before + timedelta(seconds=10)
    assert record.eligible_time == clock.now + BEGIN_DELAY
    clock.on(120)
    assert (await slurm.job(job)).state is JobState.PENDING
    clock.on(1)
    assert (await slurm.job(job)).running
    assert len(await slurm.executions(job)) == 2


async def test_while_completing_the_old_submit_time_shows_with_the_new_restarts(clock: Clock):
    """A running job that is requeued shows the new count at once, and its new SubmitTime after the epilog."""
    slurm = MemorySlurm(clock, epilog=timedelta(seconds=8))
    job = running(slurm)
    before = (await slurm.job(job)).submit_time
    clock.on(5)
    await slurm.requeue(job)
    record = await slurm.job(job)
    assert (record.state, record.completing, record.restarts) == (JobState.PENDING, True, 1)
    assert record.submit_time == before
    await slurm.exclude(job, ("n1",))  # survives
    await slurm.start_now(job)  # does not
    clock.on(8)
    record = await slurm.job(job)
    assert (record.completing, record.reason, record.excluded_nodes) == (False, "BeginTime", ("n1",))
    assert record.submit_time == clock.now
    await slurm.start_now(job)
    assert (await slurm.job(job)).nodes == ("n2", "n3")


async def test_a_start_that_is_put_off_comes_by_itself(slurm: MemorySlurm, clock: Clock):
    """And not sooner; a wait that is none, or beyond reason, is refused."""
    job = running(slurm)
    await slurm.requeue(job)
    await slurm.start_after(job, timedelta(minutes=5))
    clock.on(299)
    assert (await slurm.job(job)).reason == "BeginTime"
    clock.on(1)
    assert (await slurm.job(job)).running
    for wait in (timedelta(0), timedelta(seconds=-1), timedelta(days=11)):
        with pytest.raises(RefusedError):
            await slurm.start_after(job, wait)


async def test_completing_lasts_until_told(clock: Clock):
    """With no epilog time a job completes for as long as the test wants."""
    slurm = MemorySlurm(clock, epilog=None)
    job = running(slurm)
    slurm.fail(job)
    clock.on(3600)
    assert (await slurm.job(job)).flags == {JobFlag.COMPLETING}
    assert NodeFlag.COMPLETING in (await slurm.node("n1")).flags
    slurm.finish_completing(job)
    slurm.finish_completing(job)
    assert not (await slurm.job(job)).completing
    assert not (await slurm.node("n1")).flags


async def test_exclusions_decide_where_it_runs(slurm: MemorySlurm):
    """Too few nodes left is BadConstraints, nodes in use is Resources, and taking one back lets it run."""
    job = running(slurm, nodes=2)
    other = running(slurm, nodes=2)
    slurm.fail(job)
    await slurm.requeue(job)
    await slurm.exclude(job, ("n1", "n2", "n3"))
    await slurm.start_now(job)
    assert (await slurm.job(job)).reason == "BadConstraints"
    await slurm.exclude(job, ("n1",))
    await slurm.start_now(job)
    assert (await slurm.job(job)).reason == "Resources"
    slurm.fail(other)
    assert (await slurm.job(job)).nodes == ("n2", "n3")


async def test_what_slurm_refuses(slurm: MemorySlurm):
    """Changing a running job, requeueing a pending or --no-requeue one, unknown jobs and nodes."""
    job = running(slurm, requeue=False)
    pending = slurm.submit()
    for refused in (
        slurm.exclude(job, ("n1",)),
        slurm.start_now(job),
        slurm.requeue(job),
        slurm.requeue(pending),
        slurm.exclude(pending, ("nope",)),
    ):
        with pytest.raises(RefusedError):
            await refused
    for unknown in (slurm.requeue(99), slurm.job(99), slurm.batch_script(99), slurm.cpu_time(99)):
        with pytest.raises(JobNotFoundError):
            await unknown
    with pytest.raises(NodeNotFoundError):
        await slurm.node("nope")


async def test_a_held_job_does_not_start(slurm: MemorySlurm, clock: Clock):
    """Neither when told to nor by its begin time; released, it starts; an ended job cannot be held."""
    job = running(slurm)
    await slurm.hold(job)
    assert (await slurm.job(job)).running
    await slurm.requeue(job)
    await slurm.start_now(job)
    clock.on(200)
    record = await slurm.job(job)
    assert (record.state, record.reason) == (JobState.PENDING, "JobHeldAdmin")
    await slurm.release(job)
    assert (await slurm.job(job)).running
    await slurm.release(job)
    await slurm.cancel(job)
    for refused in (slurm.hold(job), slurm.release(job)):
        with pytest.raises(RefusedError):
            await refused
    waiting = slurm.submit()
    await slurm.hold(waiting)
    assert not slurm.start(waiting).running
    await slurm.release(waiting)
    assert slurm.start(waiting).running


@pytest.mark.parametrize("held", [True, False])
async def test_a_failed_launch(slurm: MemorySlurm, clock: Clock, held: bool):
    """Queued again, held with Slurm's own words or not, its node drained; accounting calls it REQUEUED."""
    job = slurm.submit()
    slurm.start(job)
    slurm.fail_launch(job, prolog_on="n2", held=held)
    waits = await slurm.job(job)
    assert (waits.state, waits.restarts) == (JobState.PENDING, 1)
    assert (held_by_slurm(waits), waits.reason) == ((True, "JobHeldUser") if held else (False, "BeginTime"))
    assert (await slurm.node("n2")).prolog_failed
    assert [row.state for row in await slurm.executions(job)] == [JobState.PENDING]
    await slurm.release(job)
    clock.on(BEGIN_DELAY.total_seconds())
    assert (await slurm.job(job)).nodes == ("n1", "n3")


async def test_a_release_leaves_the_begin_time(slurm: MemorySlurm, clock: Clock):
    """A requeued job that was held meanwhile still waits for it."""
    job = running(slurm)
    await slurm.requeue(job)
    await slurm.hold(job)
    await slurm.release(job)
    assert (await slurm.job(job)).reason == "BeginTime"
    clock.on(BEGIN_DELAY.total_seconds())
    assert (await slurm.job(job)).running


async def test_steps_are_those_of_a_running_job(slurm: MemorySlurm):
    """Batch script and tasks while it runs, none before and after."""
    job = slurm.submit(nodes=2)
    assert await slurm.steps(job) == ()
    slurm.start(job)
    tasks, batch = await slurm.steps(job)
    assert (tasks.step_id, tasks.nodes, tasks.task_count) == (f"{job}.0", ("n1", "n2"), 2)
    assert (batch.step_id, batch.nodes) == (f"{job}.batch", ("n1",))
    slurm.fail(job)
    assert await slurm.steps(job) == ()
    with pytest.raises(JobNotFoundError):
        await slurm.steps(99)


async def test_submitting_a_script(slurm: MemorySlurm):
    """It is queued in its folder, held where asked; a lost answer leaves the job there."""
    job = await slurm.submit_batch("#!/bin/sh\ntrue\n", "/w")
    assert (await slurm.job(job)).work_dir == "/w"
    assert await slurm.batch_script(job) == "#!/bin/sh\ntrue\n"
    assert slurm.start(job).running
    held = await slurm.submit_batch("#!/bin/sh\n", "/w", held=True)
    assert (await slurm.job(held)).reason == "JobHeldUser"
    assert not slurm.start(held).running
    slurm.fail_next("submit_batch", AmbiguousWriteError("lost"), after=True)
    with pytest.raises(AmbiguousWriteError):
        await slurm.submit_batch("#!/bin/sh\n", "/w")
    assert len(await slurm.jobs()) == 3


async def test_a_cancelled_job_can_be_resurrected(slurm: MemorySlurm):
    """Slurm requeues a job that its user cancelled: not doing so is Relight's business."""
    job = running(slurm)
    await slurm.cancel(job)
    await slurm.cancel(job)
    assert (await slurm.job(job)).state is JobState.CANCELLED
    await slurm.requeue(job)
    assert (await slurm.job(job)).state is JobState.PENDING
    waiting = slurm.submit()
    await slurm.cancel(waiting)
    assert (await slurm.job(waiting)).state is JobState.CANCELLED


async def test_a_lost_node_requeues_or_fails_its_job(slurm: MemorySlurm):
    """Slurm itself requeues the job with no nodes shown; NODE_FAIL is in accounting only, or final."""
    job, fixed = running(slurm), running(slurm, requeue=False)
    slurm.lose_node("n1")
    slurm.lose_node("n3")
    record = await slurm.job(job)
    assert (record.state, record.restarts, record.reason, record.nodes) == (JobState.PENDING, 1, "BeginTime", ())
    assert (await slurm.executions(job))[0].state is JobState.NODE_FAIL
    assert (await slurm.job(fixed)).state is JobState.NODE_FAIL
    assert (await slurm.node("n1")).lost
    slurm.return_node("n1")
    assert (await slurm.node("n1")).eligible
    assert (await slurm.node("n1")).reason == ""


async def test_a_drained_node_keeps_its_job_and_takes_no_other(slurm: MemorySlurm):
    """A drain lets work end; only our own drains can be undone."""
    job = running(slurm, nodes=4)
    await slurm.drain("n1", OURS)
    node = await slurm.node("n1")
    assert (node.draining, node.state, node.reason) == (True, NodeState.ALLOCATED, OURS)
    slurm.fail(job)
    await slurm.requeue(job)
    await slurm.start_now(job)
    assert (await slurm.job(job)).reason == "BadConstraints"
    await slurm.undrain("n1")
    assert (await slurm.job(job)).running  # the scheduler's next look at it
    assert (await slurm.node("n1")).reason == ""


async def test_the_wrapper_refuses_foreign_marks_and_beyond_its_cap(clock: Clock):
    """A drain by an administrator stays; a reason that is not ours and a change past the cap are refused."""
    slurm = MemorySlurm(clock, node_cap=1)
    admin = {"flags": frozenset({NodeFlag.DRAIN}), "reason": "RMA"}
    slurm.node_records["n2"] = slurm.node_records["n2"].model_copy(update=admin)
    await slurm.drain("n1", OURS)
    for refused in (
        slurm.drain("n2", OURS),
        slurm.undrain("n2"),
        slurm.drain("n3", "because"),
        slurm.drain("n3", OURS),
    ):
        with pytest.raises(RefusedError):
            await refused
    assert (await slurm.node("n2")).reason == "RMA"


async def test_down_ends_what_completes_there(clock: Clock):
    """A node that cannot end its job is set DOWN: the job is free of it."""
    slurm = MemorySlurm(clock, epilog=None)
    job = running(slurm)
    await slurm.requeue(job)
    assert (await slurm.job(job)).completing
    await slurm.down("n1", OURS)
    assert not (await slurm.job(job)).completing
    assert (await slurm.node("n1")).state is NodeState.DOWN
    await slurm.undrain("n1")
    assert (await slurm.node("n1")).eligible


async def test_a_start_too_early_fails_where_asked_for(clock: Clock):
    """With `start_race` a start within 2 s of the requeue fails the job, as Slurm may."""
    slurm = MemorySlurm(clock, start_race=True)
    job = running(slurm)
    await slurm.requeue(job)
    await slurm.start_now(job)
    assert (await slurm.job(job)).state is JobState.FAILED
    await slurm.requeue(job)
    clock.on(2)
    await slurm.start_now(job)
    assert (await slurm.job(job)).running


async def test_errors_are_injected_before_or_after_the_effect(slurm: MemorySlurm):
    """An error comes once, in the order given; with `after` the write has happened all the same."""
    job = running(slurm)
    slurm.fail_next("jobs", SlurmBusyError("busy"))
    slurm.fail_next("requeue", SlurmUnavailableError("gone"))
    slurm.fail_next("requeue", AmbiguousWriteError("lost"), after=True)
    with pytest.raises(SlurmBusyError):
        await slurm.jobs()
    assert len(await slurm.jobs()) == 1
    with pytest.raises(SlurmUnavailableError):
        await slurm.requeue(job)
    assert (await slurm.job(job)).restarts == 0
    with pytest.raises(AmbiguousWriteError):
        await slurm.requeue(job)
    assert (await slurm.job(job)).restarts == 1
    assert slurm.writes == [Call("requeue", job), Call("requeue", job)]


async def test_a_purged_job_is_gone_from_slurmctld_only(slurm: MemorySlurm):
    """After MinJobAge the record is unknown and accounting still has it, unless accounting is off."""
    job = running(slurm, script="#!/bin/sh\nsrun x\n")
    assert "srun x" in await slurm.batch_script(job)
    slurm.cpu[job] = timedelta(minutes=3)
    assert await slurm.cpu_time(job) == timedelta(minutes=3)
    slurm.fail(job)
    slurm.purge(job)
    with pytest.raises(JobNotFoundError):
        await slurm.job(job)
    assert len(await slurm.executions(job)) == 1
    with pytest.raises(SlurmUnavailableError):
        await MemorySlurm(slurm.clock, accounting=False).executions(job)
    assert (await slurm.facts()).cluster == "test"


async def test_a_memory_ledger_is_a_ledger(clock: Clock):
    """It commits, verifies, and shares nothing with another."""
    one, two = memory_ledger(), memory_ledger()
    entry = Entry(id="a", kind=RowKind.NOTE, at=clock.now, cluster="c")
    assert await one.commit(Change(entries=(entry,))) == 1
    assert (await one.verify()).rows == 1
    assert await two.rows() == ()
    one.close()
    two.close()


async def test_a_memory_ledger_serves_many_at_once(clock: Clock):
    """Its one connection is shared without mixing transactions up."""
    ledger = memory_ledger()
    entries = [Entry(id=f"{n}", kind=RowKind.NOTE, at=clock.now, cluster="c") for n in range(100)]
    work = [ledger.commit(Change(entries=(entry,), cursors={"x": {}})) for entry in entries]
    await asyncio.gather(*work, *(ledger.rows() for _ in entries), *(ledger.verify() for _ in range(10)))
    report = await ledger.verify()
    assert (report.ok, report.rows) == (True, 100)
    ledger.close()
