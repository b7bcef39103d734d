"""The watchers notice starts, ends and lost nodes, each once, and say when they cannot see."""

from collections import Counter
from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.watch import BACK_OFF, Watch
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import NotPermittedError, SlurmBusyError, SlurmUnavailableError
from relight.domain.evidence import Interruption
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode
from relight.domain.policy import Policy
from relight.domain.slurm import JobFlag, JobState, NodeFlag, NodeState

SHORT = c.WatchInput(cluster="test", run_for=timedelta(seconds=10))


async def kinds(world):
    """The detections in the outbox."""
    return [d.kind for d in await world.ledger.undelivered()]


async def states(world, attempt):
    """Whether each attempt of the job is taken to run, newest first."""
    return [s.running for s in await world.ledger.attempts_of_job("test", attempt.key.job_id)]


def counted(world, *methods):
    """Counts reads of Slurm from now on."""
    reads = Counter()

    def count(method, read):
        async def call(*args):
            reads[method] += 1
            return await read(*args)

        return call

    for method in methods:
        setattr(world.slurm, method, count(method, getattr(world.slurm, method)))
    return reads


async def test_an_attempt_is_snapshotted_when_it_runs(world):
    """Record and script are kept: later both may be gone."""
    attempt = await world.train(script="#!/bin/sh\ntorchrun train.py\n")
    assert attempt.script == "#!/bin/sh\ntorchrun train.py\n"
    assert attempt.record.nodes == ("n1", "n2")
    (row,) = await world.rows(RowKind.ATTEMPT_SEEN)
    assert (row.attempt, row.lineage) == (str(attempt.key), attempt.lineage)


async def test_looking_again_changes_nothing(world):
    """However often."""
    await world.train()
    before = await world.rows()
    for _ in range(3):
        await world.look()
    assert await world.rows() == before


async def test_a_pending_job_is_no_attempt(world):
    """Nor is one that still completes."""
    world.slurm.submit()
    await world.look()
    assert await world.rows() == ()


async def test_an_unreadable_script_does_not_hide_the_attempt(world):
    """The snapshot is made without it."""
    world.slurm.fail_next("batch_script", NotPermittedError("Access/permission denied"))
    assert (await world.train()).script is None


async def test_other_partitions_are_not_looked_after(make_world):
    """Where the site names partitions."""
    world = make_world(policy=Policy(partitions=("gpu",)))
    await world.train(partition="gpu", nodes=1)
    job_id = world.slurm.submit(partition="debug", nodes=1)
    world.slurm.start(job_id)
    await world.look()
    assert len(await world.ledger.running_attempts("test")) == 1


async def test_a_failure_is_detected_once(world):
    """With the state it came from in one transaction."""
    attempt = await world.failed()
    await world.look()
    assert await kinds(world) == [Interruption.CRASH]
    assert await states(world, attempt) == [False]
    assert [row.kind for row in await world.rows()] == [RowKind.ATTEMPT_SEEN, RowKind.ATTEMPT_ENDED, RowKind.DETECTED]


async def test_an_attempt_that_began_and_failed_between_two_looks_is_detected(world):
    """Nobody saw it run; it is an interruption all the same, and it is found once."""
    await world.look()
    job = world.slurm.submit()
    world.slurm.start(job)
    world.clock.on(0.4)
    world.slurm.fail(job)
    for _ in range(3):
        world.clock.on(1)
        await world.look()
    assert await kinds(world) == [Interruption.CRASH]
    assert [row.kind for row in await world.rows()] == [
        RowKind.ATTEMPT_SEEN,
        RowKind.ATTEMPT_ENDED,
        RowKind.DETECTED,
    ]


async def test_an_attempt_that_failed_while_no_worker_ran_is_detected(world):
    """The time of the last look outlives the worker."""
    await world.look()
    job = world.slurm.submit()
    world.slurm.start(job)
    world.clock.on(60)
    world.slurm.fail(job)
    world.clock.on(60)
    await Watch(world.site)._look_at_jobs()
    assert await kinds(world) == [Interruption.CRASH]


