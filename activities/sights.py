"""What the detectors of all of a cluster's workers last saw: written to the ledger, and read for a decision."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.activities.detectors import Unseen
from relight.activities.site import Site, poll
from relight.domain.detectors import (
    MOST_NAMED,
    WRITTEN_WITHIN,
    Blind,
    Sight,
    WorkerReport,
    WorkerReports,
    blind_for,
    sights_cursor,
)
from relight.domain.evidence import Interruption
from relight.domain.ledger import Backlog, Change, Entry, RowKind

SECOND_CHANCE = timedelta(seconds=20)
"""Longer than a look at Slurm that times out, or the pause after one that Slurm was too busy for; and long enough for a
worker that has died to count no more, whose detectors are overdue by then."""
LOOK_AGAIN = timedelta(seconds=0.5)
Reads = Mapping[str, Callable[[], Awaitable[object]]]


class Seen(NamedTuple):
    """How the cluster's watch stands."""

    sights: dict[str, Sight]
    backlog: Backlog


class WatchBook:
    """Writes down what one worker's detectors see; a row says each time that one begins or ends to be blind.

    Detectors that stand still cannot say so themselves, so it must run beside them, not among them.

    Args:
        site: the cluster.
        worker: names this process among the cluster's workers.
        version: of Relight.
    """

    def __init__(self, site: Site, worker: str, version: str) -> None:
        self._site = site
        self._worker = worker
        self._version = version
        self._told: dict[str, datetime] = {}
        """By detector that does not see and is said not to: since when."""
        self._first = True

    async def write(self) -> Seen:
        """Write all down as it is now."""
        site, now = self._site, self._site.clock()
        known, unreadable = await reports(site), site.detectors.unreadable
        mine = WorkerReport(
            worker=self._worker,
            version=self._version,
            mode=str(site.policy.ceiling),
            policy=site.policy_version,
            policy_problem=site.policy_problem,
            started_at=site.detectors.started_at,
            written_at=now,
            sights=site.detectors.sights(),
            unreadable=dict(list(unreadable.items())[:MOST_NAMED]),
            unreadable_count=len(unreadable),
        )
        entries = self._left_behind(known, now) if self._first else []
        now_known = known.with_report(mine)
        sights = now_known.sights(now)
        over = site.detectors.over()
        # A detector of which another worker tells is that worker's to write about.
        blind = {n: s for n, s in sights.items() if s == mine.sights.get(n) and not s.sees(now)}
        new = {name: sight for name, sight in blind.items() if self._told.get(name) != sight.unseen_since()}
        entries += [self._row(Unseen(name, sight.why(), sight.unseen_since(), now)) for name, sight in new.items()]
        entries += [row for unseen in over for row in (self._row(unseen), self._row(unseen, over=True))]
        cursors = {sights_cursor(site.cluster): now_known.model_dump(mode="json")}
        await site.ledger.commit(Change(entries=tuple(entries), cursors=cursors))
        site.detectors.written(len(over))
        self._told = {name: sight.unseen_since() for name, sight in blind.items()}
        self._first = False
        return Seen(sights, await site.ledger.backlog(site.cluster))

    def _left_behind(self, known: WorkerReports, now: datetime) -> list[Entry]:
        """What earlier workers have left: detectors that did not see, and a time in which nobody worked."""
        if not known.workers:
            return []
        last = known.workers[0]
        for name, sight in known.sights(now).items():
            if not sight.sees(last.written_at):
                self._site.detectors.was_blind(name, sight.unseen_since())
        if last.lives(now):
            return []
        why = f"no worker has written for more than {WRITTEN_WITHIN.total_seconds():g} s"
        gap = Unseen("worker", why, last.written_at, now)
        return [self._row(gap), self._row(gap, over=True)]

    def _row(self, unseen: Unseen, *, over: bool = False) -> Entry:
        """The row that it began, the same as a detector may have written itself; or that it is over."""
        name = f"blind/{self._site.cluster}/{unseen.name}/{unseen.since.isoformat()}"
        body = {"what": unseen.name, "why": unseen.why, "since": unseen.since.isoformat()}
        if not over:
            return self._site.entry(name, RowKind.BLIND, body)
        body |= {"why": f"sees again; before: {unseen.why}", "until": unseen.until.isoformat()}
        return self._site.entry(f"{name}/over", RowKind.BLIND, body)


async def reports(site: Site) -> WorkerReports:
    """What the cluster's workers have written."""
    return WorkerReports.model_validate(await site.ledger.cursor(sights_cursor(site.cluster)) or {})


async def blind_now(site: Site, kind: Interruption, reads: Reads | None = None) -> tuple[Blind, ...]:
    """What a decision about such an interruption rests on and is not seen now, by whichever worker looks.

    A detector that has just looked in vain is given the time to look again: after an outage the decision's own reads
    may succeed before its next look is due.

    Args:
        site: the cluster.
        kind: what was found.
        reads: by detector, how who decides reads the same. Asked once, where the detector does not see: an answer is
            fresher than its last look and counts in its place.

    Raises:
        SlurmError: as such a read does.
    """
    own: dict[str, datetime] = {}
    until = site.clock() + SECOND_CHANCE
    blind = {each.detector for each in await _blind(site, kind, own)}
    for name, read in (reads or {}).items():
        if name in blind:
            await read()
            own[name] = site.clock()
    while (found := await _blind(site, kind, own)) and site.clock() < until:
        await poll(site, LOOK_AGAIN)
    return found


async def _blind(site: Site, kind: Interruption, own: Mapping[str, datetime]) -> tuple[Blind, ...]:
    now = site.clock()
    others = [each for each in (await reports(site)).workers if each.lives(now)]
    mine = WorkerReport(worker="", version="", mode="", started_at=now, written_at=now, sights=site.detectors.sights())
    return blind_for(kind, WorkerReports(workers=(mine, *others)).sights(now), now, own)
