"""Getting a job going again: each write is meant first, made once, read back, and left undone when another acted."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.restart import AFTER_REQUEUE, READ_BACK_WITHIN, ReadBackError
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import AmbiguousWriteError, NotPermittedError, RefusedError, SlurmUnavailableError
from relight.domain.attempts import AttemptKey, LogPosition, Progress, progress_cursor
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.slurm import JobFlag, JobState, NodeFlag

LOST = AmbiguousWriteError("the answer was lost")
OWNERS = [JobState.CANCELLED, JobState.COMPLETED, JobState.PREEMPTED]


async def intents(world):
    """What was meant, in order."""
    return [row.body["what"] for row in await world.rows(RowKind.INTENT)]


async def effects(world):
    """How many effects were written down."""
    return len(await world.rows(RowKind.EFFECT))


# --- requeue ---


async def test_requeue(world, act):
    """Meant, written once, read back, written down."""
    attempt = await world.failed()
    done = await world.run(world.restart.requeue, act(attempt))
    assert done.outcome is None
    assert "restart 1" in done.text
    assert world.writes == ["requeue"]
    assert (world.record(attempt).state, world.record(attempt).restarts) == (JobState.PENDING, 1)
    kinds = [row.kind for row in await world.ledger.rows(incident="i1")]
    assert kinds == [RowKind.INTENT, RowKind.EFFECT]
    assert {row.lineage for row in await world.ledger.rows(incident="i1")} == {attempt.lineage}
    assert await intents(world) == ["requeue"]


async def test_requeue_of_a_silent_attempt(world, act):
    """A hang still holds its nodes; the requeue ends it."""
    attempt = await world.train()
    await world.steps(attempt.key, 5, world.clock.now - timedelta(minutes=5))
    done = await world.run(world.restart.requeue, act(attempt, Interruption.HANG))
    assert (done.outcome, world.writes) == (None, ["requeue"])


async def test_a_repeated_requeue_returns_what_was_done(world, act):
    """The effect is in the ledger: no look, no write, the same answer."""
    attempt = await world.failed()
    first = await world.run(world.restart.requeue, act(attempt))
    world.clock.on(500)
    assert await world.run(world.restart.requeue, act(attempt)) == first
    assert world.writes == ["requeue"]


async def test_a_requeue_whose_effect_was_not_written_down_is_found(world, act):
    """The worker died between write and ledger: the next try finds the requeue and does not repeat it."""
    attempt = await world.failed()
    world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await world.run(world.restart.requeue, act(attempt))
    world.ledger.refused = set()
    done = await world.run(world.restart.requeue, act(attempt))
    assert (done.outcome, world.writes, await effects(world)) == (None, ["requeue"], 1)


async def test_a_requeue_that_was_meant_but_not_written_is_written(world, act):
    """slurmctld was away at the write: the next try looks, sees nothing, and writes."""
    attempt = await world.failed()
    world.slurm.fail_next("requeue", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await world.run(world.restart.requeue, act(attempt))
    done = await world.run(world.restart.requeue, act(attempt))
    assert (done.outcome, world.record(attempt).restarts) == (None, 1)
    assert await intents(world) == ["requeue"]


async def test_a_requeue_whose_answer_was_lost_is_looked_for(world, act):
    """It took effect: found by the read-back, not repeated."""
    attempt = await world.failed()
    world.slurm.fail_next("requeue", LOST, after=True)
    done = await world.run(world.restart.requeue, act(attempt))
    assert (done.outcome, world.writes) == (None, ["requeue"])


async def test_a_requeue_whose_answer_was_lost_is_not_repeated_blindly(world, act):
    """It took no effect: looked for as long as a read-back may take, then left to the next try."""
    attempt = await world.failed()
    began = world.clock.now
    world.slurm.fail_next("requeue", LOST)
    with pytest.raises(ReadBackError):
        await world.run(world.restart.requeue, act(attempt))
    assert world.writes == ["requeue"]
    assert world.clock.now - began > READ_BACK_WITHIN
    await world.run(world.restart.requeue, act(attempt))
    assert world.record(attempt).restarts == 1


async def test_a_requeue_by_somebody_else_wins(world, act):
    """Queued again since the plan was made: nothing is written."""
    attempt = await world.requeued()
    done = await world.run(world.restart.requeue, act(attempt))
    assert (done.outcome, world.writes, await intents(world)) == (Outcome.OVERRIDDEN, [], [])


async def test_a_requeue_by_somebody_faster_wins(world, act):
    """Slurm refuses ours because theirs came between look and write: theirs is not claimed as ours."""
    attempt = await world.failed()
    world.slurm.fail_next("requeue", RefusedError("Job is pending execution"), after=True)
    done = await world.run(world.restart.requeue, act(attempt))
    assert done.outcome is Outcome.OVERRIDDEN


async def test_a_requeue_that_slurm_refuses_ends(world, act):
    """A refusal for a reason of Slurm's own is not tried for ever."""
    attempt = await world.failed()
    world.slurm.fail_next("requeue", RefusedError("Requested operation is presently disabled"))
    with pytest.raises(RefusedError):
        await world.run(world.restart.requeue, act(attempt))


