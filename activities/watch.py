"""The watchers: long activities that read the outside again and again and write what they find to the ledger.

Each detection and the state it came from are written in one transaction; delivering it is another's work
(`deliver.py`). A failed read changes nothing and is said: a blind watcher must not look like a healthy cluster.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.ends import Ends, Look
from relight.activities.set_aside import SetAside
from relight.activities.site import Site, beating, poll
from relight.clients.slurm import SlurmBusyError, SlurmError, SlurmUnavailableError
from relight.domain.attempts import attempt_key, ended_key
from relight.domain.detectors import ON_DEMAND, within
from relight.domain.ledger import Change, RowKind
from relight.domain.slurm import JobRecord
from relight.domain.watching import (
    Ended,
    Execution,
    compare,
    executions,
    flashes,
    lost_nodes,
    newest,
    nodes_down,
    over,
)

MIN_PERIOD = timedelta(seconds=1)
READ_SHARE = 10
"""A period is at least ten times what slurmctld took for the read: Relight never keeps it busy."""
COMMAND_ITSELF = timedelta(seconds=0.15)
"""So much of a read is not slurmctld's (docs/decisions/0015)."""
LOOKS_APART = timedelta(seconds=0.25)
"""However often hooks tell that a job has ended, looks are at least so far apart."""
HOOK_ENDS_WITHIN = 0.3
"""Seconds from a hook's word to its end, as slurmctld sees it."""
NODES_PERIOD = timedelta(seconds=2)
BACK_OFF = timedelta(seconds=15)
HASTY_LOOKS = 12
"""Looks at `LOOKS_APART` while Slurm has not said how an attempt ended: a hook of slurmctld takes a moment (22.05)."""
SETTLING_LOOKS = 60
"""Looks at `MIN_PERIOD` while Slurm has not said how an attempt ended; after these, at the usual period."""
_EVER = datetime.min.replace(tzinfo=UTC)
LOOK_WITHIN = 300.0
"""Seconds after which a look that does not come to an end is given up, and the watcher started anew."""
ACCOUNTING_LAGS = 10
"""Looks within which accounting should know how a job's last execution ended."""
COUNTED_PER_LOOK = 20
"""Jobs whose executions are looked up in accounting in one look; after an outage the others have to wait."""


