"""The last look at an approval, in the activity that acts; and what a plan is bound to."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode, Restart
from relight.domain.policy import Policy
from relight.domain.rights import Approver

ADA = Approver(
    name="ada", key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOOpHHRjjPzerSRq6uUgnLAwE2FMV/MCd0VwGky6dQWo", may=("restart",)
)
LATER = timedelta(minutes=11)


def approved(arg, world):
    """What people have approved just now."""
    return arg.model_copy(update={"approved_until": world.clock.now + timedelta(minutes=10)})


async def test_a_requeue_that_waited_too_long_for_a_worker_is_not_written(world, act):
    """Void, and said so: nothing is meant, nothing is written."""
    attempt = await world.failed()
    arg = approved(act(attempt), world)
    world.clock.on(LATER.total_seconds())
    done = await world.run(world.restart.requeue, arg)
    assert done.outcome is Outcome.EXPIRED
    assert "and nothing had begun by then" in done.text
    assert world.writes == []
    assert await world.rows(RowKind.INTENT) == ()


async def test_a_cancel_that_waited_too_long_is_not_written(world, act):
    """The same."""
    attempt = await world.train()
    arg = approved(act(attempt, Interruption.STRAGGLER, restart=Restart.NONE, cancel=True), world)
    world.clock.on(LATER.total_seconds())
    assert (await world.run(world.restart.cancel, arg)).outcome is Outcome.EXPIRED
    assert world.writes == []


async def test_a_requeue_in_time_is_written(world, act):
    """To the second."""
    attempt = await world.failed()
    arg = approved(act(attempt), world)
    world.clock.on(599)
    assert (await world.run(world.restart.requeue, arg)).outcome is None


async def test_a_requeue_that_was_written_is_found_however_late(world, act):
    """The worker died between write and ledger: what has been done is done."""
    attempt = await world.failed()
    arg = approved(act(attempt), world)
    world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await world.run(world.restart.requeue, arg)
    world.ledger.refused = set()
    world.clock.on(LATER.total_seconds())
    assert (await world.run(world.restart.requeue, arg)).outcome is None
    assert world.writes == ["requeue"]


async def test_a_requeue_that_was_meant_and_not_written_is_void_too(world, act):
    """slurmctld was away at the write, and then the worker: an hour later it is not written any more."""
    attempt = await world.failed()
    arg = approved(act(attempt), world)
    world.slurm.fail_next("requeue", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await world.run(world.restart.requeue, arg)
    world.clock.on(LATER.total_seconds())
    done = await world.run(world.restart.requeue, arg)
    assert (done.outcome, world.record(attempt).restarts) == (Outcome.EXPIRED, 0)


@pytest.fixture
def plan(world, ref, detection):
    """Plans for an attempt with this evidence under this policy."""

    async def call(attempt, text="Xid 48", **policy):
        world.site.enforce(Policy(mode=Mode.APPROVE, **policy))
        cause = Hypothesis(
            signature="CUDA_ECC",
            category=Category.GPU,
            action=Action.RESTART,
            action_if_it_repeats=Action.STOP,
            confidence=0.9,
            evidence=(Evidence(source=Source.KERNEL_LOG, text=text, node="n1"),),
        )
        arg = c.PlanInput(
            incident=ref(attempt),
            detection=detection(attempt, world.clock.now),
            diagnosis=Diagnosis(hypotheses=(cause,)),
        )
        return await world.run(world.investigate.plan, arg)

    return call


async def test_a_plan_is_bound_to_policy_and_evidence(world, plan):
    """The same actions for another reason, or under other rules, need another approval."""
    attempt = await world.failed()
    first, again = await plan(attempt), await plan(attempt)
    other, ruled = await plan(attempt, text="Xid 79"), await plan(attempt, approvers={"restart": 2})
    assert first.plan.digest == again.plan.digest
    assert len({first.plan.digest, other.plan.digest, ruled.plan.digest}) == 3
    assert {v.plan.describe() for v in (first, other, ruled)} == {first.plan.describe()}


async def test_a_plan_travels_with_its_approvers_and_with_what_remains(world, plan):
    """Public keys, and the command that submits the job anew."""
    object.__setattr__(world.site, "approvers", (ADA,))
    attempt = await world.failed()
    verdict = await plan(attempt)
    assert verdict.approvers == (ADA,)
    assert "sbatch" in verdict.plan.fresh
    (row,) = await world.rows(RowKind.PLANNED)
    assert row.body["approvers"] == [ADA.model_dump(mode="json")]
