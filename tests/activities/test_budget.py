"""Back-off, exclusions over several attempts, saves: through the activities, a simulated Slurm and a real ledger."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.restart import READ_BACK_WITHIN
from relight.activities.verify import UNPLACEABLE_AFTER
from relight.clients.lineages import own_exclusions
from relight.clients.slurm import AmbiguousWriteError, RefusedError, SlurmUnavailableError
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.domain.exclusions import Proof
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Mode
from relight.domain.policy import Policy
from relight.domain.slurm import NodeFlag

LOST = AmbiguousWriteError("the answer was lost")
MINUTE = timedelta(minutes=1)


# --- back-off ---


async def test_a_start_that_waits_is_set_in_slurm(world, act):
    """Slurm has the time: with nothing of ours left, the job starts by itself then, and not sooner."""
    attempt = await world.requeued()
    at = world.clock.now + 5 * MINUTE
    done = await world.run(world.restart.start, act(attempt).model_copy(update={"not_before": at}))
    assert (done.outcome, world.writes) == (None, ["start_after"])
    assert f"by itself after {at:%H:%M:%S} UTC" in done.text
    [row] = await world.rows(RowKind.INTENT)
    assert row.body["not_before"] == at.isoformat()
    world.clock.on(280)
    assert not (await world.slurm.job(attempt.key.job_id)).running
    world.clock.on(20)
    assert (await world.slurm.job(attempt.key.job_id)).running


async def test_a_wait_that_is_over_is_none(world, act):
    """Approval took longer than the back-off: the job may start at once."""
    attempt = await world.requeued()
    done = await world.run(world.restart.start, act(attempt).model_copy(update={"not_before": world.clock.now}))
    assert (done.text, world.writes) == ("Slurm may start it at once", ["start_now"])


async def test_a_begin_time_that_did_not_stay_is_set_again(world, act):
    """An answer that was lost, and an Epilog that sets Slurm's own delay anew: looked at, then written once more."""
    attempt = await world.requeued()
    world.slurm.fail_next("start_after", LOST)
    at = world.clock.now + 5 * MINUTE
    done = await world.run(world.restart.start, act(attempt).model_copy(update={"not_before": at}))
    assert (done.outcome, world.writes) == (None, ["start_after", "start_after"])
    assert abs(world.record(attempt).eligible_time - at) < timedelta(seconds=1)


async def test_a_begin_time_that_cannot_be_set_fails_nothing(world, act):
    """Slurm's own begin delay starts the job: sooner than wished, and it is said."""
    attempt = await world.requeued()
    for _ in range(50):
        world.slurm.fail_next("start_after", RefusedError("no"))
    began, at = world.clock.now, world.clock.now + 5 * MINUTE
    done = await world.run(world.restart.start, act(attempt).model_copy(update={"not_before": at}))
    assert (done.outcome, "starts by itself" in done.text) == (None, True)
    assert world.clock.now - began < 2 * READ_BACK_WITHIN
    assert len(world.writes) < 15


async def test_a_job_that_runs_is_not_put_off(world, act):
    """Slurm's own delay was over first."""
    attempt = await world.requeued()
    world.clock.on(121)
    at = world.clock.now + 5 * MINUTE
    done = await world.run(world.restart.start, act(attempt).model_copy(update={"not_before": at}))
    assert (done.text, world.writes) == ("the job runs already", [])


# --- exclusions over several attempts ---


def suspect(*nodes, drain=()):
    """A cause that names these nodes."""
    cause = Hypothesis(
        signature="CUDA_ECC",
        category=Category.GPU,
        action=Action.RESTART_EXCLUDING_NODE,
        action_if_it_repeats=Action.STOP,
        confidence=0.9,
        implicated=Implicated(nodes=nodes),
        drain_nodes=drain,
    )
    return Diagnosis(hypotheses=(cause,), failed_step=10)


