"""RecoverJob and the guard: what it is told, and that nothing begins once a pause, the breaker or a file stops it."""

import pytest
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.domain.breaker import Report, Sign
from relight.domain.diagnosis import Category
from relight.domain.incidents import Outcome
from relight.domain.plan import Mode

STOP = "the breaker is open since 2026-11-30 09:00 UTC: 3 nodes found broken within 10m"


@workflow.defn(name="Listener", sandboxed=False)
class Listener:
    """Stands for the guard: keeps what it is told."""

    def __init__(self):
        self._told = []

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def report(self, report: Report) -> None:
        self._told.append(report)

    @workflow.signal
    def request_drain(self, request: c.DrainRequest) -> None:
        self._told.append(request)

    @workflow.query
    def told(self) -> list[Report]:
        return [one for one in self._told if isinstance(one, Report)]

    @workflow.query
    def asked(self) -> list[c.DrainRequest]:
        return [one for one in self._told if isinstance(one, c.DrainRequest)]


@pytest.fixture
async def listener(incident, end):
    """In the guard's place."""
    queue = f"{incident.task_queue}-guard"
    async with Worker(incident.client, task_queue=queue, workflows=[Listener]):
        handle = await incident.client.start_workflow(
            Listener.run, id=c.guard_id(incident.attempt.cluster), task_queue=queue
        )
        yield handle
        await end(handle)


async def test_the_guard_is_told_of_each_diagnosed_incident(incident, script, listener, make_diagnosis):
    """Whose job, which cause, and the nodes that a platform witness speaks against, not those that the job names."""
    script.on(c.DIAGNOSE, make_diagnosis(nodes=("n2", "n3"), drain_nodes=("n2",)))
    script.on(c.PLAN, script.verdict(Mode.MONITOR))
    await incident.run()
    (told,) = await listener.query(Listener.told)
    (close,) = script.args(c.CLOSE)
    assert (told.sign, told.incident, told.nodes) == (Sign.INCIDENT, close.incident.id, ("n2",))
    assert (told.category, told.job, told.user, told.partition) == (Category.GPU, "j1", "ada", "gpu")


@pytest.mark.parametrize("category", [Category.USER_CODE, Category.CONFIG, Category.DATA])
async def test_the_guard_is_not_told_of_a_jobs_own_doing(incident, script, listener, make_diagnosis, category):
    """However many of them: they share no cause of the cluster's."""
    script.on(c.DIAGNOSE, make_diagnosis(category=category))
    await incident.run()
    assert await listener.query(Listener.told) == []


async def test_the_guard_is_told_of_a_restart_that_did_not_help(incident, script, listener):
    """The second signal about the same incident."""
    proof = script._answers[c.AWAIT_PROGRESS.name][0]
    script.on(c.AWAIT_PROGRESS, proof.model_copy(update={"moved": False, "text": "no step"}))
    assert (await incident.run()).outcome is Outcome.RESTARTED_NO_PROGRESS
    assert [told.sign for told in await listener.query(Listener.told)] == [Sign.INCIDENT, Sign.NOT_HELPED]


async def test_a_request_says_when_the_incident_began_and_what_waits(incident, script, listener):
    """How many nodes the plan takes out, and whether a job is to be placed again."""
    script.on(c.PLAN, script.verdict(drain=("n2", "n3")))
    await incident.run()
    asked = await listener.query(Listener.asked)
    assert {one.node for one in asked} == {"n2", "n3"}
    began = incident.detection().detected_at
    assert {(one.targets, one.restarts, one.began) for one in asked} == {(2, True, began)}


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.APPROVE])
async def test_nothing_begins_once_it_is_stopped(incident, script, mode):
    """Looked at right before the first action; what people have approved meanwhile ends as overridden."""
    script.on(c.PLAN, script.verdict(mode, policy={"trust_temporal_ui": True}))
    script.on(c.MAY_ACT, c.MayAct(stop=STOP))
    handle = await incident.start()
    if mode is Mode.APPROVE:
        status = await incident.waiting(handle)
        assert script.args(c.MAY_ACT) == []
        await handle.signal("approve", {"digest": status.verdict.plan.digest, "reason": "go on"})
    result = await handle.result()
    assert (result.outcome, result.reason) == (
        Outcome.OVERRIDDEN if mode is Mode.APPROVE else Outcome.OBSERVED,
        STOP,
    )
    assert script.mutations == []
    (asked,) = script.args(c.MAY_ACT)
    assert (asked.began, asked.partition) == (incident.detection().detected_at, "gpu")


@pytest.mark.parametrize(("mode", "acts"), [(Mode.AUTO, False), (Mode.APPROVE, True)])
async def test_an_unreadable_standing_stops_what_nobody_has_looked_at(incident, script, mode, acts):
    """Never act because the guard could not be read; what a person has approved was looked at."""
    script.on(c.PLAN, script.verdict(mode, policy={"trust_temporal_ui": True}))
    script.on(c.MAY_ACT, c.MayAct(unknown="what the guard wrote cannot be read"))
    handle = await incident.start()
    if mode is Mode.APPROVE:
        status = await incident.waiting(handle)
        await handle.signal("approve", {"digest": status.verdict.plan.digest, "reason": "go on"})
    result = await handle.result()
    assert bool(script.mutations) is acts
    assert result.outcome is (Outcome.RECOVERED if acts else Outcome.OBSERVED)


async def test_what_is_only_observed_is_not_looked_at_again(incident, script):
    """There is nothing to stop."""
    script.on(c.PLAN, script.verdict(Mode.MONITOR))
    await incident.run()
    assert script.args(c.MAY_ACT) == []


async def test_a_kill_switch_in_the_middle_ends_the_incident_as_overridden(incident, script):
    """The requeue was done, the start time is not set any more: Slurm's own begin delay starts the job."""
    why = "the kill switch is on: /data/KILL is there"
    script.on(c.START, ApplicationError(why, type="StoppedError"))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.OVERRIDDEN, why)
    assert len(script.args(c.START)) == 1


@pytest.mark.parametrize("call", [c.PLAN, c.MAY_ACT, c.REQUEUE, c.START])
async def test_a_kill_switch_that_cannot_be_looked_for_makes_the_incident_wait(incident, script, call):
    """A file system that stood still for a while ends nothing: it is tried again until it can be told."""
    unknown = ApplicationError("the kill switch cannot be looked for: no answer", type="KillSwitchUnknownError")
    answer = script._answers[call.name][0] if call is not c.PLAN else script.verdict()
    script.on(call, unknown, unknown, answer)
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert len(script.args(call)) == 3


async def test_an_incident_from_before_the_upgrade_goes_on_as_it_was(incident, script, listener, monkeypatch):
    """No new commands: its history is replayed with those it made."""
    monkeypatch.setattr(workflow, "patched", lambda _patch: False)
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert script.args(c.MAY_ACT) == []
    assert await listener.query(Listener.told) == []
