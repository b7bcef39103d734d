"""Ends of every kind, ends that nobody saw, clocks that jump: none is lost, invented, or told twice."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from relight.activities.ends import STILL_NEWS
from relight.activities.watch import ACCOUNTING_LAGS, Watch
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.attempts import Progress, progress_cursor
from relight.domain.endings import HUNG_UNTIL_LIMIT
from relight.domain.evidence import Interruption
from relight.domain.ledger import Change, RowKind
from relight.domain.slurm import JobFlag, JobState

MINUTE = timedelta(minutes=1)


async def found(world):
    """The detections in the outbox."""
    return [(d.attempt.job_id, d.kind) for d in await world.ledger.undelivered()]


async def ends(world):
    """How each attempt ended, as written down."""
    return [row.body["how"] for row in await world.rows(RowKind.ATTEMPT_ENDED)]


async def afterwards(world):
    """The restart counts of attempts that were seen afterwards only."""
    return [
        row.body["record"]["restarts"] for row in await world.rows(RowKind.ATTEMPT_SEEN) if "afterwards" in row.body
    ]


def put(world, job, **fields):
    """Change a job's record as slurmctld might."""
    world.slurm.job_records[job] = world.slurm.job_records[job].model_copy(update=fields)


def restarted(world):
    """Another worker takes over: nothing in memory is left."""
    return Watch(world.site)


@pytest.fixture
def known_users(monkeypatch):
    """Users that this machine knows."""
    ids = {"alice": 999, "slurm": 64030}

    def look_up(name):
        return type("Entry", (), {"pw_uid": ids[name]})

    monkeypatch.setattr("relight.activities.ends.pwd.getpwnam", look_up)


@pytest.mark.parametrize(
    ("by", "who"),
    [
        ("999", "cancelled by its owner: uid 999"),
        ("0", "cancelled by root or Slurm: uid 0"),
        ("64030", "cancelled by root or Slurm: uid 64030"),
        ("994", "cancelled by another user: uid 994"),
    ],
)
@pytest.mark.usefixtures("known_users")
async def test_by_whom_a_job_was_cancelled_is_written_down(world, by, who):
    """Nobody's cancelling is an interruption."""
    attempt = await world.train()
    world.slurm.slurm_facts = world.slurm.slurm_facts.model_copy(update={"slurm_user": "slurm"})
    await world.slurm.cancel(attempt.key.job_id)
    rows = world.slurm._executions[attempt.key.job_id]
    rows[-1] = rows[-1].model_copy(update={"cancelled_by": by})
    await world.look()
    assert await ends(world) == [f"CANCELLED ({who}), queued again by nobody"]
    assert await found(world) == []


async def test_preempted_and_queued_again_is_told_by_accounting(world):
    """Its record looks like a person's requeue."""
    attempt = await world.train()
    await world.slurm.requeue(attempt.key.job_id)
    rows = world.slurm._executions[attempt.key.job_id]
    rows[-1] = rows[-1].model_copy(update={"state": JobState.PREEMPTED})
    await world.look()
    assert await ends(world) == ["PENDING (preempted), queued again by unknown"]
    assert await found(world) == []


async def test_a_lost_node_that_is_back_already_is_told_by_accounting(world):
    """Slurm queued the job again; by the next look every node is well."""
    attempt = await world.train()
    world.slurm.lose_node("n2")
    world.slurm.return_node("n2")
    await world.look()
    assert await found(world) == [(attempt.key.job_id, Interruption.NODE_LOST)]


@pytest.mark.parametrize("held", [True, False])
async def test_a_failed_prolog_is_a_lost_node(world, held):
    """Slurm drains the node, queues the job again and holds it, unless the site says otherwise."""
    attempt = await world.train()
    world.slurm.fail_launch(attempt.key.job_id, prolog_on="n1", held=held)
    await world.look()
    (detection,) = await world.ledger.undelivered()
    assert detection.kind is Interruption.NODE_LOST
    assert "n1" in {e.node for e in detection.evidence}


