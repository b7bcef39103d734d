"""A restart that waits, and exclusions taken back: what the workflow asks of its activities."""

from datetime import UTC, datetime, timedelta

from relight.activities import contracts as c
from relight.domain.exclusions import Exclusion, Proof
from relight.domain.incidents import Outcome
from relight.domain.plan import Restart

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
LATER = T0 + timedelta(minutes=5)


def excluded(node, proof=Proof.JOB, incident="i0"):
    return Exclusion(node=node, incident=incident, since=T0, until=T0 + timedelta(days=1), proof=proof)


def planned(script, *, not_before=None, exclusions=(), allow=(), **plan):
    """The scripted verdict, with what this file is about."""
    update = {"not_before": not_before, "exclusions": exclusions, "allow": allow}
    script.on(c.PLAN, script.verdict(**plan).model_copy(update=update))


async def test_the_job_is_requeued_at_once_and_started_later(incident, script):
    """The requeue comes first: Slurm starts the job by itself whatever becomes of Relight. The story says when."""
    planned(script, not_before=LATER)
    script.on(c.START, c.Done(text="Slurm starts it by itself after 09:32:12 UTC", at=T0))
    result = await incident.run()
    assert result.outcome is Outcome.RECOVERED
    assert script.names.index(c.REQUEUE.name) < script.names.index(c.START.name)
    assert [arg.not_before for arg in script.args(c.START)] == [LATER]
    assert incident.steps()["start set"] == "Slurm starts it by itself after 09:32:12 UTC"


async def test_a_restart_that_does_not_wait_is_started_now(incident, script):
    """As ever."""
    await incident.run()
    assert [arg.not_before for arg in script.args(c.START)] == [None]


async def test_slurms_own_hold_stays_while_the_job_backs_off(environment, incident, script):
    """Released, it may start before a start time can be set; and were nothing of Relight left, the hold would stay."""
    later = await environment.get_current_time() + timedelta(minutes=5)
    planned(script, not_before=later, restart=Restart.ADOPT, release=True)
    released = []

    async def release(_arg):
        released.append(await environment.get_current_time())
        return c.Done(text="Slurm's hold is undone", at=T0)

    script.on(c.RELEASE, release)
    result = await incident.run()
    assert result.outcome is Outcome.ADOPTED
    assert released[0] >= later
    assert incident.steps()["backs off"] == f"Slurm's hold stays until {later:%H:%M:%S} UTC"
    assert script.names.index(c.RELEASE.name) < script.names.index(c.START.name)


async def test_what_has_expired_is_taken_back_before_the_new_is_added(incident, script):
    """With the time at which the new one ends; both between the requeue and the start."""
    new = excluded("n2", Proof.PLATFORM, incident="")
    planned(script, exclusions=(new,), allow=("n9",), exclude=("n2",))
    await incident.run()
    back, add = script.args(c.EXCLUDE)
    assert (back.nodes, back.take_back) == (("n9",), True)
    assert (add.nodes, add.take_back, add.until) == (("n2",), False, {"n2": new.until})
    order = [name for name in script.names if name in {c.REQUEUE.name, c.EXCLUDE.name, c.START.name}]
    assert order == [c.REQUEUE.name, c.EXCLUDE.name, c.EXCLUDE.name, c.START.name]


async def test_the_least_proven_is_taken_back_first_earlier_ones_too(incident, script):
    """A job that cannot be placed gives up what an earlier incident excluded before what this one has a witness for."""
    kept_out = (excluded("n2", Proof.PLATFORM, incident=""), excluded("n3"), excluded("n4"))
    planned(script, exclusions=kept_out, exclude=("n2",))
    runs = c.Running(attempt=script.attempt, nodes=("n1",), at=T0, text="running again on n1")
    shut_out = c.Running(at=T0, too_few_nodes=True, text="BadConstraints")
    script.on(c.AWAIT_RUNNING, shut_out, shut_out, runs)
    await incident.run()
    taken = [arg.nodes for arg in script.args(c.EXCLUDE) if arg.take_back]
    assert taken == [("n4",), ("n3",)]
    assert [arg.exclude for arg in script.args(c.AWAIT_RUNNING)] == [("n2", "n3", "n4"), ("n2", "n3"), ("n2",)]