class Watch:
    """Watches the jobs and nodes of a cluster.

    Args:
        site: the cluster.
        period: from one look at all jobs to the next, where no hook asks for one sooner.
    """

    def __init__(self, site: Site, *, period: timedelta = MIN_PERIOD) -> None:
        self._site = site
        self._period = period
        self._ends = Ends(site)
        self._set_aside = SetAside(site)
        self._nudged = asyncio.Event()
        self._blind: dict[str, datetime] = {}
        self._took: dict[str, timedelta] = {}
        """How long the last read took, by what was read."""
        self._last: tuple[JobRecord, ...] = ()
        """All jobs in the look before this one."""
        self._over: frozenset[Execution] | None = None
        """The executions that were over in it; None before this process's first look."""
        self._looked_at = _EVER
        """When it was, by our clock."""
        self._newest = _EVER
        """The newest time of Slurm's own clock that it showed."""
        self._counted: dict[int, int] = {}
        """By job, the restarts up to which all executions are known."""
        self._since: dict[int, datetime] = {}
        """Jobs that wait for their executions to be looked up, and from when on these count."""
        self._tries: Counter[int] = Counter()
        self._settling = 0

    def nudge(self) -> None:
        """A hook says that a job has ended: look at once. It is never acted on its word."""
        self._nudged.set()

    def nudge_soon(self) -> None:
        """The same, once that hook has ended: until then the job is COMPLETING, and 22.05 hides how it ended."""
        asyncio.get_running_loop().call_later(HOOK_ENDS_WITHIN, self.nudge)

    @activity.defn(name=c.WATCH_JOBS.name)
    async def watch_jobs(self, arg: c.WatchInput) -> c.Nothing:
        """Notice attempts that start and attempts that end."""
        return await self._watch("jobs", self._look_at_jobs, self._period, arg.run_for)

    async def _watch(
        self, what: str, look: Callable[[], Awaitable[timedelta]], period: timedelta, run_for: timedelta
    ) -> c.Nothing:
        """Look again and again, one read at a time, and leave slurmctld alone when it says that it is busy."""
        until = self._site.clock() + run_for
        # A look or a pause may be longer than Temporal waits for a beat.
        async with beating():
            generation = 0
            while self._site.clock() < until:
                generation += 1
                rest, busy = await self._timed(what, look, period)
                least = max(LOOKS_APART, rest)
                if busy:
                    await poll(self._site, max(BACK_OFF, least), generation)
                elif what == "nodes":  # no hook tells of them
                    await poll(self._site, max(period, least), generation)
                else:
                    await self._pause(min(period, self._until_settled() or period), least, generation)
        return c.Nothing()

    async def _timed(
        self, what: str, look: Callable[[], Awaitable[timedelta]], period: timedelta
    ) -> tuple[timedelta, bool]:
        """How long slurmctld is to be left alone, and whether it asks for that.

        A read that takes long because slurmctld stood still for once says nothing of what the next one takes; nor
        does one that came to nothing. Else one outage of seconds would be followed by minutes of blindness.
        """
        began = _monotonic()
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                took = await look()
        except SlurmUnavailableError as error:
            rest = min(_left_alone(_monotonic() - began), BACK_OFF)
            await self._is_blind(what, error, within(BACK_OFF + rest))
            return rest, isinstance(error, SlurmBusyError)
        rest = _left_alone(min(took, self._took.get(what, took)))
        self._took[what] = took
        self._sees(what, within(max(period, rest) + _monotonic() - began))
        return rest, False

    def _until_settled(self) -> timedelta | None:
        """How soon to look again while Slurm has not said how an attempt ended; None where there is none such."""
        if 0 < self._settling <= HASTY_LOOKS:
            return LOOKS_APART
        return MIN_PERIOD if 0 < self._settling <= SETTLING_LOOKS else None

    async def _pause(self, period: timedelta, least: timedelta, generation: int) -> None:
        """Wait until the next look is due, or a hook asks for it and the least distance is kept."""
        await poll(self._site, least, generation)
        if period <= least or self._nudged.is_set():
            return
        rest = asyncio.ensure_future(self._site.sleep((period - least).total_seconds()))
        nudged = asyncio.ensure_future(self._nudged.wait())
        try:
            done, _ = await asyncio.wait({rest, nudged}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            rest.cancel()
            nudged.cancel()

    async def _look_at_jobs(self) -> timedelta:
        self._nudged.clear()
        at = self._site.clock()
        running = {s.attempt.key: s for s in await self._site.ledger.running_attempts(self._site.cluster)}
        began = _monotonic()
        jobs = await self._site.slurm.jobs()
        took = _monotonic() - began
        look = Look(self._site, jobs, self._last, unwatched=await self._unwatched(at))
        found = compare({key: s.attempt for key, s in running.items()}, jobs, self._site.cluster)
        unsettled = False
        for ended in found.ended:
            settled = await self._ends.attempt_ended(running[ended.attempt.key], ended, look)
            unsettled = unsettled or not settled
        for attempt, record in found.again:
            await self._ends.attempt_again(running[attempt.key], record)
        for record in found.started:
            key = attempt_key(self._site.cluster, record)
            if not self._looked_after(record):
                continue
            if (state := await self._site.known(key)) is None:
                await self._ends.attempt_seen(record, key)
            elif not state.running:
                await self._ends.attempt_again(state, record)
        await self._unseen(look)
        self._settling = self._settling + 1 if unsettled else 0
        # Without what is still to be looked up in accounting: another process would go on from there.
        if not self._since:
            cursor = {"looked_at": at.isoformat(), "newest": self._newest.isoformat()}
            await self._site.ledger.commit(Change(cursors={self._cursor: cursor}))
        self._last, self._looked_at = jobs, at
        return took

    async def _unwatched(self, now: datetime) -> timedelta:
        """How long nobody looked: since another process did, or since the last read that told anything."""
        if self._over is not None:
            return now - self._looked_at if "jobs" in self._blind else timedelta()
        last = await self._site.ledger.cursor(self._cursor)
        return now - datetime.fromisoformat(last["looked_at"]) if last else timedelta.max

    @property
    def _cursor(self) -> str:
        return f"jobs/{self._site.cluster}"

    def _looked_after(self, record: JobRecord) -> bool:
        return not self._site.policy.partitions or record.partition in self._site.policy.partitions

    async def _unseen(self, look: Look) -> None:
        """Executions that nobody saw running: those between two looks, and those of an outage of ours."""
        since = None
        seen = self._over
        if seen is None:
            last = await self._site.ledger.cursor(self._cursor)
            if last is None:
                # The first look of all: what it shows at an end is old.
                seen = over(look.jobs) | executions(job for job in look.jobs if job.completing)
                self._counted = {job.job_id: job.restarts for job in look.jobs}
            else:
                seen = frozenset()
                # A cursor of version 0.1 holds our own clock's time alone.
                since = self._newest = datetime.fromisoformat(last.get("newest", last["looked_at"]))
        await self._count(look)
        for record in flashes(look.jobs, seen, since):
            key = ended_key(self._site.cluster, record)
            if self._looked_after(record) and not await self._site.known(key):
                state = await self._ends.attempt_seen(record, key)
                await self._ends.attempt_ended(state, Ended(state.attempt, record), look)
        self._over = over(look.jobs) | (seen & executions(look.jobs))
        self._newest = newest(look.jobs) or self._newest

    async def _count(self, look: Look) -> None:
        """Look up the executions of jobs that have been restarted more often than was seen."""
        known = self._counted
        self._counted = {job.job_id: known[job.job_id] for job in look.jobs if job.job_id in known}
        grown = [
            job
            for job in look.jobs
            if job.restarts not in {0, known.get(job.job_id)} and not job.completing and self._looked_after(job)
        ]
        self._since = {job.job_id: self._since.get(job.job_id, self._newest) for job in grown}
        for job in grown[:COUNTED_PER_LOOK]:
            self._tries[job.job_id] += 1
            try:
                told = await self._ends.seen_afterwards(job, look, since=self._since[job.job_id])
            except SlurmError as error:
                # Without accounting there is nothing to wait for.
                await self._is_blind("accounting", error, ON_DEMAND)
                told = True
            else:
                self._sees("accounting", ON_DEMAND)
            if told or self._tries[job.job_id] >= ACCOUNTING_LAGS:
                del self._since[job.job_id], self._tries[job.job_id]
                self._counted[job.job_id] = job.restarts

    @activity.defn(name=c.WATCH_NODES.name)
    async def watch_nodes(self, arg: c.WatchInput) -> c.Nothing:
        """Notice nodes under running attempts that slurmctld has declared down."""
        return await self._watch("nodes", self._look_at_nodes, NODES_PERIOD, arg.run_for)

    async def _look_at_nodes(self) -> timedelta:
        began = _monotonic()
        nodes = await self._site.slurm.nodes()
        took = _monotonic() - began
        await self._set_aside.look(nodes)
        down = [n for n in nodes if n.state == "DOWN"]
        if not down:
            return took
        for state in await self._site.ledger.running_attempts(self._site.cluster):
            lost = lost_nodes(state.attempt, down)
            if lost:
                await self._ends.write((), (), nodes_down(state.attempt, lost, self._site.clock()), state.attempt)
        return took

    async def _is_blind(self, what: str, error: Exception, again: timedelta) -> None:
        """Say once that this watcher cannot see, and why."""
        since = self._site.detectors.blind(what, str(error), again)
        if what in self._blind:
            return
        self._blind[what] = since
        activity.logger.warning("watching %s is blind: %s", what, error)
        body = {"what": what, "why": str(error)[:500]}
        entry = self._site.entry(f"blind/{self._site.cluster}/{what}/{since.isoformat()}", RowKind.BLIND, body)
        await self._site.ledger.commit(Change(entries=(entry,)))

    def _sees(self, what: str, again: timedelta) -> None:
        self._site.detectors.saw(what, again)
        if since := self._blind.pop(what, None):
            activity.logger.info("watching %s sees again after %s", what, self._site.clock() - since)


def _left_alone(took: timedelta) -> timedelta:
    """How long slurmctld is left alone after a read that took so long; this machine has two thirds of the time."""
    return max(2 * took, READ_SHARE * (took - COMMAND_ITSELF))


def _monotonic() -> timedelta:
    """Not the wall clock, which may be set while a look lasts."""
    return timedelta(seconds=asyncio.get_running_loop().time())
