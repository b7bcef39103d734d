"""WatchCluster: all watchers, for ever."""

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError

from relight.activities import contracts as c
from relight.workflows.watch_cluster import WatchCluster

CALLS = (
    *(c.WATCH_JOBS, c.WATCH_NODES, c.FOLLOW_LOGS, c.DELIVER_DETECTIONS),
    *(c.WATCH_AGENTS, c.WATCH_METRICS, c.ANCHOR_LEDGER, c.EXPIRE_OUTPUTS),
)
WATCHERS = {call.name for call in CALLS}


@pytest.fixture
async def incident(dev_server, stage):
    """On the real server: watchers stay in progress, and the other one never skips time again after that (seen)."""
    async with stage(dev_server.client, job_id=7) as made:
        yield made


@pytest.fixture
async def watch(incident, script):
    """Starts the watchers of a cluster."""
    workflow_id = c.watch_id(incident.attempt.cluster)

    async def start():
        return await incident.client.start_workflow(
            WatchCluster.run,
            c.WatchInput(cluster=incident.attempt.cluster),
            id=workflow_id,
            task_queue=incident.task_queue,
        )

    yield start
    await incident.client.get_workflow_handle(workflow_id).terminate()


async def test_all_watchers_run_at_once(watch, script, incident):
    """Each is started with the cluster's name, none waits for another."""
    holds = [script.hold(call) for call in CALLS]
    handle = await watch()
    for hold in holds:
        await hold.started.wait()
    assert set(script.names) == WATCHERS
    assert len(script.names) == len(CALLS)
    assert {arg.cluster for _, arg in script.calls} == {incident.attempt.cluster}
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING


async def test_continues_as_new_once_all_have_returned(watch, script, incident):
    """The next run starts each of them again, with the same argument."""
    hold = script.hold(c.WATCH_JOBS)
    script.on(c.WATCH_JOBS, c.Nothing(), c.Nothing(), hold)
    first = await watch()
    await hold.started.wait()
    assert len(script.args(c.WATCH_JOBS)) == 3
    assert len({arg.model_dump_json() for _, arg in script.calls}) == 1
    told = await first.describe()
    assert told.run_id != first.first_execution_run_id
    old = incident.client.get_workflow_handle(first.id, run_id=first.first_execution_run_id)
    assert (await old.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


@pytest.mark.parametrize("kind", ["SlurmUnavailableError", "LedgerCorruptError", "ValueError"])
async def test_a_watcher_that_fails_is_started_again_whatever_the_error(watch, script, kind):
    """A failed WatchCluster would leave a cluster unwatched, and nobody would know."""
    hold = script.hold(c.WATCH_JOBS)
    script.on(c.WATCH_JOBS, ApplicationError("no", type=kind), ApplicationError("no", type=kind), hold)
    others = [script.hold(call) for call in CALLS[1:]]
    handle = await watch()
    await hold.started.wait()
    assert len(script.args(c.WATCH_JOBS)) == 3
    for other in others:
        await other.started.wait()
    assert all(script.names.count(name) == 1 for name in WATCHERS - {c.WATCH_JOBS.name})
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