async def test_what_failed_before_the_first_look_is_old(world):
    """A new installation does not answer yesterday's failures."""
    job = world.slurm.submit()
    world.slurm.start(job)
    world.clock.on(5)
    world.slurm.fail(job)
    world.clock.on(5)
    for _ in range(2):
        await world.look()
        world.clock.on(1)
    assert await world.rows() == ()


@pytest.mark.parametrize(
    "state", [JobState.COMPLETED, JobState.CANCELLED, JobState.PREEMPTED, JobState.TIMEOUT, JobState.DEADLINE]
)
async def test_other_ends_are_not_detected(world, state):
    """Written down as ends, and no more."""
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id, state=state)
    await world.look()
    assert await kinds(world) == []
    assert await states(world, attempt) == [False]


async def test_an_end_is_seen_while_completing(make_world):
    """Not only after the epilog."""
    world = make_world(epilog=None)
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id)
    await world.look()
    assert await kinds(world) == [Interruption.CRASH]


async def test_a_state_hidden_behind_completing_is_looked_up(make_world):
    """22.05 shows COMPLETING alone; accounting knows how it ended."""
    world = make_world(epilog=None)
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id)
    world.change(attempt, state=JobState.UNKNOWN)
    await world.look()
    assert await kinds(world) == [Interruption.CRASH]


async def test_a_state_that_nobody_knows_yet_is_waited_for(make_world):
    """Neither ended nor detected, until it can be read."""
    world = make_world(epilog=None, accounting=False)
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id)
    world.change(attempt, state=JobState.UNKNOWN)
    await world.look()
    assert (await kinds(world), await states(world, attempt)) == ([], [True])
    world.change(attempt, state=JobState.FAILED, flags=frozenset())
    await world.look()
    assert (await kinds(world), await states(world, attempt)) == ([Interruption.CRASH], [False])


@pytest.mark.parametrize("hidden", [False, True])
async def test_who_waited_is_remembered(make_world, hidden):
    """Slurm clears a dependency when the job that waited starts, which may be before the end here is first seen."""
    world = make_world(epilog=None, accounting=False)
    attempt = await world.train(nodes=1)
    heir = world.slurm.submit(nodes=1, name="tail", work_dir="/elsewhere", dependency=f"afterany:{attempt.key.job_id}")
    await world.look()
    world.slurm.fail(attempt.key.job_id)
    world.slurm.start(heir)
    world.slurm.job_records[heir] = world.slurm.job_records[heir].model_copy(update={"dependency": ""})
    if hidden:  # as on 22.05, where how it ended shows only once COMPLETING is over
        world.change(attempt, state=JobState.UNKNOWN)
        await world.look()
        world.change(attempt, state=JobState.FAILED, flags=frozenset())
    await world.look()
    assert (await world.ledger.attempt(attempt.key)).successors == (heir,)


async def test_slurms_own_requeue_is_a_lost_node(world):
    """The node is named, and the next attempt goes on with the same job."""
    attempt = await world.train()
    world.slurm.lose_node("n2")
    await world.look()
    (found,) = await world.ledger.undelivered()
    assert found.kind is Interruption.NODE_LOST
    assert "n2" in {e.node for e in found.evidence}
    world.clock.on(121)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    assert again.key != attempt.key
    assert again.lineage == attempt.lineage
    assert again.record.nodes == ("n1", "n3")


async def test_a_requeue_by_the_user_is_not_detected(world):
    """Theirs."""
    attempt = await world.train()
    await world.slurm.requeue(attempt.key.job_id)
    await world.look()
    assert await kinds(world) == []
    (row,) = await world.rows(RowKind.ATTEMPT_ENDED)
    assert row.body["how"].endswith("queued again by unknown")