async def test_a_requeue_without_the_right_is_said(world, act):
    """Trying again would not help."""
    attempt = await world.failed()
    world.slurm.fail_next("requeue", NotPermittedError("Access/permission denied"))
    with pytest.raises(NotPermittedError):
        await world.run(world.restart.requeue, act(attempt))


@pytest.mark.parametrize("state", OWNERS)
async def test_what_the_owner_ended_is_not_requeued(world, act, state):
    """Slurm would resurrect it."""
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id, state=state)
    done = await world.run(world.restart.requeue, act(attempt))
    assert (done.outcome, world.writes) == (Outcome.OVERRIDDEN, [])


async def test_a_forgotten_job_is_not_requeued(world, act):
    """slurmctld no longer knows it."""
    attempt = await world.failed()
    world.slurm.purge(attempt.key.job_id)
    done = await world.run(world.restart.requeue, act(attempt))
    assert (done.outcome, world.writes) == (Outcome.EXPIRED, [])


async def test_training_that_moved_on_is_not_requeued(world, act):
    """The right before the write is the last look: a hang that ended by itself is none."""
    attempt = await world.train()
    given = act(attempt, Interruption.HANG)
    world.clock.on(5)
    await world.steps(attempt.key, 6)
    done = await world.run(world.restart.requeue, given)
    assert (done.outcome, world.writes) == (Outcome.NOT_CONFIRMED, [])


async def test_a_running_attempt_is_not_requeued_for_a_crash(world, act):
    """It does not look crashed."""
    attempt = await world.train()
    done = await world.run(world.restart.requeue, act(attempt))
    assert (done.outcome, world.writes) == (Outcome.NOT_CONFIRMED, [])


async def test_an_attempt_never_seen_is_not_touched(world, act):
    """Without the snapshot nothing can be compared."""
    attempt = await world.failed()
    key = AttemptKey(cluster="test", job_id=99, submit_time=attempt.key.submit_time)
    with pytest.raises(ValueError, match="never saw"):
        await world.run(world.restart.requeue, act(attempt.model_copy(update={"key": key})))
    assert world.writes == []


# --- no ledger, no mutation ---


def _excluding(act, attempt):
    return c.ExcludeInput(incident=act(attempt).incident, nodes=("n1",))


@pytest.mark.parametrize("how", ["down", "no intent"])
@pytest.mark.parametrize("what", ["requeue", "exclude", "start", "cancel", "release"])
async def test_without_a_ledger_nothing_is_written(world, act, what, how):
    """Whether the database is away as a whole or only when the intent is written."""
    begin = {"requeue": world.failed, "cancel": world.train, "release": lambda: not_launched(world)}
    attempt = await begin.get(what, world.requeued)()
    arg = _excluding(act, attempt) if what == "exclude" else act(attempt)
    if how == "down":
        world.ledger.down = True
    else:
        world.ledger.refused = {RowKind.INTENT}
    with pytest.raises(LedgerUnavailableError):
        await world.run(getattr(world.restart, what), arg)
    assert world.writes == []


# --- exclusions ---


@pytest.fixture
def exclude(world, ref):
    """Excludes nodes from an attempt's retry, or takes that back."""

    async def call(attempt, *nodes, take_back=False):
        arg = c.ExcludeInput(incident=ref(attempt), nodes=nodes, take_back=take_back)
        return await world.run(world.restart.exclude, arg)

    return call


async def test_our_exclusions_join_the_users_own(world, exclude):
    """One list, the user's nodes still in it."""
    attempt = await world.requeued(excluded_nodes=("n4",))
    done = await exclude(attempt, "n1")
    assert world.record(attempt).excluded_nodes == ("n1", "n4")
    assert done.text == "ExcNodeList=n1,n4"
    assert (world.writes, await intents(world)) == (["exclude"], ["exclude"])


