"""How far each attempt is, as the ledger has it: what was found at once, the rest in turn."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from relight.activities.follow_state import Following
from relight.activities.follow_witnesses import Witnesses
from relight.activities.site import Site
from relight.domain.attempts import progress_cursor
from relight.domain.findings import learnt_cursor
from relight.domain.ledger import Change, Entry

AT_ONCE = 200
"""Attempts whose positions are written in one round. What is not written is read once more after a restart."""
ROUNDS = 10
"""But within so many rounds it is each one's turn, however many there are."""
LEARNT_EVERY = timedelta(seconds=10)
"""How often what was learnt is written down: it is larger than the positions, and a little of it may be lost."""
LEARNT_AT_ONCE = 50
_NEVER = datetime.min.replace(tzinfo=UTC)


class Written:
    """Writes down positions, what was learnt, and what was found, each round in one transaction."""

    def __init__(self, site: Site, witnesses: Witnesses) -> None:
        """Bind to a cluster; `witnesses` add to what was found."""
        self._site = site
        self._witnesses = witnesses

    async def write(self, everyone: Collection[Following], *, all_of_it: bool = False) -> None:
        """Write down what has changed, as far as its turn has come."""
        moved = [each for each in everyone if each.moved or each.urgent or each.found]
        chosen = moved if all_of_it else await self._chosen(moved)
        if not chosen:
            return
        now, entries = self._site.clock(), []
        cursors = {}
        learnt: list[Following] = []
        for each in chosen:
            key = each.attempt.key
            each.progress = each.progress.model_copy(update={"files": each.positions()})
            cursors[progress_cursor(key)] = each.progress.model_dump(mode="json")
            # Never without the position: lines that it has learnt from must not be read again.
            if each.learnt_at is None or (len(learnt) < LEARNT_AT_ONCE and now - each.learnt_at >= LEARNT_EVERY):
                cursors[learnt_cursor(key)] = each.learnt.model_dump(mode="json", exclude_defaults=True)
                learnt.append(each)
            entries += await self._found(each)
        detections = tuple(found for each in chosen for found in each.found)
        await self._site.ledger.commit(Change(cursors=cursors, entries=tuple(entries), detections=detections))
        for each in chosen:
            each.found.clear()
            each.moved = each.urgent = False
            each.written_at = now
        for each in learnt:
            each.learnt_at = now

    async def _chosen(self, moved: list[Following]) -> list[Following]:
        """All where they are few; else those that somebody waits for, and those written longest ago."""
        bound = max(AT_ONCE, len(moved) // ROUNDS)
        if len(moved) <= bound:
            return moved
        # Whether a job goes on, or has passed the point where it failed, is read from the ledger.
        incidents = await self._site.ledger.incidents(cluster=self._site.cluster, open_only=True, limit=AT_ONCE)
        awaited = {incident.lineage for incident in incidents}
        urgent = [each for each in moved if each.urgent or each.found or each.attempt.lineage in awaited]
        chosen = {id(each) for each in urgent}
        others = sorted((each for each in moved if id(each) not in chosen), key=lambda e: e.written_at or _NEVER)
        return urgent + others[:bound]

    async def _found(self, each: Following) -> list[Entry]:
        known = [await self._site.ledger.has(self._site.detected(one, each.attempt).id) for one in each.found]
        new = [one for one, told in zip(each.found, known, strict=True) if not told]
        each.found = [await self._witnesses.with_causes(each, one) for one in new]
        return [self._site.detected(one, each.attempt) for one in each.found]
