"""The ledger of a stack under fire, followed from outside, by job."""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from relight.clients.ledger import LedgerError
from relight.clients.ledger_sql import SqlLedger
from relight.domain.attempts import AttemptKey, Progress, progress_cursor
from relight.domain.incidents import Outcome
from relight.domain.ledger import Row, RowKind
from relight.lab.bench_seen import wait_for

LOOK_AGAIN_S = 0.1
PAGE = 1000
OF_STEPS = {RowKind.EFFECT: "step", RowKind.INTENT: "what", RowKind.VERIFIED: "what"}


def mark(row: Row) -> str:
    """What a moment names a row by: its kind, or kind and step, such as `effect/requeue`."""
    word = row.body.get(OF_STEPS.get(row.kind, ""), "")
    return f"{row.kind}/{str(word).partition('-')[0]}" if word else str(row.kind)


class SeenRows:
    """The rows so far. While the database is down there are no new ones."""

    def __init__(self, ledger: SqlLedger) -> None:
        """Nothing has been read yet."""
        self._ledger = ledger
        self._by_job: defaultdict[int, list[Row]] = defaultdict(list)
        self._last = 0

    async def follow(self) -> None:
        """Read what is new, for ever."""
        while True:
            try:
                rows = await self._ledger.rows(after=self._last, limit=PAGE)
            except LedgerError:
                rows = ()
            for row in rows:
                self._last = row.seq
                if row.attempt:
                    self._by_job[AttemptKey.parse(row.attempt).job_id].append(row)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def until(self, job: int, wanted: Callable[[Row], bool], within_s: float) -> Row | None:
        """The job's first row of that sort; None when there is none in time."""
        return await wait_for(lambda: next(filter(wanted, self._by_job[job]), None), within_s)

    def attempts(self, job: int, name: str = "") -> list[AttemptKey]:
        """The job's attempts, oldest first; with a name, those of jobs of that name."""
        seen = [row for row in self._by_job[job] if row.kind is RowKind.ATTEMPT_SEEN]
        return [AttemptKey.parse(row.attempt) for row in seen if name in {"", row.body["record"]["name"]}]

    def again(self, key: AttemptKey) -> bool:
        """Whether slurmctld forgot how the attempt ended, and started it a second time."""
        rows = self._by_job[key.job_id]
        return any(row.kind is RowKind.NOTE and row.id.startswith(f"{key}/again/") for row in rows)

    def outcomes(self, job: int) -> list[tuple[AttemptKey, Outcome]]:
        """How the job's incidents ended, in that order, but for those that had nothing to do."""
        closed = [row for row in self._by_job[job] if row.kind is RowKind.CLOSED]
        ends = [(AttemptKey.parse(row.attempt), Outcome(row.body["outcome"])) for row in closed]
        return [(key, end) for key, end in ends if end not in {Outcome.NOT_CONFIRMED, Outcome.SUPERSEDED}]

    def open(self, job: int) -> set[str]:
        """The job's incidents without an outcome."""
        named = {kind: {r.incident for r in self._by_job[job] if r.kind is kind} for kind in RowKind}
        return named[RowKind.OPENED] - named[RowKind.CLOSED]

    def undelivered(self, job: int) -> bool:
        """Whether something was detected of the job that no incident knows of yet."""
        rows = self._by_job[job]
        last = max((r.seq for r in rows if r.kind is RowKind.DETECTED), default=0)
        return last > max((r.seq for r in rows if r.kind in {RowKind.OPENED, RowKind.CLOSED}), default=0)

    async def progress(self, key: AttemptKey) -> Progress:
        """How far an attempt has come; nothing while the ledger does not answer."""
        try:
            value = await self._ledger.cursor(progress_cursor(key))
        except LedgerError:
            value = None
        return Progress.model_validate(value) if value else Progress()
