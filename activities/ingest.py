"""What a report of a node's agent, or a hook of slurmctld, does: beats are remembered, faults written to the ledger."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from sys import intern
from typing import NamedTuple

from relight.activities.faults import Recogniser, concerns, fault_name, gpu_fault
from relight.activities.site import Site
from relight.attribution.catalogue import load
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import SlurmError
from relight.domain.attempts import Attempt
from relight.domain.detectors import within
from relight.domain.evidence import Detection
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.reports import MAX_PROBES, GpuNow, NodeFault, ProbeAnswer, ProbeRequest, Receipt, Report

NODES_LAST = timedelta(seconds=60)
"""A node that is not in the list of nodes is looked for anew when the list is older."""
ATTEMPTS_LAST = timedelta(seconds=1)
"""For so long running attempts are remembered: a fabric fault is told by a thousand nodes at once."""
SAID_EVERY = timedelta(seconds=1)
"""For reports come by the thousand."""


class NodeSight(NamedTuple):
    """What is known of a node by its agent."""

    node: str
    last_beat: datetime
    """By our clock."""
    boot: str
    """The kernel's boot id."""
    blind: tuple[str, ...] = ()
    """What the agent cannot see, and why."""
    every: timedelta = timedelta(seconds=5)
    """From one beat to the next, as the agent says."""
    before: datetime | None = None
    """Where the node has been booted since it was first heard of: the last beat before that."""
    gpus: tuple[GpuNow, ...] = ()
    """What its GPUs did at the last report."""

    def silent(self, now: datetime) -> timedelta:
        """How long nothing has been heard of it."""
        return now - self.last_beat


class Told(NamedTuple):
    """Faults of one node, whoever tells them."""

    node: str
    faults: tuple[NodeFault, ...]
    boot: str = ""
    """The kernel's boot id, where the source knows it."""


class _Asked(NamedTuple):
    request: ProbeRequest
    answer: asyncio.Future[ProbeAnswer]