@pytest.mark.parametrize(("readable", "listed"), [(True, ("n1",)), (False, ("n1", "n2"))])
async def test_what_would_leave_too_few_nodes_is_not_excluded(world, exclude, readable, listed):
    """Nodes may have gone since the plan was made: the best proven is kept out; unread, Slurm says what is too much."""
    attempt = await world.requeued()
    await world.slurm.drain("n4", "relight:i2:XID_79: another's") if readable else None
    if not readable:
        world.slurm.fail_next("nodes", SlurmUnavailableError("no answer"))
    world.slurm.writes.clear()
    await exclude(attempt, "n1", "n2")
    assert world.record(attempt).excluded_nodes == listed


async def test_taking_back_leaves_the_users_own(world, exclude):
    """Only ours go, also where the user excluded the same node before us."""
    attempt = await world.requeued(nodes=1, excluded_nodes=("n4",))
    await exclude(attempt, "n1", "n2", "n4")
    await exclude(attempt, "n2", "n4", take_back=True)
    assert world.record(attempt).excluded_nodes == ("n1", "n4")
    assert await intents(world) == ["exclude", "allow"]


async def test_what_a_person_excluded_meanwhile_stays(world, exclude):
    """Their change since the snapshot is neither overwritten nor taken back."""
    attempt = await world.requeued()
    world.change(attempt, excluded_nodes=("n3",))
    await exclude(attempt, "n1")
    assert world.record(attempt).excluded_nodes == ("n1", "n3")
    await exclude(attempt, "n1", take_back=True)
    assert world.record(attempt).excluded_nodes == ("n3",)


async def test_an_exclusion_that_is_there_already_is_not_written(world, exclude):
    """Nothing to do is done."""
    attempt = await world.requeued(excluded_nodes=("n1",))
    assert (await exclude(attempt, "n1")).outcome is None
    assert (world.writes, await effects(world)) == ([], 1)


async def test_a_repeated_exclusion_returns_what_was_done(world, exclude):
    """Also when the list was changed since: ours has been done."""
    attempt = await world.requeued()
    first = await exclude(attempt, "n1")
    world.change(attempt, excluded_nodes=())
    assert await exclude(attempt, "n1") == first
    assert world.writes == ["exclude"]


async def test_an_exclusion_whose_answer_was_lost_is_found(world, exclude):
    """The next try looks first."""
    attempt = await world.requeued()
    world.slurm.fail_next("exclude", LOST, after=True)
    with pytest.raises(AmbiguousWriteError):
        await exclude(attempt, "n1")
    assert (await exclude(attempt, "n1")).outcome is None
    assert world.writes == ["exclude"]


async def test_an_exclusion_that_was_not_made_is_made_again(world, exclude):
    """The next try looks, finds nothing, and writes."""
    attempt = await world.requeued()
    world.slurm.fail_next("exclude", LOST)
    with pytest.raises(AmbiguousWriteError):
        await exclude(attempt, "n1")
    await exclude(attempt, "n1")
    assert world.record(attempt).excluded_nodes == ("n1",)


async def test_a_running_job_keeps_its_list(world, exclude):
    """Slurm started it already: exclusions come too late, and nothing ends because of that."""
    attempt = await world.train()
    done = await exclude(attempt, "n1")
    assert (done.outcome, world.writes) == (None, [])
    assert "runs already" in done.text


async def test_no_exclusion_for_a_job_that_is_gone(world, exclude):
    """Purged: expired."""
    attempt = await world.failed()
    world.slurm.purge(attempt.key.job_id)
    assert (await exclude(attempt, "n1")).outcome is Outcome.EXPIRED
    assert world.writes == []


async def test_no_exclusion_for_a_job_that_was_cancelled(world, exclude):
    """Its owner acted after the requeue: theirs wins."""
    attempt = await world.requeued()
    await world.slurm.cancel(attempt.key.job_id)
    world.slurm.writes.clear()
    assert (await exclude(attempt, "n1")).outcome is Outcome.OVERRIDDEN
    assert world.writes == []


async def test_exclusions_hold_while_completing(make_world, ref):
    """Set on a job that still ends, they survive."""
    world = make_world(epilog=timedelta(seconds=10))
    attempt = await world.train()
    await world.slurm.requeue(attempt.key.job_id)
    await world.run(world.restart.exclude, c.ExcludeInput(incident=ref(attempt), nodes=("n1",)))
    assert world.record(attempt).completing
    world.clock.on(20)
    assert (await world.slurm.job(attempt.key.job_id)).excluded_nodes == ("n1",)


