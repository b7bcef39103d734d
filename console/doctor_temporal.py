"""Checks of Temporal: that it answers, knows our search attributes, and that our workers and workflows run."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from relight.config.settings import Settings
from relight.console.context import connected, now
from relight.console.doctor_checks import Check, Health, fail, ok, warn
from relight.console.errors import Stop
from relight.console.text import count, span

if TYPE_CHECKING:
    from temporalio.client import Client

ANSWER_WITHIN = timedelta(seconds=5)
POLLS_WITHIN = timedelta(seconds=75)
"""A worker polls once a minute at least; Temporal remembers one that is gone for five minutes."""
_START = "Start one: relight worker controller"


async def check_temporal(settings: Settings) -> Sequence[Check]:
    """All that needs Temporal; where it cannot be reached, only that."""
    try:
        client = await connected(settings)
    except Stop as error:
        found, _, advice = error.message.partition("\n")
        return (fail("Temporal", found, advice),)
    server = await _server(client, settings)
    if server.status is not Health.OK:
        return (server,)
    return (server, await _attributes(client), await _worker(client, settings), *await _long_lived(client, settings))


async def _server(client: "Client", settings: Settings) -> Check:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
    from temporalio.service import RPCError

    address, namespace = settings.temporal.address, settings.temporal.namespace
    try:
        info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=ANSWER_WITHIN)
        request = DescribeNamespaceRequest(namespace=namespace)
        await client.workflow_service.describe_namespace(request, timeout=ANSWER_WITHIN)
    except RPCError as error:
        advice = f"Create it (`temporal operator namespace create {namespace}`) or set temporal.namespace."
        return fail("Temporal", f"{address}, namespace {namespace}: {error.message}", advice)
    return ok("Temporal", f"{address}, namespace {namespace}, server {info.server_version or 'of unknown version'}")


async def _attributes(client: "Client") -> Check:
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
    from temporalio.service import RPCError

    from relight.activities import attributes

    name = "attributes"
    try:
        request = ListSearchAttributesRequest(namespace=client.namespace)
        listed = await client.operator_service.list_search_attributes(request, timeout=ANSWER_WITHIN)
    except RPCError as error:
        return warn(name, f"not known: {error.message}", "Incidents block where search attributes are missing.")
    missing = [key.name for key in attributes.ALL if key.name not in listed.custom_attributes]
    if missing:
        advice = "An incident blocks at the first of them. The controller worker registers them when it starts."
        return fail(name, f"{len(missing)} of {len(attributes.ALL)} missing: {', '.join(missing[:4])}", advice)
    return ok(name, f"all {len(attributes.ALL)} search attributes are registered")


async def _worker(client: "Client", settings: Settings) -> Check:
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
    from temporalio.service import RPCError

    queue = settings.task_queue
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        described = await client.workflow_service.describe_task_queue(request, timeout=ANSWER_WITHIN)
    except RPCError as error:
        return warn("worker", f"not known: {error.message}", _START)
    from datetime import UTC

    at = now()
    seen = {poller.identity: at - poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in described.pollers}
    alive = {identity: since for identity, since in seen.items() if since < POLLS_WITHIN}
    if not alive:
        last = f"; the last polled {span(min(seen.values()))} ago" if seen else ""
        return fail("worker", f"nobody polls {queue}{last}", f"Nothing is watched or recovered. {_START}")
    who = ", ".join(sorted(alive)[:3])
    return ok("worker", f"{count(len(alive), 'worker')} on {queue} ({who})")


async def _long_lived(client: "Client", settings: Settings) -> Sequence[Check]:
    from relight.activities import contracts as c

    watch = await _runs(client, c.WATCH_WORKFLOW, c.watch_id(settings.cluster), "no job is watched")
    guard = await _runs(client, c.GUARD_WORKFLOW, c.guard_id(settings.cluster), "no node is drained")
    return watch, guard


async def _runs(client: "Client", name: str, workflow_id: str, otherwise: str) -> Check:
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError, RPCStatusCode

    try:
        described = await client.get_workflow_handle(workflow_id).describe(rpc_timeout=ANSWER_WITHIN)
    except RPCError as error:
        found = "was never started" if error.status is RPCStatusCode.NOT_FOUND else f"not known: {error.message}"
        return fail(name, f"{workflow_id} {found}: {otherwise}", _START)
    if described.status is WorkflowExecutionStatus.RUNNING:
        return ok(name, f"{workflow_id} runs (this run for {span(now() - described.start_time)})")
    state = described.status.name if described.status is not None else "in an unknown state"
    return fail(name, f"{workflow_id} is {state}: {otherwise}", f"Whoever ended it knows why. {_START}")
