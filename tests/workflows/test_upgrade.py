"""An upgrade with incidents in flight: begun by a worker of the version before, ended by one of this version."""

from datetime import timedelta

import pytest
import temporalio.workflow
from temporalio import workflow

from relight.activities import contracts as c
from relight.domain.incidents import Outcome, Phase
from relight.domain.plan import Mode
from relight.workers.controller import WORKFLOWS, register_search_attributes
from relight.workers.replay_open import replay_open
from relight.workflows.guard_cluster import GuardCluster


@pytest.fixture
def version_before(monkeypatch):
    """The version before knew none of the patches: its code is what stands beside them today."""

    def use():
        monkeypatch.setattr(temporalio.workflow, "patched", lambda _patch: False)

    return use


@workflow.defn(name=c.RECOVER_WORKFLOW, sandboxed=False)
class Careless:
    """Another way to begin, and no patch."""

    @workflow.run
    async def run(self, _arg: c.RecoverInput) -> None:
        """Begins with the end."""
        await workflow.execute_activity(c.CLOSE.name, start_to_close_timeout=timedelta(seconds=1))


def waits_for_a_person(script):
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy={"trust_temporal_ui": True}))


async def replayed(incident, workflows=WORKFLOWS):
    return [each async for each in replay_open(incident.client, incident.task_queue, workflows)]


async def begun(incident):
    """An incident that waits for approval, listed as open."""
    handle = await incident.start()
    status = await incident.waiting(handle)
    return handle, status.verdict.plan.digest


async def test_an_incident_begun_before_ends_after(dev_server, stage, version_before, monkeypatch, until):
    """What waits for a person while the worker is replaced is approved and carried out by the new one."""
    await register_search_attributes(dev_server.client)
    version_before()
    async with stage(dev_server.client, job_id=901) as incident:
        waits_for_a_person(incident.script)
        handle, digest = await begun(incident)
    history = await handle.fetch_history()
    assert not any(event.HasField("marker_recorded_event_attributes") for event in history.events)
    monkeypatch.undo()

    async def listed():
        return await replayed(incident)

    (open_,) = await until(listed, bool)
    assert (open_.workflow_id, open_.problem) == (handle.id, "")

    async with stage(dev_server.client, job_id=901) as incident:
        await handle.signal("approve", {"digest": digest, "reason": "go on"})
        assert (await handle.result()).outcome is Outcome.RECOVERED
        status = await incident.status(handle)
        assert status.phase is Phase.CLOSED


async def test_a_guard_begun_before_goes_on(dev_server, stage, version_before, monkeypatch):
    """The guard, which lives for ever, is renewed by a worker that starts, and answers the new version's incidents."""
    await register_search_attributes(dev_server.client)
    version_before()
    async with stage(dev_server.client, job_id=902) as incident:
        guard = await incident.client.start_workflow(
            GuardCluster.run,
            c.GuardState(cluster=incident.attempt.cluster),
            id=c.guard_id(incident.attempt.cluster),
            task_queue=incident.task_queue,
        )
        assert (await guard.query("state", result_type=c.GuardState)).handled == 0
    monkeypatch.undo()
    async with stage(dev_server.client, job_id=902) as incident:
        await guard.signal("renew")  # as each worker does that starts
        incident.script.on(c.PLAN, incident.script.verdict(exclude=("n2",), drain=("n2",)))
        assert (await incident.run()).outcome is Outcome.RECOVERED
        assert "has the drain flag" in incident.steps()["drained"]
        await guard.terminate()


async def test_code_that_cannot_go_on_is_named_before_it_is_deployed(dev_server, stage, until):
    """The check can fail: a workflow whose code makes other commands would stand still."""
    await register_search_attributes(dev_server.client)
    async with stage(dev_server.client, job_id=903) as incident:
        waits_for_a_person(incident.script)
        handle, _ = await begun(incident)

        async def listed():
            return await replayed(incident, [Careless])

        (open_,) = await until(listed, bool)
        assert open_.workflow_id == handle.id
        assert "Nondeterminism" in open_.problem or "nondetermin" in open_.problem.lower()
        await handle.terminate()
