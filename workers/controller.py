"""The controller worker: all workflows and activities of one cluster, and its watchers."""

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeIndexedValueType, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from relight.activities import attributes
from relight.activities import contracts as c
from relight.activities.anchor import AnchorLedger
from relight.activities.care import NodeCare
from relight.activities.care_acts import CareActs
from relight.activities.care_checks import CheckNode
from relight.activities.care_evidence import KeepEvidence
from relight.activities.care_judge import JudgeNode
from relight.activities.checkpoints import GuardCheckpoints
from relight.activities.close import Close
from relight.activities.confirm import Confirm
from relight.activities.deliver import Deliver
from relight.activities.dependants import Dependants
from relight.activities.follow import Follow
from relight.activities.follow_witnesses import Witnesses
from relight.activities.guard import Guard
from relight.activities.ingest import Ingest
from relight.activities.investigate import Investigate
from relight.activities.lease import Lease
from relight.activities.nodes import NodeActs
from relight.activities.notify import Notify, Outlet
from relight.activities.outputs import ExpireOutputs
from relight.activities.restart import Restart
from relight.activities.resubmit import Resubmit
from relight.activities.site import Site
from relight.activities.verify import Verify
from relight.activities.watch import Watch
from relight.activities.watch_agents import WatchAgents
from relight.activities.watch_metrics import WatchMetrics
from relight.clients.anchors_places import open_anchors
from relight.clients.checkpoint_files import CheckpointFiles
from relight.clients.checkpoint_moves import CheckpointMover
from relight.clients.checkpoint_readers import CheckpointReaders
from relight.clients.checkpoints import CheckpointMoves, Checkpoints
from relight.clients.files import LocalFiles
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger_sql import SqlLedger
from relight.clients.log_files import LogFiles
from relight.clients.log_readers import LogReaders
from relight.clients.logs_store import naming, open_logs
from relight.clients.metrics import open_metrics
from relight.clients.notices import Frame
from relight.clients.notices_open import SetChannel
from relight.clients.reach import TcpReach
from relight.clients.ways import open_access
from relight.config.settings import ConfigError, Reasons, Settings, Way
from relight.console.context import connected
from relight.workers import telemetry
from relight.workers.keys import approvers
from relight.workers.policy_reload import following_policy
from relight.workflows.care_for_node import CareForNode
from relight.workflows.guard_cluster import GuardCluster
from relight.workflows.notify_channel import NotifyChannel
from relight.workflows.recover_job import RecoverJob
from relight.workflows.watch_cluster import WatchCluster

logger = logging.getLogger(__name__)

WORKFLOWS: Sequence[type] = (RecoverJob, GuardCluster, WatchCluster, CareForNode, NotifyChannel)

PASSED_THROUGH = (
    "relight",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
    "cryptography",
)
"""Modules that workflows share with the process: without it each run imports the models anew (45 ms instead of 8).

`cryptography` imports its exceptions when it first raises one; made anew in a sandbox its Rust part aborts the process
(seen).
"""