async def test_our_own_requeue_is_not_detected(world, act):
    """The ledger holds our intent."""
    attempt = await world.train()
    await world.run(world.restart.requeue, act(attempt, Interruption.HANG))
    world.slurm.node_records["n1"] = world.slurm.node_records["n1"].model_copy(update={"state": NodeState.DOWN})
    await world.look()
    assert await kinds(world) == []
    (row,) = await world.rows(RowKind.ATTEMPT_ENDED)
    assert row.body["how"].endswith("queued again by relight")


async def test_a_reused_id_is_another_job(world):
    """Another user's job under the same id: the old attempt ended, and the lineage is new."""
    attempt = await world.train()
    world.change(attempt, user="bob", submit_time=world.clock.now)
    await world.look()
    other = await world.attempt(attempt.key.job_id)
    assert (other.record.user, other.lineage != attempt.lineage) == ("bob", True)
    assert await kinds(world) == []


async def test_what_ended_during_an_outage_is_found_in_accounting(world):
    """slurmctld has forgotten the job; accounting has not."""
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id)
    world.slurm.purge(attempt.key.job_id)
    await world.look()
    assert await kinds(world) == [Interruption.CRASH]
    assert await states(world, attempt) == [False]


async def test_what_nobody_remembers_is_no_interruption(make_world):
    """Without accounting nothing is known of it: said, and not acted on."""
    world = make_world(accounting=False)
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id)
    world.slurm.purge(attempt.key.job_id)
    await world.look()
    assert await kinds(world) == []
    (row,) = await world.rows(RowKind.ATTEMPT_ENDED)
    assert "accounting does not say" in row.body["how"]


async def test_a_failed_read_changes_nothing(world):
    """It is not an empty queue: no attempt has ended."""
    attempt = await world.train()
    world.slurm.fail_next("jobs", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await world.look()
    assert await states(world, attempt) == [True]


async def test_an_end_is_not_half_written(world):
    """Should the ledger fail, the end is found again by the next look, with its detection."""
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id)
    world.ledger.refused = {RowKind.DETECTED}
    with pytest.raises(LedgerUnavailableError):
        await world.look()
    assert await states(world, attempt) == [True]
    world.ledger.refused = set()
    await world.look()
    assert (await kinds(world), await states(world, attempt)) == ([Interruption.CRASH], [False])


async def test_blindness_is_said_once(world):
    """However long it lasts; once it has passed, the next time is said again."""
    for _ in range(3):
        world.slurm.fail_next("jobs", SlurmUnavailableError("timed out"))
    world.after(6, lambda: world.slurm.fail_next("jobs", SlurmUnavailableError("timed out")))
    await world.run(world.watch.watch_jobs, SHORT)
    rows = await world.rows(RowKind.BLIND)
    assert [(row.body["what"], row.body["why"]) for row in rows] == [("jobs", "timed out")] * 2


@pytest.mark.parametrize("what", ["jobs", "nodes"])
async def test_a_busy_slurmctld_is_left_alone(world, what):
    """The next look comes after the back-off."""
    world.slurm.fail_next(what, SlurmBusyError("too many requests"))
    began = world.clock.now
    await world.run(getattr(world.watch, f"watch_{what}"), SHORT)
    assert (world.sleeps, world.clock.now - began) == (1, BACK_OFF)


