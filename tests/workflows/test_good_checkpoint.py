"""A restart from a good checkpoint: when the workflow looks, goes back, and does not restart."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.activities import contracts as c
from relight.domain.checkpoint_look import CheckpointLook, FallBack, Why
from relight.domain.checkpoints import Checkpoint, Format, HowNamed, Series
from relight.domain.evidence import Answer
from relight.domain.incidents import Outcome
from relight.domain.plan import Mode, Restart

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
BACK = FallBack(why=Why.DAMAGED, folder="/run", target="checkpoint-30", step=30, over=40, aside=("checkpoint-40",))


def look():
    found = [
        Checkpoint(
            path=f"/run/checkpoint-{step}",
            step=step,
            format=Format.HUGGING_FACE,
            modified_at=T0,
            size=9,
            whole=whole,
            reasons=("cut short",),
        )
        for step, whole in ((40, Answer.NO), (30, Answer.YES))
    ]
    series = Series(folder="/run", format=Format.HUGGING_FACE, how=HowNamed.LOG, checkpoints=tuple(found))
    return CheckpointLook(series=series, writable=Answer.YES, read_at=T0)


def fell(**fields):
    return c.FallenBack(**{"text": "the next attempt goes on from step 30", "at": T0, **fields})


@pytest.fixture
def planned(script):
    """A plan that goes back, and what was found before it."""
    script.on(c.LOOK_AT_CHECKPOINTS, look())
    verdict = script.verdict(fall_back=BACK)
    script.on(c.PLAN, verdict.model_copy(update={"checkpoints": look()}))
    return script


async def test_it_goes_back_before_the_requeue(incident, planned):
    """The attempt has ended: no moment is left in which Slurm could start the job from the damaged one."""
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert planned.mutations == [c.KEEP_OUTPUTS.name, c.FALL_BACK.name, c.REQUEUE.name, c.START.name]
    assert [arg.ended for arg in planned.args(c.FALL_BACK)] == [False]
    assert planned.args(c.PLAN)[0].checkpoints == look()
    assert incident.steps()["checkpoints"].startswith("a restart would go on from step 40, which is damaged")
    assert incident.steps()["went back"] == "the next attempt goes on from step 30"
    (proof,) = planned.args(c.AWAIT_PROGRESS)
    assert (proof.fits, proof.checkpoints) == (True, look())


async def test_it_waits_for_the_end_of_an_attempt_that_runs(incident, planned):
    """The requeue ends it; then, and before the job may start, it is asked again."""
    planned.on(c.FALL_BACK, fell(waits=True), fell())
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert [arg.ended for arg in planned.args(c.FALL_BACK)] == [False, True]
    order = [name for name in planned.names if name in {c.FALL_BACK.name, c.AWAIT_ENDED.name, c.START.name}]
    assert order == [c.FALL_BACK.name, c.AWAIT_ENDED.name, c.FALL_BACK.name, c.START.name]


async def test_slurms_own_requeue_goes_back_after_the_end(incident, script):
    """It is queued again already."""
    script.on(c.PLAN, script.verdict(restart=Restart.ADOPT, fall_back=BACK))
    assert (await incident.run()).outcome is Outcome.ADOPTED
    assert [arg.ended for arg in script.args(c.FALL_BACK)] == [True]


@pytest.mark.parametrize("ended", [False, True])
async def test_no_restart_from_what_is_damaged(incident, planned, ended):
    """Where it cannot be gone back the job is not requeued, or not started."""
    stop = fell(outcome=Outcome.STOPPED, text="not restarted from a damaged checkpoint: no permission")
    planned.on(c.FALL_BACK, *([fell(waits=True)] if ended else []), stop)
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.STOPPED, stop.text)
    assert (c.REQUEUE.name in planned.names) is ended
    assert c.START.name not in planned.names


async def test_a_look_that_fails_holds_up_nothing(incident, script, gives_up):
    """Unknown, with the reason; the plan is asked for all the same."""
    script.on(c.LOOK_AT_CHECKPOINTS, gives_up("the reader died"))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    (asked,) = script.args(c.PLAN)
    assert (asked.checkpoints.series, asked.checkpoints.problems) == (None, ("look_at_checkpoints: the reader died",))
    assert "not known" in incident.steps()["checkpoints"]
    assert c.FALL_BACK.name not in script.names


async def test_people_approve_the_very_change(incident, planned):
    """Going back is heavy: two people, and their approval is bound to the checkpoint that is gone back to."""
    plan = planned.plan(fall_back=BACK)
    verdict = planned.verdict(Mode.APPROVE, fall_back=BACK, policy={"approval_expires": timedelta(minutes=5)})
    planned.on(c.PLAN, verdict)
    handle = await incident.start()
    status = await incident.waiting(handle)
    assert (status.approval.request.digest, status.approval.request.needed) == (plan.digest, 2)
    await handle.signal("reject", {"reason": "not that one"})
    assert (await handle.result()).outcome is Outcome.REJECTED
    assert c.FALL_BACK.name not in planned.names
