"""Notices nodes of which nothing is heard any more, long before Slurm declares them down.

Silence alone is no finding. A second witness is looked for: Slurm's own word on the node, or that its slurmd takes no
connection. And that must not be said of everybody: then it is our own network that is broken.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.ingest import Ingest, NodeSight
from relight.activities.site import Site, poll
from relight.clients.slurm import SlurmError
from relight.domain.attempts import Attempt
from relight.domain.endings import node_evidence
from relight.domain.evidence import Detection, Evidence, Source
from relight.domain.ledger import Change, RowKind
from relight.domain.silence import Lost, common_cause, node_booted, node_silent, silent_after
from relight.domain.slurm import NodeRecord, SlurmFacts
from relight.domain.watching import node_lost_id

NAME = "agents"
PERIOD = timedelta(seconds=1)
LOOK_WITHIN = timedelta(seconds=20)
"""A look that takes longer is given up; Temporal waits 30 s for a beat."""
OVERDUE = timedelta(seconds=30)
READ_SHARE = 10
"""Slurm's nodes are read at most a tenth of the time."""
MOST_ASKED = 32
"""Silent nodes looked at in one look; the others in the next."""
ASK_AGAIN = timedelta(seconds=5)
"""Until the slurmd of a node that stays silent is asked again. slurmd logs an error each time (seen): later, seldom."""
COMPARED = 3
"""Nodes whose agents beat: one of their slurmd must take a connection, if a silent node's that does not is to count."""
MOST_NODES = 8
"""Nodes of one attempt that are told of: more add nothing."""
BLIND_AFTER = timedelta(seconds=30)
"""An agent whose node lives is called blind after so long: it gives up an exchange after 15 s and tries again."""
_EVER = datetime.min.replace(tzinfo=UTC)


class _Found(NamedTuple):
    """What a look at one silent node showed."""

    sight: NodeSight
    lives: bool
    witness: Evidence | None