class Ingest:
    """Takes what agents and hooks tell. Beats and probes live in this process's memory only.

    Args:
        site: the cluster.
        nudge: makes the watcher of jobs look at once.
    """

    def __init__(self, site: Site, nudge: Callable[[], None]) -> None:
        self._site = site
        self._nudge = nudge
        self._recogniser = Recogniser(load(site.catalogue))
        self._sights: dict[str, NodeSight] = {}
        self._asked: defaultdict[str, dict[str, _Asked]] = defaultdict(dict)
        self._nodes: frozenset[str] | None = None
        self._nodes_at = site.clock()
        self._nodes_turn = asyncio.Lock()
        self._attempts: dict[str, list[Attempt]] = {}
        """Those that run, by node."""
        self._attempts_at: datetime | None = None
        self._said_at = site.clock() - SAID_EVERY

    async def knows(self, node: str) -> bool:
        """Whether Slurm has a node of that name, as last read.

        Raises:
            SlurmError: the nodes were never read, and cannot be now.
        """
        if self._nodes is not None and node in self._nodes:
            return True
        async with self._nodes_turn:
            age = abs(self._site.clock() - self._nodes_at)
            if self._nodes is None or (node not in self._nodes and age >= NODES_LAST):
                await self._read_nodes()
            return self._nodes is not None and node in self._nodes

    async def nodes(self) -> frozenset[str]:
        """Slurm's nodes, as read within the last minute; where they cannot be read now, as before.

        Raises:
            SlurmError: they were never read, and cannot be now.
        """
        async with self._nodes_turn:
            if self._nodes is None or abs(self._site.clock() - self._nodes_at) >= NODES_LAST:
                await self._read_nodes()
            return self._nodes or frozenset()

    async def _read_nodes(self) -> None:
        try:
            self._nodes = frozenset(record.name for record in await self._site.slurm.nodes())
        except SlurmError:
            if self._nodes is None:
                raise
        self._nodes_at = self._site.clock()
        self._sights = {name: sight for name, sight in self._sights.items() if name in self._nodes}

    def job_ended(self, job_id: int) -> None:
        """A hook says that a job has ended. Whether and how is for the watcher to see: this makes it look."""
        del job_id
        self._nudge()

    async def report(self, report: Report) -> Receipt:
        """Take a report of a node that is known; what the receipt counts is in the ledger."""
        self.hear(report)
        kept = await self.kept((Told(report.node, report.faults, report.boot),))
        return self.receipt(report.node, len(report.faults) if kept else 0)

    def hear(self, report: Report) -> None:
        """Take in a report but for its faults, which are for `kept`."""
        self._sights[report.node] = sight = self._seen(report)
        if abs(sight.last_beat - self._said_at) >= SAID_EVERY:
            self._said_at = sight.last_beat
            self._site.detectors.saw("ingest", within(sight.every))
        asked = self._asked.get(report.node, {})
        for answer in report.answers:
            if (waiting := asked.get(answer.id)) and not waiting.answer.done():
                waiting.answer.set_result(answer)

    def receipt(self, node: str, kept: int) -> Receipt:
        """What a report of the node is answered, of which so many faults are kept."""
        # Asked again until it is answered: an answer of ours may be lost, and the agent knows what it was asked.
        asked = self._asked.get(node, {})
        open_ones = [each.request for each in asked.values() if not each.answer.done()]
        return Receipt(faults=kept, probes=tuple(open_ones[:MAX_PROBES]))

    def _seen(self, report: Report) -> NodeSight:
        old = self._sights.get(report.node)
        before = old.before if old else None
        if old and old.boot and report.boot and old.boot != report.boot:
            before = old.last_beat
        blind, every = report.beat.blind if report.beat else (), timedelta(seconds=report.every)
        states = report.beat.gpus if report.beat else ()
        # Interned: every node of a kind has its GPUs at the same addresses.
        gpus = tuple(GpuNow(intern(g.gpu), g.power_w, g.utilisation, g.sm_clock_mhz) for g in states)
        return NodeSight(report.node, self._site.clock(), report.boot, blind, every, before, gpus)

    async def kept(self, told: Sequence[Told]) -> bool:
        """Write faults as `keep` does; False where they cannot be written now."""
        try:
            await self.keep(told)
        except LedgerUnavailableError:
            return False
        return True

    async def keep(self, told: Sequence[Told]) -> None:
        """Write faults and the detections that follow from them, in one transaction. One that is known adds nothing.

        Raises:
            LedgerUnavailableError: none of them is kept.
        """
        entries: dict[str, Entry] = {}
        found: list[Detection] = []
        for node, fault, boot in ((each.node, fault, each.boot) for each in told for fault in each.faults):
            entry_id = f"fault/{self._site.cluster}/{fault_name(node, fault)}"
            if entry_id in entries or await self._site.ledger.has(entry_id):
                continue
            hit = await self._hit(node, fault)
            body = {"fault": fault.model_dump(mode="json"), "boot": boot, "attempts": [str(a.key) for a in hit]}
            entry = self._site.entry(entry_id, RowKind.FAULT, body, hit[0] if len(hit) == 1 else None)
            entries[entry_id] = entry.model_copy(update={"node": node})
            for attempt in hit if self._recogniser.interrupts(fault) else ():
                detection = gpu_fault(attempt, node, fault, self._recogniser.signature(fault), self._site.clock())
                detected = self._site.detected(detection, attempt)
                entries[detected.id] = detected
                found.append(detection)
        if entries:
            await self._site.ledger.commit(Change(entries=tuple(entries.values()), detections=tuple(found)))

    async def _hit(self, node: str, fault: NodeFault) -> list[Attempt]:
        """The running attempts that the fault concerns."""
        now = self._site.clock()
        if self._attempts_at is None or abs(now - self._attempts_at) >= ATTEMPTS_LAST:
            states = await self._site.ledger.running_attempts(self._site.cluster)
            by_node: defaultdict[str, list[Attempt]] = defaultdict(list)
            for state in states:
                for name in state.attempt.record.nodes:
                    by_node[name].append(state.attempt)
            self._attempts, self._attempts_at = dict(by_node), now
        return [attempt for attempt in self._attempts.get(node, ()) if concerns(fault, node, attempt)]

    def sights(self) -> tuple[NodeSight, ...]:
        """The nodes whose agents have been heard of by this process."""
        return tuple(self._sights.values())

    def sight(self, node: str) -> NodeSight | None:
        """What is known of a node by its agent; None when it has never been heard of: then its silence says nothing."""
        return self._sights.get(node)

    async def ask(self, node: str, request: ProbeRequest, within: timedelta) -> ProbeAnswer:
        """Ask a node's agent, which fetches the question with its next beat. No answer in time is an answer's problem.

        The same question asked by two is asked once.
        """
        asked = self._asked[node]
        if request.id not in asked and len(asked) >= MAX_PROBES:
            return self._no_answer(request, f"{MAX_PROBES} questions to {node} are open already")
        first = request.id not in asked
        if first:
            asked[request.id] = _Asked(request, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(within.total_seconds()):
                return await asyncio.shield(asked[request.id].answer)
        except TimeoutError:
            return self._no_answer(request, f"{node} gave no answer within {within.total_seconds():g} s")
        finally:
            if first:
                del asked[request.id]
            if not asked:
                self._asked.pop(node, None)

    def _no_answer(self, request: ProbeRequest, problem: str) -> ProbeAnswer:
        return ProbeAnswer(id=request.id, at=self._site.clock(), problem=problem[:300])
