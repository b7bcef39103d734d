"""Activities of the guard: one fresh look per batch, and how it stands written down."""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import activity

from relight.activities import contracts as c
from relight.activities.guard_standing import standing, written
from relight.activities.site import Site
from relight.clients.kill_switch import KillSwitchUnknownError, killed
from relight.clients.slurm import SlurmError
from relight.domain.attempts import Attempt
from relight.domain.breaker import AN_HOUR, Report, Sign
from relight.domain.guard import WINDOW, Grant, NodeAct, PartitionCount, Room, counts, out_of_service
from relight.domain.guard_standing import Standing, standing_cursor
from relight.domain.ledger import Change, Entry, Row, RowKind
from relight.domain.policy import Policy
from relight.domain.slurm import NodeRecord

logger = logging.getLogger(__name__)

LOOKS_BACK = timedelta(days=90)
"""How old a drain of ours may be whose undoing by a person still counts."""
MOST_PARTITIONS = 64
"""Partitions that `relight status` is told of."""


class Guard:
    """Reads for the guard, and writes what it says of itself."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.LOOK.name)
    async def look(self, arg: c.LookInput) -> c.Look:
        """All that the guard decides by. What Slurm does not tell is left out: the guard refuses on unknown."""
        now = self._site.clock()
        found = c.Look(
            policy=Policy.model_validate(self._site.policy.model_dump()),
            standing=await written(self._site),
            grants=await self._grants(now),
            reversals=await self._reversals(now),
        )
        if not arg.asked:
            return found
        try:
            stop = await killed(self._site.kill_switch)
            nodes = await self._site.slurm.nodes()
        except KillSwitchUnknownError as error:
            # Not tried again here: the guard has one loop, which must go on counting what could open the breaker.
            return found.model_copy(update={"unknown": str(error)[:300]})
        except SlurmError as error:
            return found.model_copy(update={"unknown": str(error)[:300] or "Slurm's nodes could not be read"})
        named = {*(one.node for one in arg.asked), *arg.granted, *(grant.node for grant in found.grants)}
        mine = tuple(node for node in nodes if node.name in named)
        return found.model_copy(
            update={
                "standing": found.standing.model_copy(update={"killed": stop}),
                "nodes": mine,
                "partitions": _counted(nodes, mine),
                "domains": await self._domains(arg.asked),
                "room": await self._room(arg, nodes),
                "pending": arg.pending,
                "undrained": await self._undrained(arg.asked, mine, found.policy, now),
            }
        )

    async def _domains(self, asked: Iterable[c.Asked]) -> dict[str, tuple[str, ...]] | None:
        try:
            topology = await self._site.slurm.topology()
        except SlurmError as error:
            activity.logger.warning("the topology could not be read: %s", error)
            return None
        return {one.node: topology.of(one.node) for one in asked}

    async def _room(self, arg: c.LookInput, nodes: Sequence[NodeRecord]) -> dict[str, Room]:
        """For each node that a job waits beside; missing where the job is not known."""
        found = {}
        for one in arg.asked:
            state = await self._site.known(one.attempt) if one.attempt else None
            if state is not None:
                found[one.node] = _room_for(state.attempt, one.node, nodes, arg.pending)
        return found

    async def _grants(self, now: datetime) -> tuple[Grant, ...]:
        rows = await self._site.ledger.rows(kind=RowKind.LEAVE, since=now - WINDOW)
        mine = (row for row in rows if row.cluster == self._site.cluster)
        return tuple(grant for row in mine if (grant := _granted(row)) is not None)

    async def _reversals(self, now: datetime) -> tuple[Report, ...]:
        rows = await self._site.ledger.rows(kind=RowKind.REVERSED, since=now - AN_HOUR)
        return tuple(
            Report(sign=Sign.REVERSED, incident=row.incident, began=row.at, at=row.at, nodes=(row.node,))
            for row in rows
            if row.cluster == self._site.cluster
        )

    async def _undrained(
        self, asked: Iterable[c.Asked], nodes: Sequence[NodeRecord], policy: Policy, now: datetime
    ) -> dict[str, datetime]:
        """When people put nodes back; one that nobody saw doing so counts from when it is first found in service."""
        in_service = {node.name for node in nodes if not node.draining}
        found = {}
        for name in {one.node for one in asked} & in_service:
            reversed_ = await self._newest(RowKind.REVERSED, name, now - policy.cool_down)
            at = reversed_.at if reversed_ else await self._found_back(name, now)
            if at is not None:
                found[name] = at
        return found

    async def _found_back(self, node: str, now: datetime) -> datetime | None:
        """When a node that Relight drained was first found in service without Relight having put it back."""
        effects = await self._site.ledger.rows(node=node, kind=RowKind.EFFECT, since=now - LOOKS_BACK)
        ours = [row for row in effects if _done(row) and str(row.body.get("step", "")).startswith(_ABOUT_NODES)]
        if not ours or str(ours[-1].body["step"]) != f"drain-{node}":
            return None
        told = await self._site.ledger.rows(node=node, kind=RowKind.REVERSED, after=ours[-1].seq)
        if told:
            return told[-1].at
        refused = await self._site.ledger.rows(node=node, kind=RowKind.LEAVE, after=ours[-1].seq)
        seen = [row.body["undrained_at"] for row in refused if row.body.get("undrained_at")]
        return datetime.fromisoformat(seen[0]) if seen else now

    async def _newest(self, kind: RowKind, node: str, since: datetime) -> Row | None:
        rows = await self._site.ledger.rows(node=node, kind=kind, since=since)
        return rows[-1] if rows else None

    @activity.defn(name=c.RECORD_STANDING.name)
    async def record_standing(self, arg: c.StandingInput) -> c.Nothing:
        """Write down how the guard stands, and in the same transaction what has changed."""
        if arg.what == "tripped":
            logger.error("cluster %s: the breaker is open: %s", arg.cluster, arg.text)
        body = {"what": arg.what, "text": arg.text, "by": arg.by}
        entry = Entry(id=arg.entry, kind=RowKind.GUARD, at=self._site.clock(), cluster=arg.cluster, body=body)
        cursors = await newer(self._site, arg.standing)
        await self._site.ledger.commit(Change(entries=(entry,) if arg.entry else (), cursors=cursors))
        return c.Nothing()

    @activity.defn(name=c.MAY_ACT.name)
    async def may_act(self, arg: c.MayActInput) -> c.MayAct:
        """The guard's standing right before an incident's first action: an approval may have taken half an hour."""
        known = await standing(self._site)
        return c.MayAct(stop=known.stops(self._site.clock(), arg.began, arg.partition), unknown=known.unknown)


_ABOUT_NODES = ("drain-", "undrain")


async def newer(site: Site, now_: Standing) -> dict[str, dict[str, Any]]:
    """The standing as a cursor to be written; none where the ledger has a newer one: a late try must not undo a pause.

    The kill switch is not part of it.
    """
    known, at = (await written(site)).written_at, now_.written_at
    if known is not None and at is not None and known > at:
        return {}
    return {standing_cursor(site.cluster): now_.model_dump(mode="json", exclude={"killed", "unknown"})}


def _counted(nodes: Sequence[NodeRecord], mine: Sequence[NodeRecord]) -> tuple[PartitionCount, ...]:
    """All partitions of the nodes in question, then others, as many as travel."""
    asked = {name for node in mine for name in node.partitions}
    return tuple(sorted(counts(nodes), key=lambda each: each.name not in asked))[: max(MOST_PARTITIONS, len(asked))]


def _room_for(attempt: Attempt, node: str, nodes: Sequence[NodeRecord], pending: Sequence[str]) -> Room:
    job = attempt.record
    wanted = set(job.partition.split(","))
    gone = {node, *pending, *job.excluded_nodes}
    spare = [n for n in nodes if wanted & set(n.partitions) and not out_of_service(n) and n.name not in gone]
    return Room(needs=job.node_count, spare=len(spare))


def _granted(row: Row) -> Grant | None:
    """What the row counts for; None for a refusal."""
    leave = row.body.get("leave") or {}
    if not leave.get("granted"):
        return None
    try:
        return Grant.model_validate(row.body["grant"])
    except (KeyError, ValidationError):  # written by version 0.1
        return Grant(node=row.node, incident=row.incident, at=row.at, action=NodeAct.DRAIN)


def _done(row: Row) -> bool:
    done = row.body.get("done") or {}
    return not done.get("outcome")