@pytest.mark.parametrize("what", ["jobs", "nodes"])
@pytest.mark.parametrize(
    ("reads", "rests"),
    [
        ([0.1, 9, 0.1], "one that took long for once says nothing of the next"),
        ([0.1, None, 0.1], "nor does one that came to nothing, after ten seconds"),
        ([3, 3, 3], "a slurmctld that is slow is left alone ten times as long"),
    ],
)
async def test_an_outage_of_seconds_is_not_followed_by_minutes_of_blindness(world, monkeypatch, what, reads, rests):
    """How long slurmctld is left alone follows what reads take as a rule."""
    monkeypatch.setattr("relight.activities.watch._monotonic", lambda: timedelta(seconds=world.clock.now.timestamp()))
    real, ends, began, takes = getattr(world.slurm, what), [], [], iter(reads)

    async def read():
        began.append(world.clock.now)
        seconds = next(takes, 0.1)
        world.clock.on(10 if seconds is None else seconds)
        ends.append(world.clock.now)
        if seconds is None:
            raise SlurmUnavailableError("no answer within 10 s")
        return await real()

    setattr(world.slurm, what, read)
    arg = c.WatchInput(cluster="test", run_for=timedelta(seconds=120))
    await world.run(getattr(world.watch, f"watch_{what}"), arg)
    rest = (began[2] - ends[1]).total_seconds()
    assert rest == 28.5 if reads[1] == 3 else rest <= BACK_OFF.total_seconds(), rests


async def test_the_watchers_end_when_their_time_is_up(world):
    """A round a second for jobs, one every two for nodes; then the workflow continues as new."""
    reads = counted(world, "jobs", "nodes")
    await world.run(world.watch.watch_jobs, SHORT)
    await world.run(world.watch.watch_nodes, SHORT)
    assert reads == {"jobs": 10, "nodes": 5}


async def look_at_nodes(world):
    await world.run(world.watch._look_at_nodes)


async def test_a_down_node_under_a_running_job_is_detected_once(world):
    """Before Slurm has made up its mind about the job."""
    attempt = await world.train()
    down = {"state": NodeState.DOWN, "reason": "Not responding", "reason_time": world.clock.now}
    world.slurm.node_records["n2"] = world.slurm.node_records["n2"].model_copy(update=down)
    for _ in range(3):
        await look_at_nodes(world)
        world.clock.on(2)
    (found,) = await world.ledger.undelivered()
    assert (found.kind, found.id) == (Interruption.NODE_LOST, f"{attempt.key}/node_lost/n2")
    assert len(await world.rows(RowKind.DETECTED)) == 1


async def test_nodes_lost_at_once_are_one_detection(world):
    """Each of them is a witness."""
    attempt = await world.train(nodes=3)
    for name in ("n2", "n3"):
        node = world.slurm.node_records[name]
        world.slurm.node_records[name] = node.model_copy(update={"state": NodeState.DOWN})
    for _ in range(2):
        await look_at_nodes(world)
    (found,) = await world.ledger.undelivered()
    assert found.id == f"{attempt.key}/node_lost/n2"
    assert [e.node for e in found.evidence] == ["n2", "n3"]


async def test_a_node_that_does_not_respond_yet_is_not_down(world):
    """slurmctld may still hear from it."""
    await world.train()
    flags = frozenset({NodeFlag.NOT_RESPONDING})
    world.slurm.node_records["n2"] = world.slurm.node_records["n2"].model_copy(update={"flags": flags})
    await look_at_nodes(world)
    assert await kinds(world) == []


async def test_a_down_node_without_a_job_is_nobodys_interruption(world):
    """n4 carries none."""
    await world.train()
    world.slurm.lose_node("n4")
    await look_at_nodes(world)
    assert await kinds(world) == []


async def test_node_blindness_is_said(world):
    """A dead detector must not look like a healthy cluster."""
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    await world.run(world.watch.watch_nodes, SHORT)
    assert [row.body["what"] for row in await world.rows(RowKind.BLIND)] == ["nodes"]


async def test_the_mode_does_not_change_what_is_seen(make_world):
    """Monitor watches like the others, and the watchers never write to Slurm."""
    world = make_world(policy=Policy(mode=Mode.MONITOR))
    attempt = await world.failed()
    assert await kinds(world) == [Interruption.CRASH]
    assert (world.writes, JobFlag.COMPLETING in world.record(attempt).flags) == ([], False)