def sandbox() -> SandboxedWorkflowRunner:
    """The strict sandbox in which workflows run."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))


def activities(
    site: Site,
    client: Client,
    task_queue: str,
    *,
    watch: Watch,
    ingest: Ingest,
    metrics: WatchMetrics,
    anchors: AnchorLedger,
) -> list[Callable[..., Any]]:
    """All activities of a cluster, bound to its clients."""
    follow, deliver = Follow(site, Witnesses(site, ingest)), Deliver(site, client, task_queue)
    investigate, restart, verify = Investigate(site, ingest.sight), Restart(site), Verify(site)
    nodes, close, checkpoints = NodeActs(site), Close(site), GuardCheckpoints(site)
    guard = Guard(site)
    anew = Resubmit(site)
    return [
        watch.watch_jobs,
        watch.watch_nodes,
        follow.follow_logs,
        deliver.deliver,
        WatchAgents(site, ingest).watch_agents,
        metrics.watch_metrics,
        anchors.anchor_ledger,
        Confirm(site, ingest.sight).confirm,
        investigate.diagnose,
        investigate.plan,
        checkpoints.look,
        checkpoints.fall_back,
        restart.keep_outputs,
        ExpireOutputs(site).expire_outputs,
        restart.requeue,
        restart.exclude,
        restart.await_ended,
        restart.release,
        restart.start,
        restart.cancel,
        anew.submit,
        anew.release,
        Dependants(site).repoint,
        verify.await_running,
        verify.await_progress,
        nodes.read_policy,
        nodes.read_nodes,
        nodes.record_leave,
        guard.look,
        guard.record_standing,
        guard.may_act,
        nodes.drain,
        close.record_decision,
        close.verify_decision,
        Lease(site, client).await_closed,
        close.close,
        *_care(site, ingest),
    ]


def _care(site: Site, ingest: Ingest) -> list[Callable[..., Any]]:
    """Those of nodes in quarantine."""
    care, acts = NodeCare(site), CareActs(site)
    return [
        care.begin,
        care.limits,
        care.record,
        care.record_heard,
        care.await_drained,
        care.await_change,
        KeepEvidence(site).keep,
        CheckNode(site, ingest).check,
        JudgeNode(site).judge,
        acts.return_node,
        acts.down_node,
        acts.ask_platform,
    ]


def notices(site: Site, settings: Settings) -> list[Callable[..., Any]]:
    """Those that tell people, by the channels of the settings."""
    frame = Frame(settings.cluster, settings.console.url.rstrip("/"))
    outlets = {
        name: Outlet(SetChannel(channel, frame, clock=site.clock), channel.wishes)
        for name, channel in settings.notify.channels.items()
    }
    told = Notify(site, outlets)
    return [told.gather, told.send]


@contextlib.asynccontextmanager
async def open_site(settings: Settings, ledger: SqlLedger) -> AsyncIterator[Site]:
    """The cluster's clients, as the settings say."""
    async with contextlib.AsyncExitStack() as stack:
        access = await stack.enter_async_context(open_access(settings))
        metrics = await stack.enter_async_context(open_metrics(settings.metrics.prometheus))
        private = (settings.folder,)
        files = LogFiles(private=private, files=access.files)
        checkpoints: Checkpoints = CheckpointFiles(files=access.files)
        moves: CheckpointMoves | None = None  # over SSH files are only read
        if isinstance(access.files, LocalFiles):
            files = await stack.enter_async_context(LogReaders(private=private))
            checkpoints = await stack.enter_async_context(CheckpointReaders(private=private))
            moves = CheckpointMover(wrapper=settings.slurm.checkpoint_wrapper, private=private)
        logger.info("Slurm is reached by %s: %s", access.way, access.why)
        yield Site(
            cluster=settings.cluster,
            slurm=access.slurm,
            nodes=access.nodes,
            submitter=access.submitter,
            ledger=ledger,
            logs=await stack.enter_async_context(open_logs(settings.logs.store, files)),
            named=naming(settings.logs.store, settings.cluster),
            kernel_logs=KernelLogFiles(settings.logs.kernel, access.files),
            policy=settings.policy,
            clock=lambda: datetime.now(UTC),
            sleep=asyncio.sleep,
            kept=settings.folder / "outputs",
            keep_outputs_for=settings.outputs.keep_for,
            keep_outputs_at_most=settings.outputs.keep_at_most,
            catalogue=settings.logs.catalogue,
            formats=settings.logs.progress,
            approvers=await asyncio.to_thread(approvers, settings),
            kill_switch=settings.kill_file,
            platform_repairs=settings.care.reasons is Reasons.HYPERPOD,
            metrics=metrics,
            checkpoints=checkpoints,
            moves=moves,
            # Another machine's network says nothing of the nodes'.
            reach=None if access.way is Way.SSH else TcpReach(),
        )


