"""RecoverJob and other jobs: those that wait for this one's success, and those that it waits for."""

from datetime import UTC, datetime

import pytest
from temporalio.exceptions import ApplicationError

from relight.activities import contracts as c
from relight.domain.incidents import Outcome
from relight.domain.plan import Restart

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)


async def test_what_waits_for_its_success_is_told(incident, script):
    """Between requeue and start, while the old attempt still ends."""
    script.on(c.REPOINT, c.Done(text="2 that waited for its success wait again: 8, 9", at=T0))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    order = [name for name in script.names if name in {c.REQUEUE.name, c.REPOINT.name, c.AWAIT_ENDED.name}]
    assert order == [c.REQUEUE.name, c.REPOINT.name, c.AWAIT_ENDED.name]
    assert incident.steps()["dependants"] == "2 that waited for its success wait again: 8, 9"


async def test_without_dependants_nothing_is_told(incident):
    """The usual case is no step."""
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert "dependants" not in incident.steps()


async def test_dependants_never_hold_up_the_restart(incident, script):
    """Refused, or tried in vain: it is said, and the job starts all the same."""
    script.on(c.REPOINT, ApplicationError("not an operator", type="NotPermittedError", non_retryable=True))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert "not an operator" in incident.steps()["dependants not pointed anew"]


@pytest.mark.parametrize("plan", [{"restart": Restart.ADOPT}, {"restart": Restart.NONE, "outcome": Outcome.STOPPED}])
async def test_where_we_do_not_requeue_dependants_are_left_alone(incident, script, plan):
    """A job that Slurm requeues has not failed: they wait on. One that is stopped will not succeed."""
    script.on(c.PLAN, script.verdict(**plan))
    await incident.run()
    assert script.args(c.REPOINT) == []


async def test_why_slurm_keeps_it_waiting_is_told_as_it_changes(incident, script):
    """Each reason once; the wait goes on."""
    first = c.Running(at=T0, waits="QOSMaxJobsPerUserLimit", text="waits: a limit")
    second = c.Running(at=T0, waits="Resources", text="waits: too few nodes are free")
    runs = c.Running(attempt=incident.attempt, nodes=("n2",), at=T0, text="running")
    script.on(c.AWAIT_RUNNING, first, second, runs)
    assert (await incident.run()).outcome is Outcome.RECOVERED
    told = [arg.told for arg in script.args(c.AWAIT_RUNNING)]
    assert told == [(), ("QOSMaxJobsPerUserLimit",), ("QOSMaxJobsPerUserLimit", "Resources")]
    assert incident.steps()["waiting"] == "waits: too few nodes are free"