async def test_a_launch_failure_that_slurm_holds_is_a_crash(world):
    """No node is to blame by Slurm's own word."""
    attempt = await world.train()
    world.slurm.fail_launch(attempt.key.job_id)
    await world.look()
    assert await found(world) == [(attempt.key.job_id, Interruption.CRASH)]
    assert "launch failed" in (await world.ledger.undelivered())[0].evidence[0].text
    (end,) = await ends(world)
    assert end == "PENDING (launch failed), queued again by slurm"


async def test_a_suspended_job_has_not_ended(world):
    """Nor has it begun anew when it goes on; its end afterwards is seen."""
    attempt = await world.train()
    for state in (JobState.SUSPENDED, JobState.RUNNING):
        world.change(attempt, state=state)
        await world.look()
    assert [row.kind for row in await world.rows()] == [RowKind.ATTEMPT_SEEN]
    world.slurm.fail(attempt.key.job_id)
    await world.look()
    assert await found(world) == [(attempt.key.job_id, Interruption.CRASH)]


async def test_tasks_of_an_array_end_each_for_itself(world):
    """One fails, the other trains on."""
    first = await world.train(nodes=1, array_job_id=1, array_task_id=0)
    other = await world.train(nodes=1, array_job_id=1, array_task_id=1)
    world.slurm.fail(other.key.job_id)
    await world.look()
    assert await found(world) == [(other.key.job_id, Interruption.CRASH)]
    assert (await world.ledger.attempt(first.key)).running


async def heterogeneous(world):
    """A job of two components."""
    leader = await world.train(nodes=1, het_job_id=1, het_offset=0)
    component = await world.train(nodes=1, het_job_id=1, het_offset=1)
    return leader, component


async def test_a_heterogeneous_job_fails_once(world):
    """Slurm ends all its components with it, and knows a requeue of the whole only."""
    leader, component = await heterogeneous(world)
    world.slurm.fail(leader.key.job_id)
    world.slurm.fail(component.key.job_id)
    await world.look()
    assert await found(world) == [(leader.key.job_id, Interruption.CRASH)]
    assert len(await ends(world)) == 2


async def test_a_component_that_fails_alone_is_told(world):
    """The leader runs on."""
    _, component = await heterogeneous(world)
    world.slurm.fail(component.key.job_id)
    await world.look()
    assert await found(world) == [(component.key.job_id, Interruption.CRASH)]


async def test_another_job_under_the_same_id_says_nothing_of_the_end(world):
    """Not even when it fails: accounting knows how the attempt ended."""
    attempt = await world.train()
    rows = world.slurm._executions[attempt.key.job_id]
    rows[-1] = rows[-1].model_copy(update={"state": JobState.COMPLETED, "end_time": world.clock.now})
    later = world.clock.now + MINUTE
    world.change(attempt, user="bob", submit_time=later, state=JobState.FAILED, end_time=later)
    await world.look()
    assert "COMPLETED (from accounting)" in await ends(world)
    assert {user for user, _ in await owners_of_detections(world)} == {"bob"}


async def owners_of_detections(world):
    """Whose attempts were interrupted."""
    told = []
    for detection in await world.ledger.undelivered():
        state = await world.ledger.attempt(detection.attempt)
        told.append((state.attempt.record.user, detection.kind))
    return told


async def silent(world, attempt, seconds, **progress):
    """The attempt's last step is so many seconds ago."""
    at = world.clock.now - timedelta(seconds=seconds)
    value = Progress(last_step=5, last_step_at=at, step_seconds=1.0, **progress)
    await world.ledger.commit(Change(cursors={progress_cursor(attempt.key): value.model_dump(mode="json")}))