# --- the end of the old attempt ---


@pytest.fixture
def await_ended(ref):
    """Waits until Slurm has ended the old attempt."""

    async def call(world, attempt, **fields):
        arg = c.AwaitEndedInput(incident=ref(attempt), **fields)
        return await world.run(world.restart.await_ended, arg)

    return call


async def test_a_requeue_must_be_two_seconds_old(world, await_ended):
    """A start time set in the same second as the requeue can end the job as FAILED."""
    attempt = await world.failed()
    await world.slurm.requeue(attempt.key.job_id)
    began = world.clock.now
    ended = await await_ended(world, attempt, requeued_at=began)
    assert ended.outcome is None
    assert world.clock.now - began == AFTER_REQUEUE


async def test_an_old_requeue_is_not_waited_for(world, await_ended):
    """What Slurm queued again long ago is ready at once."""
    attempt = await world.requeued()
    began = world.clock.now
    ended = await await_ended(world, attempt)
    assert (ended.completing, world.clock.now) == (timedelta(0), began)


async def test_completing_is_waited_out(make_world, await_ended):
    """A start time set while COMPLETING is overwritten when the Epilog ends."""
    world = make_world(epilog=timedelta(seconds=10))
    attempt = await world.train()
    await world.slurm.requeue(attempt.key.job_id)
    ended = await await_ended(world, attempt, requeued_at=world.clock.now)
    assert not world.record(attempt).completing
    assert timedelta(seconds=10) <= ended.completing < timedelta(seconds=11)


async def test_a_start_after_waiting_does_not_race(make_world, await_ended, act):
    """On a Slurm that fails a job told to start too soon, the waiting is what keeps it alive."""
    world = make_world(start_race=True)
    attempt = await world.failed()
    await world.slurm.requeue(attempt.key.job_id)
    await await_ended(world, attempt, requeued_at=world.clock.now)
    await world.run(world.restart.start, act(attempt))
    assert world.record(attempt).running


async def test_a_job_cancelled_while_completing_is_overridden(make_world, await_ended):
    """Its owner acted."""
    world = make_world(epilog=timedelta(seconds=10))
    attempt = await world.train()
    await world.slurm.requeue(attempt.key.job_id)
    world.after(3, lambda: world.change(attempt, state=JobState.CANCELLED))
    assert (await await_ended(world, attempt)).outcome is Outcome.OVERRIDDEN


async def test_a_job_forgotten_meanwhile_has_expired(world, await_ended):
    """Purged."""
    attempt = await world.failed()
    world.after(3, lambda: world.slurm.purge(attempt.key.job_id))
    assert (await await_ended(world, attempt)).outcome is Outcome.EXPIRED


async def test_completing_past_all_limits_is_said_once(make_world, await_ended):
    """KillWait, UnkillableStepTimeout and 30 s: then the nodes are named, and the wait goes on."""
    world = make_world(epilog=None)
    attempt = await world.train()
    await world.slurm.requeue(attempt.key.job_id)
    world.change(attempt, nodes=("n2",))
    world.slurm.node_records["n1"] = world.slurm.node_records["n1"].model_copy(update={"flags": frozenset()})
    assert NodeFlag.COMPLETING in world.slurm.node_records["n2"].flags
    world.after(119, lambda: world.slurm.fail_next("nodes", AssertionError("too early")))
    world.after(120, world.slurm._failures.clear)
    world.after(300, lambda: world.slurm.finish_completing(attempt.key.job_id))
    ended = await await_ended(world, attempt)
    assert ended.outcome is None
    (note,) = await world.rows(RowKind.NOTE)
    assert note.body["nodes"] == ["n2"]


# --- release ---


async def not_launched(world):
    """A job that Slurm could not launch, and holds."""
    attempt = await world.train()
    world.slurm.fail_launch(attempt.key.job_id, prolog_on="n2")
    await world.look()
    world.clock.on(5)
    return attempt


async def test_release(world, act):
    """Slurm's own hold is undone: meant, written once, read back, written down."""
    attempt = await not_launched(world)
    done = await world.run(world.restart.release, act(attempt))
    assert (done.outcome, done.text, world.writes) == (None, "Slurm's hold is undone", ["release"])
    assert (await intents(world), await effects(world)) == (["release"], 1)
    assert world.record(attempt).reason == "BeginTime"
    assert await world.run(world.restart.release, act(attempt)) == done
    assert world.writes == ["release"]


