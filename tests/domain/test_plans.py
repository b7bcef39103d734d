"""A plan's digest stands for its actions; a decision counts for that very plan only."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.plan import Decision, Mode, Plan, Restart, decision_fits, lowest


@pytest.fixture
def plan(attempt):
    """Makes a plan: requeue job 7 without n2, drain n2."""

    def call(**fields):
        given = {
            "attempt": attempt().key,
            "restart": Restart.REQUEUE,
            "exclude": ("n2",),
            "drain": ("n2",),
            "reason": "Xid 79 on n2.",
        }
        return Plan(**{**given, **fields})

    return call


def test_the_digest_is_of_the_actions(plan, attempt, now):
    """Every change of an action, or of what the plan rests on, changes it."""
    others = [
        plan(),
        plan(restart=Restart.ADOPT),
        plan(restart=Restart.ADOPT, release=True),
        plan(restart=Restart.NONE),
        plan(cancel=True),
        plan(exclude=()),
        plan(exclude=("n2", "n3")),
        plan(drain=()),
        plan(drain=("n1",)),
        plan(attempt=attempt(submit_time=now + timedelta(seconds=1)).key),
        plan(attempt=attempt(job_id=8).key),
        plan(basis="another policy"),
    ]
    assert len({p.digest for p in others}) == len(others)


def test_the_digest_is_not_of_the_wording(plan, now):
    """Reason, deadline and what remains may be put otherwise without a new approval."""
    same = [plan(reason="other words"), plan(requeue_until=now), plan(fresh="sbatch x"), plan(requested_by="ada")]
    assert {p.digest for p in same} == {plan().digest}
    assert len(plan().digest) == 64


def test_the_digest_of_a_plan_without_a_release_is_as_it_ever_was(plan):
    """Approvals that were signed before there was a release still count, and histories replay."""
    assert plan().digest.startswith("4248aa66b69354d4")


def test_plans_that_act(plan):
    """A restart, a cancel or a drain is an action; exclusions alone are none."""
    idle = {"restart": Restart.NONE, "exclude": (), "drain": ()}
    assert not plan(**idle).acts
    assert not plan(**{**idle, "exclude": ("n1",)}).acts
    assert plan(**{**idle, "cancel": True}).acts
    assert plan(**{**idle, "drain": ("n1",)}).acts
    assert plan(**{**idle, "restart": Restart.ADOPT}).acts


def test_plans_describe_themselves(plan):
    """The actions in the order in which they are read."""
    assert plan().describe() == "requeue job 7 excluding n2; drain n2"
    assert plan(restart=Restart.ADOPT, drain=()).describe() == "adopt Slurm's own requeue of job 7 excluding n2"
    held = plan(restart=Restart.ADOPT, release=True, drain=())
    assert held.describe() == "adopt Slurm's own requeue of job 7 excluding n2 and release it"
    assert plan(restart=Restart.NONE, cancel=True, drain=()).describe() == "cancel job 7"
    assert plan(restart=Restart.NONE, drain=()).describe() == "leave job 7 as it is"


def test_a_decision_fits_by_prefix(plan):
    """Eight digits of this plan's digest or more, in any case; anything else is said."""
    digest = plan().digest
    for good in (digest, digest[:8], digest[:8].upper(), f" {digest[:20]} "):
        assert decision_fits(Decision(approved=True, digest=good), plan()) is None
    for short in ("", digest[:7]):
        assert "shorter than 8" in decision_fits(Decision(approved=True, digest=short), plan())
    other = plan(exclude=()).digest
    assert "another plan" in decision_fits(Decision(approved=True, digest=other[:8]), plan())
    assert "another plan" in decision_fits(Decision(approved=True, digest=digest + "0"), plan())


@given(st.lists(st.sampled_from(list(Mode)), min_size=1))
def test_the_lowest_mode_has_the_least_power(modes):
    """Monitor before approve before auto."""
    order = [Mode.MONITOR, Mode.APPROVE, Mode.AUTO]
    assert lowest(*modes) is order[min(order.index(mode) for mode in modes)]
