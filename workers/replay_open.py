"""Whether this version's code goes on with every workflow that is open now: asked before a worker is replaced.

Temporal replays a workflow's history wherever a worker takes it up. Code that would make other commands than the
history holds cannot: the workflow stands still, and says so in Temporal's web UI only. `docs/upgrading.md`.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from temporalio.client import Client, WorkflowExecution
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from relight.domain.base import clip
from relight.workers.controller import WORKFLOWS, sandbox


class Replayed(NamedTuple):
    """One open workflow, and why this version cannot go on with it; empty where it can."""

    workflow_id: str
    run_id: str
    events: int
    problem: str


async def replay_open(
    client: Client, task_queue: str, workflows: Sequence[type] = WORKFLOWS
) -> AsyncIterator[Replayed]:
    """Replay the history of each open workflow of this task queue; nothing is changed, no activity runs.

    Raises:
        RPCError: when Temporal does not answer.
    """
    replayer = Replayer(workflows=workflows, workflow_runner=sandbox(), data_converter=pydantic_data_converter)
    query = f"TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running'"
    async for execution in client.list_workflows(query):
        replayed = await _replay(client, replayer, execution)
        if replayed:
            yield replayed


async def _replay(client: Client, replayer: Replayer, execution: WorkflowExecution) -> Replayed | None:
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None  # it has ended and been removed since it was listed
        raise
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    problem = clip(" ".join(str(result.replay_failure).split()), 300) if result.replay_failure else ""
    return Replayed(execution.id, execution.run_id, len(history.events), problem)