async def test_a_released_job_starts(world, act):
    """The start time is set afterwards, as for every restart."""
    attempt = await not_launched(world)
    for step in (world.restart.release, world.restart.start):
        assert (await world.run(step, act(attempt))).outcome is None
    assert world.record(attempt).nodes == ("n1", "n3")


@pytest.mark.parametrize("after", [True, False])
async def test_a_release_whose_answer_was_lost_is_looked_for(world, act, after):
    """It is written again only where the hold is still seen."""
    attempt = await not_launched(world)
    world.slurm.fail_next("release", LOST, after=after)
    done = await world.run(world.restart.release, act(attempt))
    assert (done.outcome, world.writes) == (None, ["release"] * (1 if after else 2))
    assert await intents(world) == ["release"]


async def test_a_release_that_slurm_refuses_ends(world, act):
    """Unless somebody else was faster."""
    attempt = await not_launched(world)
    world.slurm.fail_next("release", RefusedError("Requested operation is presently disabled"))
    with pytest.raises(RefusedError):
        await world.run(world.restart.release, act(attempt))
    world.slurm.fail_next("release", RefusedError("no"), after=True)
    assert (await world.run(world.restart.release, act(attempt))).outcome is None


async def test_a_release_without_effect_is_said(world, act, monkeypatch):
    """Looked for as long as a read-back may take, then left to the next try."""
    attempt = await not_launched(world)

    async def nothing(_job_id):
        pass

    monkeypatch.setattr(world.slurm, "release", nothing)
    with pytest.raises(ReadBackError, match="still shows"):
        await world.run(world.restart.release, act(attempt))


@pytest.mark.parametrize(
    ("shown", "outcome"),
    [
        ({"reason_text": ""}, Outcome.OVERRIDDEN),  # a person has released it, and holds it
        ({"reason_text": "job requeued in held state"}, Outcome.OVERRIDDEN),
        ({"state": JobState.CANCELLED}, Outcome.OVERRIDDEN),
        ({"restarts": 2}, Outcome.OVERRIDDEN),
        ({"reason": "BeginTime", "reason_text": ""}, None),
        ({"state": JobState.RUNNING, "reason": "", "reason_text": ""}, None),
    ],
)
async def test_nobody_elses_hold_is_released(world, act, shown, outcome):
    """Nor the hold of a later launch, which is another incident's; what is not held any more is in order."""
    attempt = await not_launched(world)
    world.change(attempt, **shown)
    done = await world.run(world.restart.release, act(attempt))
    assert (done.outcome, world.writes, await intents(world)) == (outcome, [], [])


async def test_a_hold_that_cannot_be_read_is_not_released(world, act):
    """Unknown is neither yes nor no."""
    attempt = await not_launched(world)
    world.change(attempt, state=JobState.UNKNOWN)
    with pytest.raises(ReadBackError, match="not known"):
        await world.run(world.restart.release, act(attempt))
    assert world.writes == []


async def test_a_forgotten_job_is_not_released(world, act):
    """Nothing is left to release."""
    attempt = await not_launched(world)
    world.slurm.purge(attempt.key.job_id)
    assert (await world.run(world.restart.release, act(attempt))).outcome is Outcome.EXPIRED


# --- start ---


async def test_start(world, act):
    """The job need not wait out its begin time."""
    attempt = await world.requeued()
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, world.writes, await intents(world)) == (None, ["start_now"], ["start"])
    assert world.record(attempt).running


async def test_a_repeated_start_returns_what_was_done(world, act):
    """Also when the worker died before it could write that down: the job runs, so no second write."""
    attempt = await world.requeued()
    world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await world.run(world.restart.start, act(attempt))
    world.ledger.refused = set()
    first = await world.run(world.restart.start, act(attempt))
    assert first.text == "the job runs already"
    assert await world.run(world.restart.start, act(attempt)) == first
    assert world.writes == ["start_now"]


async def test_a_start_whose_answer_was_lost_is_looked_for(world, act):
    """It took effect: not repeated."""
    attempt = await world.requeued()
    world.slurm.fail_next("start_now", LOST, after=True)
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, world.writes) == (None, ["start_now"])


async def test_a_start_that_was_lost_is_set_again_after_a_look(world, act):
    """An Epilog that ends just now sets the begin time anew: looked for 2 s, then set again; meant once."""
    attempt = await world.requeued()
    world.slurm.fail_next("start_now", LOST)
    began = world.clock.now
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, world.writes) == (None, ["start_now", "start_now"])
    assert world.clock.now - began >= timedelta(seconds=2)
    assert await intents(world) == ["start"]