class Story:
    """One job through several incidents, as the workflow would take it."""

    def __init__(self, world, ref, incident, detection):
        self.world, self._ref, self._incident, self._detection = world, ref, incident, detection
        self.number = 0

    async def fails(self, attempt, diagnosis):
        """The attempt fails: the plan for it, with the incident open in the ledger."""
        self.number += 1
        ref = self._ref(attempt, name=f"i{self.number}")
        self.world.slurm.fail(attempt.key.job_id)
        await self.world.look()
        opened = self._incident(ref, attempt, self.world.clock.now, diagnosis=diagnosis)
        await self.world.ledger.commit(Change(incidents=(opened,)))
        arg = c.PlanInput(incident=ref, detection=self._detection(attempt, self.world.clock.now), diagnosis=diagnosis)
        return ref, await self.world.run(self.world.investigate.plan, arg)

    async def carries_out(self, attempt, ref, verdict, outcome=Outcome.RESTARTED_NO_PROGRESS):
        """Requeue, take back, exclude, start; then the incident closes. Returns the next attempt."""
        world, job = self.world, attempt.key.job_id
        await world.slurm.requeue(job)
        world.clock.on(5)
        if verdict.allow:
            await self.exclude(ref, *verdict.allow, take_back=True)
        if verdict.plan.exclude:
            await self.exclude(ref, *verdict.plan.exclude, until={e.node: e.until for e in verdict.exclusions})
        await world.slurm.start_now(job)
        assert world.record(attempt).running
        await world.look()
        known = await world.ledger.incident(ref.id)
        closed = known.model_copy(update={"phase": Phase.CLOSED, "outcome": outcome, "plan": verdict.plan})
        await world.ledger.commit(Change(incidents=(closed,)))
        world.clock.on(60)
        return await world.attempt(job)

    async def exclude(self, ref, *nodes, **fields):
        """Change the job's list."""
        arg = c.ExcludeInput(incident=ref, nodes=nodes, **fields)
        return await self.world.run(self.world.restart.exclude, arg)


def in_partition(world):
    """All nodes are the job's partition's."""
    for name, node in world.slurm.node_records.items():
        world.slurm.node_records[name] = node.model_copy(update={"partitions": ("gpu",)})
    return world


@pytest.fixture
def big(make_world):
    """Eight nodes, back-off as it comes, and room for many attempts."""
    policy = Policy(mode=Mode.AUTO, attempts_without_progress=20, retries={"gpu": 20})
    return in_partition(make_world(nodes=[f"n{number}" for number in range(1, 9)], policy=policy))


@pytest.fixture
def story(big, ref, incident, detection):
    """A job's story on eight nodes."""
    return Story(big, ref, incident, detection)


async def test_exclusions_hold_over_attempts_and_expire(big, story):
    """Kept over the next restart, where it is not written again; after a day taken back; the user's own stays."""
    first = await big.train(nodes=2, excluded_nodes=("n8",))
    ref, verdict = await story.fails(first, suspect("n1"))
    assert verdict.plan.exclude == ("n1",)
    second = await story.carries_out(first, ref, verdict)
    assert set(second.record.excluded_nodes) == {"n1", "n8"}

    ref, verdict = await story.fails(second, suspect("n2", drain=("n2",)))
    assert verdict.plan.exclude == ("n2",)
    assert [(e.node, e.incident, e.proof) for e in verdict.exclusions] == [
        ("n2", "", Proof.PLATFORM),
        ("n1", "i1", Proof.JOB),
    ]
    third = await story.carries_out(second, ref, verdict)
    assert set(third.record.excluded_nodes) == {"n1", "n2", "n8"}

    big.clock.on(86400)
    ref, verdict = await story.fails(third, suspect())
    assert set(verdict.allow) == {"n1", "n2"}
    fourth = await story.carries_out(third, ref, verdict)
    assert fourth.record.excluded_nodes == ("n8",)
    assert await own_exclusions(big.ledger, fourth) == {}


async def test_a_person_who_takes_an_exclusion_out_is_heeded(big, story):
    """It is not put back, and no longer counted as ours."""
    first = await big.train(nodes=2)
    ref, verdict = await story.fails(first, suspect("n1"))
    second = await story.carries_out(first, ref, verdict)
    big.change(second, excluded_nodes=())
    _, verdict = await story.fails(second, suspect())
    assert (verdict.exclusions, verdict.allow, verdict.plan.exclude) == ((), (), ())


async def test_another_jobs_exclusions_are_not_carried_over(big, story):
    """Also under the same user, name and script: another job id that nobody requeued is other work."""
    first = await big.train(nodes=2)
    ref, verdict = await story.fails(first, suspect("n1"))
    await story.carries_out(first, ref, verdict)
    other = await big.train(nodes=2)
    _, verdict = await story.fails(other, suspect())
    assert (verdict.exclusions, verdict.allow) == ((), ())


async def test_what_an_older_version_excluded_in_an_earlier_incident_is_never_taken_for_the_users(big, story):
    """Its intent names all nodes it asked for, the user's too: those the first attempt had are left out."""
    first = await big.train(nodes=2, excluded_nodes=("n8",))
    ref, verdict = await story.fails(first, suspect("n1"))
    second = await story.carries_out(first, ref, verdict)
    intent = next(row for row in await big.rows(RowKind.INTENT) if row.body["what"] == "exclude")
    assert intent.body["nodes"] == ["n1"]
    ref, verdict = await story.fails(second, suspect())
    done = await story.exclude(ref, "n8", take_back=True)
    assert (done.outcome, set(big.record(second).excluded_nodes)) == (None, {"n1", "n8"})