@pytest.mark.parametrize(("seconds", "hung"), [(30, False), (599, False), (601, True)])
async def test_a_time_limit_after_a_long_silence_is_a_hang(world, seconds, hung):
    """Told from the end, with the silence as its evidence."""
    attempt = await world.train()
    world.clock.on(3600)
    await silent(world, attempt, seconds)
    world.slurm.fail(attempt.key.job_id, state=JobState.TIMEOUT, exit_code=0, exit_signal=15)
    await world.look()
    assert await found(world) == ([(attempt.key.job_id, Interruption.HANG)] if hung else [])
    if hung:
        (detection,) = await world.ledger.undelivered()
        assert detection.evidence[-1].signature == HUNG_UNTIL_LIMIT


async def test_rare_step_lines_are_no_silence(world):
    """A line every ten steps of a minute and a half each."""
    attempt = await world.train()
    world.clock.on(10_000)
    await silent(world, attempt, 4000, stride=10)
    progress = (await world.site.progress(attempt.key)).model_copy(update={"step_seconds": 90.0})
    await world.ledger.commit(Change(cursors={progress_cursor(attempt.key): progress.model_dump(mode="json")}))
    world.slurm.fail(attempt.key.job_id, state=JobState.TIMEOUT)
    await world.look()
    assert await found(world) == []


async def test_silence_that_nobody_watched_is_none(world):
    """The worker has only just come back: what the job printed meanwhile has not been read."""
    attempt = await world.train()
    world.clock.on(3600)
    await silent(world, attempt, 3000)
    world.slurm.fail(attempt.key.job_id, state=JobState.TIMEOUT)
    await restarted(world)._look_at_jobs()
    assert await found(world) == []


async def test_silence_of_an_output_that_cannot_be_read_is_none(world):
    """The follower said that it was blind."""
    attempt = await world.train()
    world.clock.on(3600)
    await silent(world, attempt, 3000)
    blind = world.site.entry("blind/x", RowKind.BLIND, {"what": "log", "why": "stale"}, attempt)
    await world.ledger.commit(Change(entries=(blind,)))
    world.slurm.fail(attempt.key.job_id, state=JobState.TIMEOUT)
    await world.look()
    assert await found(world) == []


# What ran unseen.


async def lost_again(world, job, node):
    """The job's begin time passes, it runs on the node and loses it."""
    world.clock.on(130)
    await world.slurm.jobs()
    assert node in world.slurm.job_records[job].nodes
    world.slurm.lose_node(node)


async def test_executions_of_an_outage_are_written_down_and_the_last_one_counts(world):
    """Three came and went: two are old, the last one still stands, and each is told once."""
    attempt = await world.train(nodes=1)
    job = attempt.key.job_id
    world.slurm.lose_node("n1")
    await lost_again(world, job, "n2")
    await lost_again(world, job, "n3")
    watch = restarted(world)
    for _ in range(3):
        await world.run(watch._look_at_jobs)
        world.clock.on(1)
    assert await afterwards(world) == [1, 2]
    assert await ends(world) == [
        "PENDING (node failed), queued again by slurm",
        "NODE_FAIL (from accounting)",
        "PENDING (node failed), queued again by slurm",
    ]
    (detection,) = await world.ledger.undelivered()
    newest = (await world.ledger.attempts_of_job("test", job))[0].attempt
    assert (detection.attempt, detection.kind) == (newest.key, Interruption.NODE_LOST)
    assert newest.record.restarts == 2
    assert {s.attempt.lineage for s in await world.ledger.attempts_of_job("test", job)} == {attempt.lineage}


async def test_old_events_trigger_nothing_once_the_job_runs_again(world):
    """They are in the ledger, and that is all."""
    attempt = await world.train(nodes=1)
    job = attempt.key.job_id
    world.slurm.lose_node("n1")
    await lost_again(world, job, "n2")
    world.clock.on(130)
    await restarted(world)._look_at_jobs()
    assert world.record(attempt).running
    assert await found(world) == []
    assert await afterwards(world) == [1]
    assert [s.running for s in await world.ledger.attempts_of_job("test", job)] == [True, False, False]