_TYPES = {
    SearchAttributeIndexedValueType.KEYWORD: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SearchAttributeIndexedValueType.KEYWORD_LIST: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    SearchAttributeIndexedValueType.INT: IndexedValueType.INDEXED_VALUE_TYPE_INT,
}


async def register_search_attributes(client: Client) -> None:
    """Register what is missing: upserting an unregistered attribute blocks a workflow instead of failing it (seen)."""
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = {
        key.name: _TYPES[key.indexed_value_type] for key in attributes.ALL if key.name not in listed.custom_attributes
    }
    if not missing:
        return
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        # Another worker may have been faster.
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


async def start_long_lived(client: Client, settings: Settings) -> None:
    """Make sure that the cluster's watchers, its guard and its channels run; harmless when they do."""
    cluster = settings.cluster
    for name, arg, workflow_id in (
        (c.GUARD_WORKFLOW, c.GuardState(cluster=settings.cluster), c.guard_id(settings.cluster)),
        (c.WATCH_WORKFLOW, c.WatchInput(cluster=settings.cluster), c.watch_id(settings.cluster)),
        *(
            (c.NOTIFY_WORKFLOW, c.NotifyInput(cluster=cluster, channel=each), c.notify_id(cluster, each))
            for each in settings.notify.channels
        ),
    ):
        await client.start_workflow(
            name,
            arg,
            id=workflow_id,
            task_queue=settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
    # Where it ran already: from now on by this version's rules.
    await client.get_workflow_handle(c.guard_id(settings.cluster)).signal("renew")


async def run(
    settings: Settings,
    *,
    ready: Callable[[], Awaitable[None]] | None = None,
    site: Callable[[Settings, SqlLedger], AbstractAsyncContextManager[Site]] = open_site,
    file: Path | None = None,
) -> None:
    """Work until SIGTERM or SIGINT, with the clients that `site` makes; the policy follows the settings' file."""
    # By default a collection begins with each 700 new objects: a fifth of the time of reading 20,000 lines a second.
    gc.set_threshold(20_000, 20, 20)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    settings.folder.mkdir(parents=True, exist_ok=True)
    ledger = await asyncio.to_thread(SqlLedger.open, settings.ledger_url, settings.ledger_key)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, ledger.close)
        runtime = telemetry.runtime(settings.telemetry)
        client = await connected(settings, runtime)
        await register_search_attributes(client)
        here = await stack.enter_async_context(site(settings, ledger))
        await stack.enter_async_context(telemetry.telling(here, runtime))
        await stack.enter_async_context(following_policy(here, file, settings))
        watch = Watch(here)
        ingest = Ingest(here, watch.nudge_soon)
        prometheus = settings.metrics.prometheus
        metrics = WatchMetrics(here, ingest, period=prometheus.period, trusted=prometheus.trusted)
        anchors = AnchorLedger(here, open_anchors(settings.audit.anchor), settings.audit.every)
        if settings.ingest.listen:
            try:
                # Only a site with agents or hooks needs aiohttp.
                from relight.workers.ingest import serving
            except ModuleNotFoundError as error:
                raise ConfigError(f"ingest.listen needs {error.name}: pip install 'relight[http]'") from error
            await stack.enter_async_context(serving(settings.ingest, settings.ingest_key, ingest))
        worker = Worker(
            client,
            task_queue=settings.task_queue,
            workflows=WORKFLOWS,
            activities=[
                *activities(
                    here, client, settings.task_queue, watch=watch, ingest=ingest, metrics=metrics, anchors=anchors
                ),
                *notices(here, settings),
            ],
            workflow_runner=sandbox(),
            max_concurrent_activities=400,  # waiting for queues and progress holds a slot each
        )
        await stack.enter_async_context(worker)
        await start_long_lived(client, settings)
        if ready:
            await ready()
        await stop.wait()