async def test_a_begin_delay_that_stays_is_accepted(world, act):
    """Slurm's own begin delay starts the job all the same: nothing fails, and nothing is tried for ever."""
    attempt = await world.requeued()
    for _ in range(50):
        world.slurm.fail_next("start_now", RefusedError("no"))
    done = await world.run(world.restart.start, act(attempt))
    assert done.outcome is None
    assert "starts by itself" in done.text
    assert len(world.writes) < 15


@pytest.mark.parametrize(
    "held",
    [{"reason": "JobHeldUser"}, {"reason": "JobHeldAdmin"}, {"flags": frozenset({JobFlag.REQUEUE_HOLD})}],
)
async def test_a_held_job_is_left_held(world, act, held):
    """Whoever held it releases it."""
    attempt = await world.requeued()
    world.change(attempt, **held)
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, world.writes) == (Outcome.OVERRIDDEN, [])


async def test_a_job_cancelled_before_the_start_is_left_alone(world, act):
    """Its owner acted."""
    attempt = await world.requeued()
    world.change(attempt, state=JobState.CANCELLED)
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, world.writes) == (Outcome.OVERRIDDEN, [])


async def test_a_job_that_runs_needs_no_start(world, act):
    """Moot."""
    attempt = await world.requeued()
    world.clock.on(121)
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, done.text, world.writes) == (None, "the job runs already", [])


async def test_a_forgotten_job_is_not_started(world, act):
    """Purged."""
    attempt = await world.failed()
    world.slurm.purge(attempt.key.job_id)
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, world.writes) == (Outcome.EXPIRED, [])


# --- cancel ---


async def test_cancel(world, act):
    """An attempt that still holds its nodes frees them."""
    attempt = await world.train()
    done = await world.run(world.restart.cancel, act(attempt, Interruption.HANG))
    assert (done.outcome, world.writes, await intents(world)) == (None, ["cancel"], ["cancel"])
    assert world.record(attempt).state is JobState.CANCELLED


async def test_a_cancel_whose_effect_was_not_written_down_is_not_repeated(world, act):
    """The next try finds nothing to cancel."""
    attempt = await world.train()
    world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await world.run(world.restart.cancel, act(attempt, Interruption.HANG))
    world.ledger.refused = set()
    first = await world.run(world.restart.cancel, act(attempt, Interruption.HANG))
    assert await world.run(world.restart.cancel, act(attempt, Interruption.HANG)) == first
    assert (first.outcome, world.writes) == (None, ["cancel"])


async def test_a_cancel_whose_answer_was_lost_is_not_repeated(world, act):
    """The next try looks first."""
    attempt = await world.train()
    world.slurm.fail_next("cancel", LOST, after=True)
    with pytest.raises(AmbiguousWriteError):
        await world.run(world.restart.cancel, act(attempt, Interruption.HANG))
    await world.run(world.restart.cancel, act(attempt, Interruption.HANG))
    assert world.writes == ["cancel"]


async def test_a_cancel_without_effect_is_said(world, act, monkeypatch):
    """Read back in vain: tried again by Temporal."""
    attempt = await world.train()

    async def nothing(_job_id):
        pass

    monkeypatch.setattr(world.slurm, "cancel", nothing)
    with pytest.raises(ReadBackError):
        await world.run(world.restart.cancel, act(attempt, Interruption.HANG))
    assert await effects(world) == 0


@pytest.mark.parametrize("how", ["ended", "queued again", "gone"])
async def test_what_no_longer_runs_is_not_cancelled(world, act, how):
    """Another attempt of the same job is not the one that was diagnosed."""
    attempt = await (world.requeued() if how == "queued again" else world.failed())
    if how == "queued again":
        world.clock.on(121)
        assert (await world.slurm.job(attempt.key.job_id)).running
    if how == "gone":
        world.slurm.purge(attempt.key.job_id)
    done = await world.run(world.restart.cancel, act(attempt, Interruption.HANG))
    assert done.text.startswith("nothing to cancel")
    assert world.writes == []


async def test_training_that_moved_on_is_not_cancelled(world, act):
    """Between plan and act the hang ended by itself."""
    attempt = await world.train()
    given = act(attempt, Interruption.HANG)
    world.clock.on(5)
    await world.steps(attempt.key, 6)
    done = await world.run(world.restart.cancel, given)
    assert (done.outcome, world.writes) == (Outcome.NOT_CONFIRMED, [])