async def test_executions_of_a_job_that_is_forgotten_are_found_in_accounting(world):
    """The last one counts, as far as anything is left to be done."""
    attempt = await world.train(nodes=1)
    job = attempt.key.job_id
    world.slurm.lose_node("n1")
    await lost_again(world, job, "n2")
    world.slurm.purge(job)
    await restarted(world)._look_at_jobs()
    newest = (await world.ledger.attempts_of_job("test", job))[0].attempt
    assert [d.attempt for d in await world.ledger.undelivered()] == [newest.key]
    assert newest.record.restarts == 1


async def test_executions_from_before_the_first_look_stay_old(world):
    """Accounting still has them; what came after the last look is told all the same."""
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.clock.on(30)
    world.slurm.lose_node("n1")
    world.clock.on(130)
    world.slurm.submit(nodes=1)
    await world.look()
    assert len(await world.ledger.running_attempts("test")) == 1
    world.clock.on(60)
    world.slurm.lose_node("n2")
    await lost_again(world, job, "n3")
    await restarted(world)._look_at_jobs()
    assert await afterwards(world) == [2]


async def test_a_worker_that_dies_between_two_executions_loses_none(world):
    """The attempt that led to them is written last."""
    attempt = await world.train(nodes=1)
    job = attempt.key.job_id
    world.slurm.lose_node("n1")
    await lost_again(world, job, "n2")
    world.slurm.purge(job)
    world.ledger.refused = {RowKind.DETECTED}
    with pytest.raises(LedgerUnavailableError):
        await restarted(world)._look_at_jobs()
    world.ledger.refused = set()
    await restarted(world)._look_at_jobs()
    newest = (await world.ledger.attempts_of_job("test", job))[0].attempt
    assert [d.attempt for d in await world.ledger.undelivered()] == [newest.key]
    assert newest.record.restarts == 1


async def test_a_job_that_was_restarted_before_the_first_look_is_old(world):
    """A new installation does not go through yesterday's accounting."""
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.slurm.lose_node("n1")
    await lost_again(world, job, "n2")
    for _ in range(2):
        await world.look()
        world.clock.on(1)
    assert await world.rows() == ()


async def test_what_completes_at_the_first_look_is_old(make_world):
    """However long it goes on completing."""
    world = make_world(epilog=None)
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.slurm.fail(job)
    for _ in range(3):
        await world.look()
        world.clock.on(1)
    world.slurm.finish_completing(job)
    await world.look()
    assert await world.rows() == ()


async def test_a_launch_failure_between_two_looks_is_found(world):
    """Nobody saw it run: accounting has the execution, the record the reason."""
    await world.look()
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.clock.on(1)
    await world.slurm.requeue(job)
    put(world, job, reason="launch failed requeued held")
    for _ in range(2):
        world.clock.on(1)
        await world.look()
    assert await found(world) == [(job, Interruption.CRASH)]
    assert await afterwards(world) == [0]


async def test_a_persons_requeue_between_two_looks_leaves_no_trace(world):
    """It is theirs, and nobody saw the attempt."""
    await world.look()
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.clock.on(1)
    await world.slurm.requeue(job)
    world.clock.on(1)
    await world.look()
    assert await world.rows() == ()


async def test_without_accounting_the_gap_is_said(make_world):
    """Once; nothing is invented, and the watcher goes on."""
    world = make_world(accounting=False)
    attempt = await world.train(nodes=1)
    world.slurm.lose_node("n1")
    await lost_again(world, attempt.key.job_id, "n2")
    watch = restarted(world)
    for _ in range(2):
        await world.run(watch._look_at_jobs)
    assert [row.body["what"] for row in await world.rows(RowKind.BLIND)] == ["accounting"]
    assert await afterwards(world) == []


