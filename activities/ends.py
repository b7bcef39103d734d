"""How attempts end: what is asked about an end, and what is written down of it."""

import asyncio
import pwd
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from relight.activities.site import Site
from relight.clients.lineages import linked
from relight.clients.slurm import SlurmError
from relight.domain.attempts import Attempt, AttemptKey, AttemptState, lineage_id, same_lineage
from relight.domain.base import compact_time
from relight.domain.endings import (
    MEANING,
    ROOT,
    End,
    Told,
    another_job,
    describe,
    detection,
    how_ended,
)
from relight.domain.evidence import Detection
from relight.domain.hands import Hand, own_row, requeued, whose_hand
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.policy import successors
from relight.domain.slurm import ENDED, ENDED_BADLY, AccountingRow, JobRecord, JobState, NodeRecord
from relight.domain.watching import Ended, began_anew, missed

STILL_NEWS = timedelta(minutes=15)
"""An unwatched time in which a job ended and began to run again is looked into when it was no longer than this.

What Slurm started again by itself is then followed up: nobody knows yet whether it trains. After a longer one the end
is only written down; a service that was off for a weekend has no news to tell of it.
"""


class Look:
    """One read of all jobs; the nodes are read once with it, and only where an end needs them."""

    def __init__(
        self,
        site: Site,
        jobs: tuple[JobRecord, ...],
        last: tuple[JobRecord, ...],
        *,
        unwatched: timedelta = timedelta(),
    ) -> None:
        self._site = site
        self.jobs = jobs
        self.last = last
        """All jobs in the look before."""
        self.unwatched = unwatched
        """How long nobody looked before it; zero where the look before was the last that was due."""
        self._nodes: tuple[NodeRecord, ...] | None = None

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes."""
        if self._nodes is None:
            self._nodes = await self._site.slurm.nodes()
        return self._nodes


class _Accounts(NamedTuple):
    """What accounting says of a job."""

    rows: tuple[AccountingRow, ...] = ()
    problem: str = ""
    """Why it says nothing."""

    def of(self, attempt: Attempt) -> AccountingRow | None:
        """The attempt's own row."""
        return own_row(attempt, self.rows)


