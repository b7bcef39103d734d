"""RecoverJob and draining: with leave only, and never in the restart's way."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio import workflow
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.domain.evidence import Evidence, Source, Trust
from relight.domain.incidents import Outcome
from relight.domain.plan import Mode, Restart
from relight.domain.policy import Policy
from relight.workflows.guard_cluster import GuardCluster
from relight.workflows.options import LEAVE_WITHIN

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
RESTART = [c.KEEP_OUTPUTS.name, c.REQUEUE.name, c.START.name]


@workflow.defn(name="SilentGuard", sandboxed=False)
class SilentGuard:
    """Takes requests and answers none."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def request_drain(self, request: c.DrainRequest) -> None:
        """Say nothing."""


@pytest.fixture
async def silent_guard(incident, end):
    """A guard that says nothing."""
    queue = f"{incident.task_queue}-guard"
    async with Worker(incident.client, task_queue=queue, workflows=[SilentGuard]):
        handle = await incident.client.start_workflow(
            SilentGuard.run, id=c.guard_id(incident.attempt.cluster), task_queue=queue
        )
        yield handle
        await end(handle)


@pytest.fixture
async def guard(incident, end):
    """The cluster's real guard."""
    handle = await incident.client.start_workflow(
        GuardCluster.run,
        c.GuardState(cluster=incident.attempt.cluster),
        id=c.guard_id(incident.attempt.cluster),
        task_queue=incident.task_queue,
    )
    yield handle
    await end(handle)


def restart(script):
    """The mutations other than draining, in order."""
    return [name for name in script.mutations if name != c.DRAIN.name]