async def test_accounting_that_lags_behind_is_asked_again(world):
    """Before it knows the last execution's end, nothing is written: an older one would pass for the last."""
    attempt = await world.train(nodes=1)
    job = attempt.key.job_id
    world.slurm.lose_node("n1")
    await lost_again(world, job, "n2")
    await lost_again(world, job, "n3")
    rows = world.slurm._executions[job]
    whole, rows[-1] = rows[-1], rows[-1].model_copy(update={"state": JobState.RUNNING, "end_time": None})
    watch = restarted(world)
    await world.run(watch._look_at_jobs)
    assert await afterwards(world) == []
    rows[-1] = whole
    await world.run(watch._look_at_jobs)
    assert await afterwards(world) == [1, 2]
    newest = (await world.ledger.attempts_of_job("test", job))[0].attempt
    assert [d.attempt for d in await world.ledger.undelivered()] == [newest.key]


async def test_accounting_that_never_knows_is_not_asked_for_ever(world):
    """Its rows may have been purged."""
    await world.look()
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.clock.on(1)
    await world.slurm.requeue(job)
    world.slurm._executions[job].clear()
    asked = []

    async def executions(job_id):
        asked.append(job_id)
        return ()

    world.slurm.executions = executions
    for _ in range(ACCOUNTING_LAGS + 5):
        await world.look()
    assert asked == [job] * ACCOUNTING_LAGS


async def test_accounting_is_asked_once_a_gap(world):
    """Not at every look."""
    await world.look()
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.clock.on(1)
    await world.slurm.requeue(job)
    asked = []
    read = world.slurm.executions

    async def executions(job_id):
        asked.append(job_id)
        return await read(job_id)

    world.slurm.executions = executions
    for _ in range(5):
        await world.look()
    assert asked == [job]


async def test_after_a_long_outage_the_gap_is_worked_off_look_by_look(world, monkeypatch):
    """A worker that dies meanwhile goes on from the same place."""
    monkeypatch.setattr("relight.activities.watch.COUNTED_PER_LOOK", 1)
    await world.look()
    jobs = [world.slurm.submit(nodes=1) for _ in range(3)]
    for job in jobs:
        world.slurm.start(job)
        world.clock.on(1)
        await world.slurm.requeue(job)
        put(world, job, reason="launch failed requeued held")
    world.clock.on(60)
    await restarted(world)._look_at_jobs()
    assert len(await found(world)) == 1
    watch = restarted(world)
    for _ in range(3):
        await world.run(watch._look_at_jobs)
    assert [job for job, _ in await found(world)] == jobs


# Clocks.


class Skewed:
    """Our clock, which is not Slurm's."""

    def __init__(self, clock):
        self.clock = clock
        self.by = timedelta(0)

    def __call__(self) -> datetime:
        return self.clock() + self.by


@pytest.fixture
def ours(world):
    """Our own clock, to be set."""
    return Skewed(world.clock)


JUMPS = [timedelta(hours=-2), timedelta(seconds=-30), timedelta(seconds=30), timedelta(hours=2)]


@pytest.mark.parametrize("jump", JUMPS)
async def test_an_end_is_seen_although_our_clock_jumps(world, ours, jump):
    """Once, of an attempt that was running as of one that nobody saw."""
    watch = Watch(replace(world.site, clock=ours))
    seen = world.slurm.submit(nodes=1)
    world.slurm.start(seen)
    await world.run(watch._look_at_jobs)
    world.clock.on(1)
    ours.by = jump
    flash = world.slurm.submit(nodes=1)
    world.slurm.start(flash)
    for job in (seen, flash):
        world.slurm.fail(job)
    for _ in range(3):
        await world.run(watch._look_at_jobs)
        world.clock.on(1)
        ours.by = -ours.by
    assert await found(world) == [(seen, Interruption.CRASH), (flash, Interruption.CRASH)]