async def test_the_wait_is_planned_from_the_jobs_own_past(big, story):
    """Nothing in vain, no wait; then a minute, then five."""
    attempt = await big.train(nodes=2)
    waits = []
    for _ in range(3):
        ref, verdict = await story.fails(attempt, suspect())
        waits.append(verdict.not_before and verdict.not_before - big.clock.now)
        attempt = await story.carries_out(attempt, ref, verdict)
    assert waits == [None, MINUTE, 5 * MINUTE]


async def test_a_checkpoint_that_was_seen_written_starts_the_count_anew(big, story):
    """The job's output says so, and the follower has read it."""
    output, steps = big.folder / "train.out", "step 1/9 | loss 1.0\nstep 2/9 | loss 1.0\n"
    attempt = await big.train(nodes=2)
    for number in (1, 2):
        output.write_text(steps * number)  # a job that appends
        await big.run(big.follow._round, {})
        ref, verdict = await story.fails(attempt, suspect())
        attempt = await story.carries_out(attempt, ref, verdict)
    assert verdict.not_before
    output.write_text(f"{steps * 3}saved checkpoint to /x/step_2\n")
    await big.run(big.follow._round, {})
    progress = await big.site.progress(attempt.key)
    assert (progress.saved_step, progress.saved_at) == (2, big.clock.now)
    _, verdict = await story.fails(attempt, suspect())
    assert verdict.not_before is None


@pytest.mark.parametrize(
    "text",
    [
        "saving checkpoint at iteration 2 to /x\n",  # begun
        "scheduled an async checkpoint save at iteration       2 to /x\n",
        "Scheduler state saved in /x/scheduler.pt\n",  # one file of several
        "loading checkpoint from /x\n",
        "",
    ],
)
async def test_what_is_not_said_to_be_written_is_no_save(big, text):
    """Begun, scheduled, in part, or read."""
    attempt = await big.train(nodes=2)
    (big.folder / "train.out").write_text(f"step 1/9 | loss 1.0\nstep 2/9 | loss 1.0\n{text}")
    await big.run(big.follow._round, {})
    progress = await big.site.progress(attempt.key)
    assert (progress.last_step, progress.saved_step) == (2, None)


# --- a job that cannot be placed ---


@pytest.fixture
def await_running(world, ref):
    """Waits for the next attempt."""

    async def call(attempt, *exclude):
        return await world.run(world.verify.await_running, c.AwaitRunningInput(incident=ref(attempt), exclude=exclude))

    return call


def reserve(world, *nodes):
    in_partition(world)
    for name in nodes:
        world.slurm._node_put(name, add={NodeFlag.RESERVED})


@pytest.mark.parametrize("reason", ["ReqNodeNotAvail", "ReqNodeNotAvail, May be reserved for other job", "Reservation"])
async def test_nodes_that_are_not_available_because_of_us_are_said(world, await_running, reason):
    """With n3 and n4 reserved the job needs n1 and n2: told once Slurm has said so for a while."""
    attempt = await world.requeued(nodes=2)
    later = world.clock.now + timedelta(days=1)
    world.change(attempt, reason=reason, excluded_nodes=("n2",), eligible_time=later)
    reserve(world, "n3", "n4")
    began = world.clock.now
    running = await await_running(attempt, "n2")
    assert (running.too_few_nodes, running.attempt) == (True, None)
    assert world.clock.now - began >= UNPLACEABLE_AFTER


async def test_nodes_that_are_not_available_for_other_reasons_are_waited_for(world, await_running):
    """Others are enough, or nodes cannot be read: nothing of ours is given up, and the job starts when it can."""
    attempt = await world.requeued(nodes=2)
    later = world.clock.now + timedelta(days=1)
    world.change(attempt, reason="ReqNodeNotAvail", excluded_nodes=("n2",), eligible_time=later)
    world.after(40, lambda: world.slurm.fail_next("nodes", SlurmUnavailableError("timed out")))
    world.after(45, lambda: reserve(world, "n3", "n4"))
    world.after(50, lambda: world.slurm._node_put("n3", add=(), drop={NodeFlag.RESERVED}))
    world.after(200, lambda: world.change(attempt, reason="Priority", eligible_time=world.clock.now))
    running = await await_running(attempt, "n2")
    assert (running.too_few_nodes, running.nodes) == (False, ("n1", "n3"))