# --- outputs ---


async def test_outputs_are_kept(world, act):
    """Copied where a requeue does not truncate them; the ledger says where."""
    (world.folder / "train.out").write_text("step 1/10\n")
    attempt = await world.failed(stderr=str(world.folder / "missing.err"))
    done = await world.run(world.restart.keep_outputs, act(attempt))
    (row,) = await world.rows(RowKind.OUTPUTS_KEPT)
    (kept,) = row.body["kept"]
    (world.folder / "train.out").write_text("")
    assert (world.folder / "kept" / str(attempt.key.job_id) / "i1") in (world.folder / kept).parents
    assert (world.folder / kept).read_text() == "step 1/10\n"
    assert "kept 1 in" in done.text
    assert "missing.err" in done.text


# --- the next attempt ---


@pytest.fixture
def await_running(world, ref):
    """Waits for the next attempt."""

    async def call(attempt, *exclude):
        arg = c.AwaitRunningInput(incident=ref(attempt), exclude=exclude)
        return await world.run(world.verify.await_running, arg)

    return call


async def test_the_next_attempt_is_named(world, await_running):
    """However long it queues: its key, its nodes, and a row that it runs."""
    attempt = await world.requeued()
    running = await await_running(attempt)
    assert running.attempt == AttemptKey(
        cluster="test", job_id=attempt.key.job_id, submit_time=world.record(attempt).submit_time
    )
    assert running.attempt != attempt.key
    assert (running.nodes, running.outcome) == (("n1", "n2"), None)
    assert [row.body["what"] for row in await world.rows(RowKind.VERIFIED)] == ["running"]


async def test_the_old_attempt_is_not_taken_for_the_next(world, await_running):
    """While Slurm still shows the old one running nothing is said."""
    attempt = await world.train()
    world.after(30, lambda: world.slurm.fail(attempt.key.job_id, state=JobState.CANCELLED))
    running = await await_running(attempt)
    assert (running.attempt, running.outcome) == (None, Outcome.OVERRIDDEN)


async def test_a_job_cancelled_in_the_queue_is_overridden(world, await_running):
    """Its owner acted."""
    attempt = await world.requeued()
    world.after(10, lambda: world.change(attempt, state=JobState.CANCELLED))
    assert (await await_running(attempt)).outcome is Outcome.OVERRIDDEN


async def test_a_job_that_vanishes_from_the_queue_failed(world, await_running):
    """Nothing will run any more, and why is not known."""
    attempt = await world.requeued()
    world.after(10, lambda: world.slurm.purge(attempt.key.job_id))
    assert (await await_running(attempt)).outcome is Outcome.FAILED


async def test_too_few_nodes_is_ours_only_where_we_exclude(world, await_running):
    """BadConstraints with an exclusion of ours is told at once; without one it is the user's to wait for."""
    attempt = await world.requeued()
    world.change(attempt, reason="BadConstraints", eligible_time=world.clock.now + timedelta(days=1))
    assert (await await_running(attempt, "n1")).too_few_nodes
    world.after(60, lambda: world.change(attempt, eligible_time=world.clock.now))
    assert (await await_running(attempt)).attempt is not None


async def test_an_attempt_that_the_watcher_saw_counts(world, await_running):
    """It ran and ended between two looks of this activity: named all the same."""
    attempt = await world.requeued()
    world.clock.on(121)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    world.slurm.fail(attempt.key.job_id)
    running = await await_running(attempt)
    assert (running.attempt, running.outcome) == (again.key, None)
    assert again.key != attempt.key


async def test_an_attempt_that_nobody_saw_ends_the_wait(world, await_running):
    """It ended before anybody saw it run: the incident does not wait for ever."""
    attempt = await world.requeued()
    world.change(attempt, state=JobState.FAILED)
    running = await await_running(attempt)
    assert (running.attempt, running.outcome) == (None, Outcome.RESTARTED_NO_PROGRESS)


# --- progress ---


@pytest.fixture
def await_progress(world, ref):
    """Waits for training of the second attempt to pass a step, ten minutes at most."""

    async def call(attempt, failed_step, *, next_attempt=None):
        until = world.clock.now + timedelta(minutes=10)
        key = next_attempt or (await world.attempt(attempt.key.job_id)).key
        arg = c.AwaitProgressInput(incident=ref(attempt), next_attempt=key, failed_step=failed_step, until=until)
        return await world.run(world.verify.await_progress, arg)

    return call