@pytest.mark.parametrize("offset", JUMPS)
async def test_what_failed_while_no_worker_ran_is_told_whatever_the_clocks_say(world, ours, offset):
    """Slurm's clock is ahead of ours or behind it; and what failed before is not told again."""
    ours.by = offset
    site = replace(world.site, clock=ours)
    old = world.slurm.submit(nodes=1)
    world.slurm.start(old)
    world.slurm.fail(old)
    world.clock.on(5)
    waiting = world.slurm.submit(nodes=1)
    await world.run(Watch(site)._look_at_jobs)
    world.slurm.start(waiting)
    world.clock.on(5)
    world.slurm.fail(waiting)
    world.clock.on(5)
    await world.run(Watch(site)._look_at_jobs)
    assert await found(world) == [(waiting, Interruption.CRASH)]


async def test_slurms_clock_set_back_loses_no_end(world):
    """SubmitTime of the next job, and its end, lie before those of the last one."""
    first = world.slurm.submit(nodes=1)
    world.slurm.start(first)
    await world.look()
    world.clock.on(-3600)
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.slurm.fail(job)
    await world.look()
    assert await found(world) == [(job, Interruption.CRASH)]
    assert (await world.ledger.running_attempts("test"))[0].attempt.key.job_id == first


async def test_a_cursor_of_an_earlier_version_is_understood(world):
    """It holds our own clock's time alone."""
    await world.ledger.commit(Change(cursors={"jobs/test": {"looked_at": world.clock.now.isoformat()}}))
    world.clock.on(5)
    job = world.slurm.submit(nodes=1)
    world.slurm.start(job)
    world.slurm.fail(job)
    await world.look()
    assert await found(world) == [(job, Interruption.CRASH)]


# What it costs.


async def test_many_ends_cost_one_read_of_the_nodes(world):
    """And none of accounting where the record says it all."""
    jobs = [world.slurm.submit(nodes=1) for _ in range(4)]
    for job in jobs:
        world.slurm.start(job)
    await world.look()
    for job in jobs:
        world.slurm.fail(job)
    world.slurm.fail_next("executions", AssertionError("asked"))
    read, reads = world.slurm.nodes, []

    async def nodes():
        reads.append(1)
        return await read()

    world.slurm.nodes = nodes
    await world.look()
    assert (len(await found(world)), len(reads)) == (4, 1)


@pytest.mark.parametrize("blind", [True, False], ids=["reads that failed", "another worker"])
@pytest.mark.parametrize(("unwatched", "news"), [(STILL_NEWS, True), (STILL_NEWS + timedelta(seconds=1), False)])
async def test_what_slurm_started_again_unwatched_is_followed_up_for_a_while(world, unwatched, news, blind):
    """Nobody knows yet whether it trains; after a long unwatched time the end is only written down."""
    attempt = await world.train(nodes=1)
    world.slurm.lose_node("n1")
    watch = world.watch if blind else restarted(world)
    if blind:
        watch._blind["jobs"] = world.clock.now
    world.clock.now = world.watch._looked_at + unwatched
    await world.run(watch._look_at_jobs)
    assert world.record(attempt).running
    assert len(await ends(world)) == 1
    assert await found(world) == ([(attempt.key.job_id, Interruption.NODE_LOST)] if news else [])


async def test_a_failed_read_of_accounting_leaves_the_end_known(world):
    """Cancelled is cancelled, whoever did it."""
    attempt = await world.train()
    await world.slurm.cancel(attempt.key.job_id)
    world.slurm.fail_next("executions", SlurmUnavailableError("slurmdbd is down"))
    await world.look()
    assert await ends(world) == ["CANCELLED, queued again by nobody"]


async def test_completing_for_long_is_told_once(make_world):
    """Requeued by Slurm, and still completing with the old SubmitTime and the new count."""
    world = make_world(epilog=None)
    attempt = await world.train()
    world.slurm.lose_node("n2")
    for _ in range(3):
        await world.look()
        world.clock.on(1)
    assert JobFlag.COMPLETING in world.record(attempt).flags
    assert await found(world) == [(attempt.key.job_id, Interruption.NODE_LOST)]
