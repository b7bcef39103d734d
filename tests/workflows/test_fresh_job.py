"""RecoverJob where Slurm cannot queue the job again: a fresh one is submitted, held, and released once it is ready."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.activities import contracts as c
from relight.domain.incidents import Outcome
from relight.domain.plan import Mode, Restart

from .conftest import FRESH

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)


@pytest.fixture
def anew(script):
    """A plan that submits the job anew, away from n2."""

    def plan(mode=Mode.AUTO, **fields):
        return script.verdict(mode, restart=Restart.SUBMIT, exclude=("n2",), submission="5ub", **fields)

    script.on(c.PLAN, plan())
    return plan


async def test_a_fresh_job_goes_on_in_the_order_that_keeps_it_from_starting_too_soon(incident, script, anew):
    """Outputs, submission, exclusions, those that wait for it, release: only then it may start."""
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.RECOVERED, "step 41, past step 40")
    first = script.names.index(c.KEEP_OUTPUTS.name)
    assert script.names[first:] == [
        c.KEEP_OUTPUTS.name,
        c.SUBMIT.name,
        c.EXCLUDE.name,
        c.REPOINT.name,
        c.RELEASE_FRESH.name,
        c.AWAIT_RUNNING.name,
        c.AWAIT_PROGRESS.name,
        c.CLOSE.name,
    ]
    assert script.args(c.SUBMIT)[0].incident.fresh is None
    for call in (c.EXCLUDE, c.REPOINT, c.RELEASE_FRESH, c.AWAIT_RUNNING):
        assert script.args(call)[0].incident.fresh == FRESH
    assert script.args(c.PLAN)[0].fresh_job
    assert incident.steps()["submitted"] == "job 8 goes on in place of job 7, held"


async def test_what_must_not_be_submitted_is_not(incident, script, anew):
    """The look right before it ends the incident; nothing else is done."""
    script.on(c.SUBMIT, c.Done(text="job 9 goes on with the work", at=T0, outcome=Outcome.SUCCEEDED_BY))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.SUCCEEDED_BY, "job 9 goes on with the work")
    assert script.mutations == [c.KEEP_OUTPUTS.name, c.SUBMIT.name]


async def test_a_submission_that_slurmctld_forgot_is_made_again(incident, script, anew):
    """With rows, and so a mark, of its own; the exclusions and what waits for it, too."""
    running = script._answers[c.AWAIT_RUNNING.name][0]
    lost = c.Running(at=T0, forgotten=True, text="slurmctld has forgotten job 8")
    script.on(c.AWAIT_RUNNING, lost, running)
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert [arg.incident.again for arg in script.args(c.SUBMIT)] == [0, 1]
    assert [arg.incident.fresh for arg in script.args(c.SUBMIT)] == [None, None]
    assert script.mutations == [
        c.KEEP_OUTPUTS.name,
        *[c.SUBMIT.name, c.EXCLUDE.name, c.RELEASE_FRESH.name] * 2,
    ]


async def test_where_too_few_nodes_are_left_the_fresh_jobs_exclusion_is_taken_back(incident, script, anew):
    """It is the fresh job's list that is changed."""
    running = script._answers[c.AWAIT_RUNNING.name][0]
    script.on(c.AWAIT_RUNNING, c.Running(at=T0, too_few_nodes=True, text="too few"), running)
    assert (await incident.run()).outcome is Outcome.RECOVERED
    back = script.args(c.EXCLUDE)[-1]
    assert (back.take_back, back.nodes, back.incident.fresh) == (True, ("n2",), FRESH)


async def test_a_back_off_is_given_to_slurm_with_the_release(incident, script, anew):
    """Nothing of Relight needs to be there when it is over."""
    later = T0 + timedelta(minutes=5)
    script.on(c.PLAN, anew().model_copy(update={"not_before": later}))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert script.args(c.RELEASE_FRESH)[0].not_before == later


async def test_in_monitor_nothing_is_submitted(incident, script, anew):
    """It says what it would have done."""
    script.on(c.PLAN, anew(Mode.MONITOR))
    result = await incident.run()
    assert result.outcome is Outcome.OBSERVED
    assert "submit job" in result.reason
    assert script.mutations == []


async def test_nobody_answers_and_a_person_is_told_what_to_run(incident, script, anew):
    """The plan expires, and says by whom and how the job can still be submitted."""
    script.on(c.PLAN, anew(Mode.APPROVE, fresh="sbatch /t.sh"))
    assert (await incident.run()).outcome is Outcome.EXPIRED
    assert script.mutations == []
    assert "submit it anew, as ada: sbatch /t.sh" in script.args(c.CLOSE)[0].escalate