class WatchAgents:
    """Notices nodes whose agents have fallen silent, and nodes that were booted under a job."""

    def __init__(self, site: Site, ingest: Ingest) -> None:
        """Bind to a cluster and to what its agents tell."""
        self._site = site
        self._ingest = ingest
        self._nodes: dict[str, NodeRecord] = {}
        self._read_again = 0.0
        self._asked: dict[str, datetime] = {}
        """When a silent node was last looked at."""
        self._excused: set[str] = set()
        """Nodes that fell silent with most others: until they are heard of again, their silence says nothing."""
        self._booted: dict[str, datetime] = {}
        """Nodes whose boot is dealt with, each with the last beat before it."""
        self._told: set[str] = set()
        """Ids of the findings about attempts that still run."""
        self._blind: dict[str, datetime] = {}
        """Nodes whose agent was called blind, each with its last beat."""
        self._cannot_ask = ""
        """Why the last look found no witness to count."""

    @activity.defn(name=c.WATCH_AGENTS.name)
    async def watch_agents(self, arg: c.WatchInput) -> c.Nothing:
        """Look again and again."""
        until = self._site.clock() + arg.run_for
        generation = 0
        while self._site.clock() < until:
            generation += 1
            try:
                async with asyncio.timeout(LOOK_WITHIN.total_seconds()):
                    await self._look()
            except SlurmError as error:
                self._site.detectors.blind(NAME, f"Slurm's nodes cannot be read: {error}", OVERDUE)
            except TimeoutError:
                self._site.detectors.blind(NAME, f"a look took more than {LOOK_WITHIN.total_seconds():.0f} s", OVERDUE)
            await poll(self._site, PERIOD, generation)
        return c.Nothing()

    async def _look(self) -> None:
        now = self._site.clock()
        sights = self._ingest.sights()
        silent = {s.node: s for s in sights if s.silent(now) >= silent_after(s.every)}
        self._excused &= silent.keys()
        self._asked = {node: at for node, at in self._asked.items() if node in silent}
        self._blind = {node: at for node, at in self._blind.items() if node in silent}
        if booted := [s for s in sights if s.before is not None and self._booted.get(s.node) != s.before]:
            await self._tell_booted(booted, await self._attempts(), now)
        why = self._not_their_nodes(silent, len(sights) - len(silent), now)
        if not silent:
            self._cannot_ask = ""
        elif not why and (due := self._due(silent, now)):
            beating = [s for s in sights if s.node not in silent]
            self._cannot_ask = await self._look_at(due, beating, now)
        if why := why or self._cannot_ask:
            self._site.detectors.blind(NAME, why, OVERDUE)
        elif sights:
            self._site.detectors.saw(NAME, OVERDUE)

    async def _attempts(self) -> tuple[Attempt, ...]:
        states = await self._site.ledger.running_attempts(self._site.cluster)
        attempts = tuple(state.attempt for state in states)
        if self._told:
            self._told &= {node_lost_id(a, node) for a in attempts for node in a.record.nodes}
        return attempts

    def _not_their_nodes(self, silent: dict[str, NodeSight], beating: int, now: datetime) -> str:
        """Why silence says nothing of the nodes now; empty where it does."""
        # Of agents that fall silent together the first to be noticed is a beat's period ahead of the last.
        fell = {node for node, sight in silent.items() if sight.silent(now) < 2 * silent_after(sight.every)}
        if not common_cause(len(fell | self._excused), beating):
            return ""
        self._excused |= fell
        return f"{len(self._excused)} of {len(self._excused) + beating} agents fell silent at once"

    def _due(self, silent: dict[str, NodeSight], now: datetime) -> list[NodeSight]:
        """Silent nodes that are to be looked at now, those first that were never looked at."""
        due = [s for node, s in silent.items() if node not in self._excused]
        due = [s for s in due if now - self._asked.get(s.node, _EVER) >= self._pause(s.node)]
        return sorted(due, key=lambda s: (self._asked.get(s.node, _EVER), s.last_beat))

    def _pause(self, node: str) -> timedelta:
        return BLIND_AFTER if node in self._blind else ASK_AGAIN

    async def _look_at(self, due: Sequence[NodeSight], beating: Sequence[NodeSight], now: datetime) -> str:
        """Look for the second witness; returns why none counts, where none does."""
        attempts = await self._attempts()
        used = {node for a in attempts for node in a.record.nodes if node_lost_id(a, node) not in self._told}
        suspects = [s for s in due if s.node in used][:MOST_ASKED]
        records = await self._records() if suspects else {}
        known = [s for s in suspects if s.node in records]
        answers = await self._answers(records[s.node] for s in known)
        self._asked |= {s.node: now for s in due if s in suspects or s.node not in used}
        if False in answers:
            others = sorted(beating, key=lambda s: s.last_beat, reverse=True)[:COMPARED]
            if True not in await self._answers(records[s.node] for s in others if s.node in records):
                gone = known[answers.index(False)].node
                return f"no slurmd can be reached from here: neither {gone}'s nor a healthy node's"
        asked = zip(known, answers, strict=True)
        # One that was heard of while others were asked is not silent.
        found = [self._found(s, records[s.node], a) for s, a in asked if self._ingest.sight(s.node) == s]
        await self._tell_silent([f for f in found if f.witness], attempts)
        await self._tell_blind([f.sight for f in found if f.lives and f.sight.silent(now) >= BLIND_AFTER])
        return ""

    async def _records(self) -> dict[str, NodeRecord]:
        loop = asyncio.get_running_loop()
        if (began := loop.time()) >= self._read_again:
            try:
                self._nodes = {node.name: node for node in await self._site.slurm.nodes()}
            finally:
                self._read_again = began + READ_SHARE * (loop.time() - began)
        return self._nodes

    async def _answers(self, nodes: Iterable[NodeRecord]) -> list[bool | None]:
        async def ask(node: NodeRecord) -> bool | None:
            if self._site.reach is None or not node.address or not node.port:
                return None
            return await self._site.reach.answers(node.address, node.port)

        return await asyncio.gather(*(ask(node) for node in nodes))

    def _found(self, sight: NodeSight, node: NodeRecord, answer: bool | None) -> _Found:
        at, witness = self._site.clock(), None
        if node.lost:
            witness = node_evidence(node, at)
        elif answer is False:
            text = f"slurmd of {node.name} at {node.address}:{node.port} does not answer"
            witness = Evidence(source=Source.SLURMD, text=text, node=node.name, at=at)
        return _Found(sight, answer is True and not node.lost, witness)

    async def _tell_silent(self, found: Sequence[_Found], attempts: Sequence[Attempt]) -> None:
        if not found:
            return
        within, now = await self._slurm_decides_within(), self._site.clock()
        for sight, _, witness in found:
            for attempt in attempts:
                if witness and sight.node in attempt.record.nodes:
                    lost = Lost(sight.node, sight.last_beat, within, now)
                    await self._tell(attempt, node_silent(attempt, lost, sight.every, witness))

    async def _tell_booted(self, booted: Sequence[NodeSight], attempts: Sequence[Attempt], now: datetime) -> None:
        within = await self._slurm_decides_within()
        for sight in booted:
            for attempt in attempts:
                if sight.before and sight.node in attempt.record.nodes:
                    await self._tell(attempt, node_booted(attempt, Lost(sight.node, sight.before, within, now)))
            self._booted[sight.node] = sight.before or now

    async def _slurm_decides_within(self) -> timedelta:
        try:
            return (await self._site.slurm.facts()).slurmd_timeout
        except SlurmError:
            return SlurmFacts(version="").slurmd_timeout

    async def _tell(self, attempt: Attempt, found: Detection | None) -> None:
        told = sum(name.startswith(f"{attempt.key}/") for name in self._told)
        if found is None or found.id in self._told or told >= MOST_NODES:
            return
        await self._site.ledger.commit(Change(entries=(self._site.detected(found, attempt),), detections=(found,)))
        self._told.add(found.id)

    async def _tell_blind(self, sights: Sequence[NodeSight]) -> None:
        """Say once of each silence that the agent is blind, and not its node lost."""
        new = [s for s in sights if self._blind.get(s.node) != s.last_beat]
        entries = []
        for sight in new:
            activity.logger.warning("the agent of %s is silent; its node lives", sight.node)
            name = f"blind/{self._site.cluster}/agent/{sight.node}/{sight.last_beat.isoformat()}"
            body = {
                "what": f"agent of {sight.node}",
                "why": f"silent since {sight.last_beat:%H:%M:%S} UTC; slurmd answers",
            }
            entry = self._site.entry(name, RowKind.BLIND, body)
            entries.append(entry.model_copy(update={"node": sight.node}))
        if entries:
            await self._site.ledger.commit(Change(entries=tuple(entries)))
            self._blind |= {sight.node: sight.last_beat for sight in new}