class Ends:
    """Writes down how attempts began and ended, and reports the ends that are interruptions."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._watching_since = site.clock()
        self._root: frozenset[str] | None = None

    async def attempt_seen(
        self, record: JobRecord, key: AttemptKey, *, lineage: str = "", afterwards: bool = False
    ) -> AttemptState:
        """Snapshot an attempt at once: later the record may be gone, and its node list empty."""
        if not lineage:
            earlier = await self._site.ledger.attempts_of_job(self._site.cluster, record.job_id, limit=1)
            continues = bool(earlier) and same_lineage(earlier[0].attempt, record)
            own = await linked(self._site.ledger, self._site.cluster, record) if not continues else ""
            lineage = earlier[0].attempt.lineage if continues else own or lineage_id(self._site.cluster, record)
        try:
            script: str | None = await self._site.slurm.batch_script(record.job_id)
        except SlurmError:
            script = None
        attempt = Attempt(
            key=key,
            lineage=lineage,
            record=record,
            seen_at=self._site.clock(),
            script=script,
            logs=self._site.named(record),
        )
        body: dict[str, Any] = {"record": record.model_dump(mode="json"), "script": script and script[:65536]}
        body |= {"afterwards": True} if afterwards else {}
        entry = self._site.entry(f"{key}/seen", RowKind.ATTEMPT_SEEN, body, attempt)
        state = AttemptState(attempt=attempt)
        await self.write((entry,), (state,), None, attempt)
        return state

    async def attempt_again(self, state: AttemptState, record: JobRecord) -> None:
        """Watch an attempt anew that slurmctld shows otherwise than before: its nodes, or outputs, may be others.

        One that is killed goes on from the state that it last saved: what had started is started a second time, and
        what had ended is RUNNING again, until Slurm itself finds out that nothing of it is left.
        """
        attempt = state.attempt.model_copy(update={"record": record})
        where = ",".join(record.nodes[:8])
        if not state.running:
            text = f"runs again on {where}: slurmctld had forgotten its end"
        elif began_anew(state.attempt, record):
            text = f"runs again on {where}: slurmctld had forgotten its start"
        else:
            text = f"slurmctld tells its output files now: {record.stdout}"[:600]
        entry = self._site.entry(
            f"{attempt.key}/again/{compact_time(self._site.clock())}", RowKind.NOTE, {"text": text}, attempt
        )
        ends = state.ends if state.running else state.ends + 1
        again = {"attempt": attempt, "running": True, "ended_at": None, "ends": ends}
        await self.write((entry,), (state.model_copy(update=again),), None, attempt)

    async def attempt_ended(self, state: AttemptState, ended: Ended, look: Look) -> bool:
        """Write down how the attempt ended; False when Slurm does not say yet: look again."""
        attempt, record = ended
        waited = (*state.successors, *(job.job_id for job in successors(attempt, (*look.last, *look.jobs))))
        state = state.model_copy(update={"successors": tuple(dict.fromkeys(waited))})
        reused = record is not None and another_job(attempt, record)
        told, accounts = await self._told(attempt, None if reused else record, look)
        if told.record is not None and told.record.state is JobState.UNKNOWN and told.hand is Hand.NOBODY:
            # By the next look those who waited for the job may no longer show that they did.
            await self._site.ledger.commit(Change(attempts=(state,)))
            return False
        end = how_ended(told)
        later: tuple[JobRecord, ...] = ()
        if record is None:
            later = missed(attempt.record, accounts.rows, after=attempt.key.submit_time, before=None)
        found = detection(told, end, self._site.clock()) if not later and _stands(told, look) else None
        if _led(attempt.record, look):
            found = None
        how = _forgotten(accounts) if told.record is None and told.execution is None else describe(told, end)
        # Before the attempt's own end: once that is written, nothing leads here again.
        for each in later:
            await self._write_missed(each, attempt.lineage, accounts, None, look, last=each is later[-1])
        await self._write_end(state, told, end, how, found)
        return True

    async def seen_afterwards(self, record: JobRecord, look: Look, *, since: datetime) -> bool:
        """Write down the job's executions that ended badly and that nobody saw, from `since` (Slurm's clock) on.

        Only the last of them can be an interruption, and only while the job waits to run again: what has been
        followed by another execution is old. False while accounting does not know the last one's end: it lags behind
        slurmctld for a moment (seen).

        Raises:
            SlurmError: accounting does not say.
        """
        states = await self._site.ledger.attempts_of_job(self._site.cluster, record.job_id)
        same = [state.attempt for state in states if same_lineage(state.attempt, record)]
        if any(attempt.record.restarts == record.restarts - 1 for attempt in same):
            return True
        accounts = _Accounts(await self._site.slurm.executions(record.job_id))
        earlier = [row for row in accounts.rows if row.submit_time and row.submit_time < record.submit_time]
        if not earlier or earlier[-1].end_time is None:
            return False
        known = {state.attempt.key.submit_time for state in states}
        ran = missed(record, accounts.rows, after=None, before=record.submit_time)
        lineage = same[0].lineage if same else lineage_id(self._site.cluster, ran[0] if ran else record)
        for each in ran:
            if each.submit_time not in known and each.end_time is not None and each.end_time >= since:
                waits = record if record.state is JobState.PENDING else None
                await self._write_missed(each, lineage, accounts, waits, look, last=each is ran[-1] and bool(waits))
        return True

    async def _write_missed(
        self,
        record: JobRecord,
        lineage: str,
        accounts: _Accounts,
        waits: JobRecord | None,
        look: Look,
        *,
        last: bool,
    ) -> None:
        """An execution that is known from accounting alone; `waits` is the job's record while it waits to run again."""
        key = AttemptKey(cluster=self._site.cluster, job_id=record.job_id, submit_time=record.submit_time)
        seen = Attempt(key=key, lineage=lineage, record=record, seen_at=self._site.clock())
        alone = Told(attempt=seen, record=None, execution=accounts.of(seen))
        told = (await self._told(seen, waits, look, accounts))[0] if last and waits is not None else alone
        end = how_ended(told)
        found = detection(told, end, self._site.clock()) if last else None
        if found is None:
            told, end = alone, how_ended(alone)
        if found is None and MEANING[end].interruption is None:
            return
        state = await self.attempt_seen(record, key, lineage=lineage, afterwards=True)
        await self._write_end(state, told, end, describe(told, end), found)

    async def _told(
        self, attempt: Attempt, record: JobRecord | None, look: Look, accounts: _Accounts | None = None
    ) -> tuple[Told, _Accounts]:
        """All that can be learnt about an end; accounting is asked only where the record does not say."""
        again = record is not None and requeued(attempt, record)
        if accounts is None:
            unsaid = record is None or again or record.state in {JobState.UNKNOWN, JobState.CANCELLED}
            accounts = await self._accounts(attempt) if unsaid else _Accounts()
        execution = accounts.of(attempt)
        if record is not None and not again and record.state is JobState.UNKNOWN and execution is not None:
            # 22.05 hides the final state behind COMPLETING, and accounting knows it by then (seen).
            record = record.model_copy(update={"state": execution.state}) if execution.state in ENDED else record
        nodes: tuple[NodeRecord, ...] = ()
        hand = Hand.NOBODY
        if record is not None and (again or record.state in ENDED_BADLY):
            nodes = await look.nodes()
            ours = again and await self._site.meant_to_requeue(attempt.key)
            hand = whose_hand(attempt, record, nodes, ours=ours, execution=execution)
        cancelled = execution is not None and bool(execution.cancelled_by)
        timed_out = record is not None and record.state is JobState.TIMEOUT and not again
        told = Told(
            attempt=attempt,
            record=record,
            execution=execution,
            hand=hand,
            nodes=nodes,
            owner=await _ids(attempt.record.user) if cancelled else (),
            root=await self._root_ids() if cancelled else ROOT,
            silent=await self._silence(attempt.key) if timed_out else None,
            limit=await self._patience(attempt.key) if timed_out else timedelta.max,
        )
        return told, accounts

    async def _accounts(self, attempt: Attempt) -> _Accounts:
        try:
            return _Accounts(await self._site.slurm.executions(attempt.key.job_id))
        except SlurmError as error:
            return _Accounts(problem=str(error))

    async def _root_ids(self) -> frozenset[str]:
        """Under which names and ids Slurm itself cancels jobs: root's and SlurmUser's."""
        if self._root is None:
            try:
                self._root = ROOT | await _ids((await self._site.slurm.facts()).slurm_user)
            except SlurmError:
                return ROOT
        return self._root

    async def _silence(self, key: AttemptKey) -> timedelta | None:
        """How long no step has become visible; None where that is not known.

        Silence counts from the start of this process at the earliest: before it, nobody may have been reading.
        """
        progress = await self._site.progress(key)
        if progress.last_step_at is None:
            return None
        blind = await self._site.ledger.rows(attempt=str(key), kind=RowKind.BLIND)
        if any(row.at >= progress.last_step_at for row in blind):
            return None
        return self._site.clock() - max(progress.last_step_at, self._watching_since)

    async def _patience(self, key: AttemptKey) -> timedelta:
        """The silence that counts as hanging. Nothing is in a hurry here, so it is the one for an unknown rhythm."""
        progress, hang = await self._site.progress(key), self._site.policy.hang
        line = timedelta(seconds=(progress.step_seconds or 0.0) * progress.stride)
        return max(hang.unlearned, hang.steps * line)

    async def _write_end(self, state: AttemptState, told: Told, end: End, how: str, found: Detection | None) -> None:
        record = told.record.model_dump(mode="json") if told.record else None
        body = {"how": how, "end": end.value, "record": record}
        nth = f"~{state.ends}" if state.ends else ""
        entry = self._site.entry(f"{told.attempt.key}/ended{nth}", RowKind.ATTEMPT_ENDED, body, state.attempt)
        found = found and found.model_copy(update={"id": f"{found.id}{nth}"})
        over = state.model_copy(update={"running": False, "ended_at": self._site.clock()})
        await self.write((entry,), (over,), found, state.attempt)

    async def write(
        self,
        entries: Iterable[Entry],
        attempts: tuple[AttemptState, ...],
        found: Detection | None,
        attempt: Attempt,
    ) -> None:
        """The finding and the state it came from, in one transaction."""
        rows = list(entries)
        if found:
            rows.append(self._site.detected(found, attempt))
        detections = (found,) if found else ()
        await self._site.ledger.commit(Change(entries=tuple(rows), attempts=attempts, detections=detections))


def _stands(told: Told, look: Look) -> bool:
    """False when the end is old: the job has been run again since, more than once or in a long unwatched time."""
    record, attempt = told.record, told.attempt
    if record is None or not requeued(attempt, record):
        return True
    return record.restarts <= attempt.record.restarts + 1 and not (record.running and look.unwatched > STILL_NEWS)


def _led(record: JobRecord, look: Look) -> bool:
    """True for a component of a heterogeneous job whose leader has ended too: that end is the whole job's.

    Slurm ends all components with the leader, and queues them again by its id alone.
    """
    if not record.het_job_id or record.het_job_id == record.job_id:
        return False
    return not any(job.job_id == record.het_job_id and job.running for job in look.jobs)


def _forgotten(accounts: _Accounts) -> str:
    if accounts.problem:
        return f"slurmctld no longer knows it, and accounting does not say ({accounts.problem})"
    return f"slurmctld no longer knows it, nor does accounting ({JobState.UNKNOWN})"


async def _ids(user: str) -> frozenset[str]:
    """The name and the id of a user, as far as this machine knows them. A directory service may take its time."""
    try:
        found = await asyncio.to_thread(pwd.getpwnam, user)
    except KeyError:
        return frozenset()
    return frozenset({user, str(found.pw_uid)})