async def test_drains_with_leave(incident, script, guard):
    """A platform witness, leave from the guard, then the drain, with the leave in hand."""
    script.on(c.PLAN, script.verdict(exclude=("n2",), drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    (asked,) = script.args(c.DRAIN)
    assert asked.leave.granted
    assert asked.leave.expires is not None
    assert (asked.node, asked.cls) == ("n2", "CUDA_ECC")
    assert script.names.index(c.RECORD_LEAVE.name) < script.names.index(c.DRAIN.name)
    assert incident.steps()["drained"] == "n2 has the drain flag"


async def test_the_guard_is_shown_platform_witnesses_of_that_node_only(incident, script, guard, make_diagnosis):
    """Evidence of a job, or about another node, is no reason to drain this one."""
    log = Evidence(source=Source.JOB_LOG, text="n2 is broken, believe me", node="n2")
    good = [Evidence(source=Source.NVML, text=f"Xid {n}", node="n2") for n in range(6)]
    other = Evidence(source=Source.NVML, text="Xid 79", node="n3")
    script.on(c.DIAGNOSE, make_diagnosis(evidence=(log, other, *good)))
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    await incident.run()
    (shown,) = script.args(c.RECORD_LEAVE)
    assert len(shown.request.evidence) == 4
    assert {(e.node, e.trust) for e in shown.request.evidence} == {("n2", Trust.PLATFORM)}


async def test_a_refusal_leaves_the_node_alone_and_the_restart_as_it_is(incident, script, guard):
    """The cluster's cap is used up: no drain, said in the steps, job recovered."""
    script.on(c.LOOK, script.look(policy=Policy(drains_per_hour=0)))
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert script.mutations == RESTART
    assert incident.steps()["drain refused"] == "n2: 0 of 0 drains of this hour are used on this cluster"


async def test_without_a_guard_nothing_is_drained(incident, script):
    """A guard that does not run grants nothing."""
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert script.mutations == RESTART
    assert incident.steps()["drain refused"] == "n2: the guard did not answer"


async def test_a_silent_guard_is_waited_for_so_long_and_no_longer(incident, script, silent_guard):
    """After `LEAVE_WITHIN` the node is left alone; the restart did not wait for it."""
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert script.mutations == RESTART
    (close,) = script.args(c.CLOSE)
    refused = next(step for step in close.steps if step.name == "drain refused")
    planned = next(step for step in close.steps if step.name == "planned")
    assert refused.text == "n2: the guard did not answer"
    assert LEAVE_WITHIN <= refused.at - planned.at < LEAVE_WITHIN + timedelta(minutes=1)


async def test_the_restart_does_not_wait_for_the_drain(incident, script, guard):
    """Training runs again while the drain still hangs; the incident ends once both are through."""
    hold = script.hold(c.DRAIN)
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    progress = script.hold(c.AWAIT_PROGRESS)
    handle = await incident.start()
    await hold.started.wait()
    await progress.started.wait()
    progress.release.set()
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert "drained" in incident.steps()


async def test_a_drain_that_fails_does_not_fail_the_recovery(incident, script, guard, gives_up):
    """The error is said in the steps."""
    script.on(c.DRAIN, gives_up("sudo: a password is required"))
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert incident.steps()["drain failed"] == "n2: drain_node: sudo: a password is required"


async def test_a_drain_that_never_works_is_given_up(incident, script, guard):
    """Ten tries; the incident does not stay open for a node."""
    script.on(c.DRAIN, RuntimeError("no answer"))
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert len(script.args(c.DRAIN)) == 10


async def test_a_drain_found_moot_is_said(incident, script, guard):
    """Somebody else has drained the node meanwhile: theirs stands."""
    text = "n2 is drained already: bad fan"
    script.on(c.DRAIN, c.Done(outcome=Outcome.OVERRIDDEN, text=text, at=T0))
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert incident.steps()["not drained"] == text


async def test_a_job_that_is_not_restarted_may_still_leave_a_node_to_drain(incident, script, guard):
    """The drain comes first, then the stop."""
    script.on(c.PLAN, script.verdict(restart=Restart.NONE, cancel=True, drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.STOPPED
    assert script.mutations == [c.DRAIN.name, c.CANCEL.name]


async def test_a_job_left_to_others_keeps_its_outcome_when_a_node_is_drained(incident, script, guard):
    """Another job goes on with the work; the broken node is drained all the same, and nothing else is done."""
    plan = {"restart": Restart.NONE, "drain": ("n2",), "reason": "job 8 goes on with the work"}
    script.on(c.PLAN, script.verdict(outcome=Outcome.SUCCEEDED_BY, **plan))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.SUCCEEDED_BY, plan["reason"])
    assert script.mutations == [c.DRAIN.name]


async def test_a_drain_goes_on_when_the_restart_is_moot(incident, script, guard):
    """Another hand requeued the job; the node is broken all the same."""
    script.on(c.REQUEUE, c.Done(outcome=Outcome.OVERRIDDEN, text="requeued by another", at=T0))
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    assert (await incident.run()).outcome is Outcome.OVERRIDDEN
    assert c.DRAIN.name in script.names


async def test_a_person_who_cancels_stops_a_drain_that_waits_for_leave(incident, script, silent_guard):
    """The signal `cancel` means no further action: a leave that comes later is not used."""
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    hold = script.hold(c.AWAIT_PROGRESS)
    handle = await incident.start()
    await hold.started.wait()
    await handle.signal("cancel", {"reason": "hands off"})
    await handle.signal("leave", c.Leave(node="n2", granted=True, reason="late"))
    assert (await handle.result()).outcome is Outcome.OVERRIDDEN
    assert script.mutations == RESTART
    assert incident.steps()["drain refused"] == "n2: the incident was cancelled"


async def test_cancelling_the_workflow_stops_a_drain_that_waits_for_leave(incident, script, silent_guard):
    """The web UI's own Cancel: nothing is drained after it."""
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    hold = script.hold(c.AWAIT_PROGRESS)
    handle = await incident.start()
    await hold.started.wait()
    await handle.cancel()
    await handle.signal("leave", c.Leave(node="n2", granted=True, reason="late"))
    assert (await handle.result()).outcome is Outcome.OVERRIDDEN
    assert script.mutations == RESTART


async def test_a_drain_that_has_not_begun_in_time_is_left_out(  # noqa: PLR0917 - fixtures
    environment, incident, script, silent_guard, until, decision_of
):
    """People approved it, and the leave came after their approval had lapsed; the restart had begun before."""
    keep = script.hold(c.KEEP_OUTPUTS)
    soon = {"execution_expires": timedelta(seconds=1)}
    script.on(c.PLAN, script.verdict(Mode.APPROVE, drain=("n2",), policy=soon))
    handle = await incident.start()
    request = (await incident.waiting(handle)).approval.request
    assert await handle.execute_update("decide", decision_of("ada", request)) == "counted: approved"
    await keep.started.wait()
    over = (await incident.status(handle)).approval.act_until
    await until(environment.get_current_time, lambda now: now > over)
    await handle.signal("leave", c.Leave(node="n2", granted=True, reason="drain 1 of 1"))
    keep.release.set()
    await handle.result()
    assert c.DRAIN.name not in script.mutations
    assert "and nothing had begun by then" in incident.steps()["not drained"]
