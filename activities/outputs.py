"""Lets kept outputs expire, and writes down what went. It is never in a hurry, and nothing waits for it."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.site import Site, beating, poll
from relight.clients.ledger import LedgerError
from relight.clients.outputs import KeptOutputs
from relight.domain.base import few
from relight.domain.kept_outputs import expired
from relight.domain.ledger import Change, RowKind

PERIOD = timedelta(seconds=5)
"""From one look at the clock to the next; each is a heartbeat."""
EVERY = timedelta(hours=1)
MOST_JOBS = 1000
"""Jobs that one row names."""
MOST_OPEN = 100_000
"""Open incidents that are asked for; with more, nothing goes: their outputs would not be known."""


class ExpireOutputs:
    """Thins out the kept outputs of one cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site
        self._kept = KeptOutputs(site.kept)
        self._next: datetime | None = None

    @activity.defn(name=c.EXPIRE_OUTPUTS.name)
    async def expire_outputs(self, arg: c.WatchInput) -> c.Nothing:
        """Do it every hour; what fails is told in the log, and tried again then."""
        until = self._site.clock() + arg.run_for
        while self._site.clock() < until:
            if self._next is None or self._site.clock() >= self._next:
                self._next = self._site.clock() + EVERY
                try:
                    await self.sweep()
                except (OSError, LedgerError) as error:
                    activity.logger.warning("kept outputs do not expire: %s", error)
            await poll(self._site, PERIOD)
        return c.Nothing()

    async def sweep(self) -> int:
        """Delete what has expired, the row first: what went is on record, whatever happens in between.

        Raises:
            LedgerError: nothing is deleted then.
            OSError: the folder cannot be read, or not all of it could be deleted.
        """
        site = self._site
        now = site.clock()
        # Listed first: an incident that opens meanwhile keeps what is not on this list.
        async with beating():
            found = await asyncio.to_thread(self._kept.listing)
        still_open = await site.ledger.incidents(cluster=site.cluster, open_only=True, limit=MOST_OPEN)
        if len(still_open) >= MOST_OPEN:
            return 0
        names = {incident.id for incident in still_open}
        keep_for, at_most = site.keep_outputs_for, site.keep_outputs_at_most
        gone = expired(found, now, keep_for=keep_for, keep_at_most=at_most, open_incidents=names)
        if not gone:
            return 0
        of_jobs = Counter(each.job_id for each in gone)
        body = {
            "text": f"{len(gone)} kept outputs of {len(of_jobs)} jobs have expired: {few([str(j) for j in of_jobs])}",
            "bytes": sum(each.size for each in gone),
            "jobs": {str(job): count for job, count in of_jobs.most_common(MOST_JOBS)},
            "keep_for_s": keep_for.total_seconds(),
            "keep_at_most": at_most,
        }
        entry = site.entry(f"outputs/{site.cluster}/{now.isoformat()}", RowKind.OUTPUTS_EXPIRED, body)
        await site.ledger.commit(Change(entries=(entry,)))
        async with beating():
            return len(await asyncio.to_thread(self._kept.remove, gone))