@pytest.fixture
async def again(world):
    """A job whose second attempt runs: its first attempt."""
    attempt = await world.requeued()
    world.clock.on(121)
    await world.look()
    return attempt


async def key_of(world, attempt):
    return (await world.attempt(attempt.key.job_id)).key


async def test_moving_past_the_failed_step_is_progress(world, again, await_progress):
    """And is written down as verified."""
    await world.steps(await key_of(world, again), 102)
    proof = await await_progress(again, 100)
    assert (proof.moved, proof.step, proof.outcome) == (True, 102, None)
    assert [row.body["what"] for row in await world.rows(RowKind.VERIFIED)] == ["progress"]


@pytest.mark.parametrize("step", [1, 100, 101])
async def test_reaching_the_failed_step_is_none(world, again, await_progress, step):
    """The line of step 101 may have been lost with the process that failed in step 102."""
    await world.steps(await key_of(world, again), step)
    proof = await await_progress(again, 100)
    assert (proof.moved, proof.outcome) == (False, None)
    assert "did not get past step 100" in proof.text


async def test_the_old_attempts_steps_are_none(world, again, await_progress):
    """However far it came."""
    await world.steps(again.key, 500)
    assert not (await await_progress(again, 100)).moved


async def test_without_a_failed_step_the_first_counts(world, again, await_progress):
    """A job that failed before its first step has recovered with that."""
    await world.steps(await key_of(world, again), 0)
    assert (await await_progress(again, None)).moved


async def test_an_attempt_that_fails_again_made_none(world, again, await_progress):
    """Said at once, not after the whole time."""
    began = world.clock.now
    world.after(5, lambda: world.slurm.fail(again.key.job_id))
    proof = await await_progress(again, 100)
    assert (proof.moved, proof.outcome) == (False, None)
    assert "FAILED" in proof.text
    assert world.clock.now - began < timedelta(minutes=1)


async def test_a_job_cancelled_by_its_owner_is_overridden(world, again, await_progress):
    """Theirs wins."""
    world.after(5, lambda: world.slurm.fail(again.key.job_id, state=JobState.CANCELLED))
    assert (await await_progress(again, 100)).outcome is Outcome.OVERRIDDEN


async def test_a_job_that_completes_has_moved(world, again, await_progress):
    """Its end is further than any step."""
    world.after(5, lambda: world.slurm.fail(again.key.job_id, state=JobState.COMPLETED, exit_code=0))
    assert (await await_progress(again, 100)).moved


async def test_an_unreadable_state_ends_nothing(world, again, await_progress):
    """Waited for, until it can be read or the time is up."""
    world.change(again, state=JobState.UNKNOWN)
    proof = await await_progress(again, 100)
    assert proof.at >= world.clock.now - timedelta(seconds=2)
    assert (proof.moved, proof.outcome) == (False, Outcome.RESTARTED_UNVERIFIED)


@pytest.mark.parametrize(("failed_step", "readable"), [(None, True), (None, False), (100, False)])
async def test_silence_that_proves_nothing_is_not_no_progress(world, again, await_progress, failed_step, readable):
    """A job that prints no steps, or whose output cannot be read, runs on: whether it moves is unknown."""
    files = {"/out": LogPosition(offset=10)} if readable else {}
    progress = Progress(files=files).model_dump(mode="json")
    await world.ledger.commit(Change(cursors={progress_cursor(await key_of(world, again)): progress}))
    proof = await await_progress(again, failed_step)
    assert (proof.moved, proof.outcome) == (False, Outcome.RESTARTED_UNVERIFIED)
    assert ("cannot be read" in proof.text) is not readable


async def test_a_job_that_stepped_before_and_prints_none_now_makes_no_progress(world, again, await_progress):
    """Its output is read, and shows no step at all."""
    progress = Progress(files={"/out": LogPosition(offset=10)}).model_dump(mode="json")
    await world.ledger.commit(Change(cursors={progress_cursor(await key_of(world, again)): progress}))
    proof = await await_progress(again, 100)
    assert (proof.moved, proof.outcome) == (False, None)


async def test_verifying_shows_in_the_incident(world, again, await_progress, ref, incident):
    """The read model follows what was verified."""
    opened = incident(ref(again), again, world.clock.now, phase=Phase.ACTING)
    await world.ledger.commit(Change(incidents=(opened,)))
    await world.steps(await key_of(world, again), 102)
    await await_progress(again, 100)
    assert (await world.ledger.incident("i1")).phase is Phase.VERIFYING
