"""Which policy a decision is made by, and that it is recorded with it."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.sights import WatchBook, reports
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode, Restart
from relight.domain.policy import Policy
from relight.domain.policy_rules import SitePolicy, version_of

DEBUG = {"match": {"partition": "debug"}, "set": {"mode": "monitor", "approval_expires": "5m"}}
RULED = SitePolicy(mode=Mode.AUTO, rules=[DEBUG])
ODD = Hypothesis(
    signature="UNKNOWN",
    category=Category.UNKNOWN,
    action=Action.RESTART,
    action_if_it_repeats=Action.STOP,
    confidence=0.5,
    summary="It crashed.",
)


@pytest.fixture
def world(make_world):
    """A site in mode auto that only watches its partition debug."""
    return make_world(policy=RULED)


@pytest.fixture
def plan(world, ref, detection):
    """Plans for a crash of an attempt."""

    async def call(attempt, name="i1"):
        found = detection(attempt, world.clock.now)
        arg = c.PlanInput(
            incident=ref(attempt, Interruption.CRASH, name=name),
            detection=found,
            diagnosis=Diagnosis(hypotheses=(ODD,)),
        )
        return await world.run(world.investigate.plan, arg)

    return call


async def test_a_decision_is_made_by_the_rules_that_fit_the_job(world, plan):
    """And tells which, and from which policy: in the verdict and in the ledger."""
    verdict = await plan(await world.failed(partition="debug"))
    assert (verdict.mode, verdict.policy.approval_expires) == (Mode.MONITOR, timedelta(minutes=5))
    assert (verdict.policy_version, verdict.policy_rules) == (version_of(RULED), ("partition debug",))
    (row,) = await world.rows(RowKind.PLANNED)
    assert (row.body["policy_version"], row.body["policy_rules"]) == (version_of(RULED), ["partition debug"])
    assert "rules" not in row.body["policy"]


async def test_another_job_is_not_touched_by_them(world, plan):
    """The flat keys alone."""
    verdict = await plan(await world.failed())
    assert (verdict.mode, verdict.policy_rules) == (Mode.AUTO, ())


async def test_a_decision_keeps_its_policy(world, plan):
    """A new one counts for later decisions."""
    attempt = await world.failed()
    before = await plan(attempt)
    world.site.enforce(Policy(mode=Mode.APPROVE, approval_expires=timedelta(hours=1)))
    after = await plan(attempt, "i2")
    assert (before.mode, before.policy.approval_expires) == (Mode.AUTO, timedelta(minutes=30))
    assert (after.mode, after.policy.approval_expires) == (Mode.APPROVE, timedelta(hours=1))
    assert before.policy_version != after.policy_version
    guard = await world.run(world.nodes.read_policy, c.PolicyInput(cluster="test"))
    assert guard.mode is Mode.APPROVE


@pytest.mark.parametrize(("allowed", "restart"), [(2, Restart.REQUEUE), (1, Restart.NONE)])
async def test_our_own_requeues_count_against_the_comments_limit(world, plan, act, allowed, restart):
    """Those that the ledger says we meant, of all attempts of the job."""
    comment = f'{{"APS": {{"auto_resume_mode": "requeue", "max_requeue_times": {allowed}}}}}'
    first = await world.failed(comment=comment)
    await world.run(world.restart.requeue, act(first))
    world.clock.on(5)
    world.slurm.start(first.key.job_id)
    await world.look()
    world.slurm.fail(first.key.job_id)
    await world.look()
    second = await world.attempt(first.key.job_id)
    assert second.key != first.key
    verdict = await plan(second)
    assert verdict.plan.restart is restart
    if restart is Restart.NONE:
        assert (verdict.outcome, "requeued once" in verdict.plan.reason) == (Outcome.STOPPED, True)


async def test_a_worker_tells_which_policy_is_in_force(world):
    """Its version, the most that it does to any job, and why a newer one is not."""
    world.site.refuse("policy.mode: no such mode")
    await WatchBook(world.site, "ctl/1", "0.1").write()
    (report,) = (await reports(world.site)).workers
    assert (report.policy, report.mode) == (version_of(RULED), "auto")
    assert report.policy_problem == "policy.mode: no such mode"
    world.site.enforce(Policy())
    await WatchBook(world.site, "ctl/1", "0.1").write()
    (report,) = (await reports(world.site)).workers
    assert (report.policy, report.mode, report.policy_problem) == (version_of(Policy()), "monitor", "")
