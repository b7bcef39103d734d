"""Looks at what Relight does, from outside, by the ledger it writes: for demo, benchmarks and system tests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import Settings, load
from relight.domain.attempts import AttemptState, Progress, progress_cursor
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import Row, RowKind
from relight.lab.processes import wait_until


class LedgerView:
    """The ledger of a running worker, read without async."""

    def __init__(self, config: Path) -> None:
        """Open the ledger that the settings file names; a worker has made it."""
        self.settings: Settings = load(config, environment={})
        self._ledger = SqlLedger.open(self.settings.ledger_url, self.settings.ledger_key)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self._runner.close()
        self._ledger.close()

    def rows(self, after: int = 0, kind: RowKind | None = None, incident: str | None = None) -> tuple[Row, ...]:
        """Rows written after number `after`."""
        return self._runner.run(self._ledger.rows(after=after, kind=kind, incident=incident))

    def incidents(self, job_id: int | None = None) -> tuple[Incident, ...]:
        """Incidents (of one job), newest first, those not confirmed left out."""
        found = self._runner.run(self._ledger.incidents(cluster=self.settings.cluster, limit=500))
        real = (i for i in found if i.outcome is not Outcome.NOT_CONFIRMED)
        return tuple(i for i in real if job_id is None or i.attempt.job_id == job_id)

    def attempts(self, job_id: int) -> tuple[AttemptState, ...]:
        """A job's attempts, newest first."""
        return self._runner.run(self._ledger.attempts_of_job(self.settings.cluster, job_id))

    def progress(self, state: AttemptState) -> Progress:
        """How far an attempt has come."""
        value = self._runner.run(self._ledger.cursor(progress_cursor(state.attempt.key)))
        return Progress.model_validate(value) if value else Progress()

    def step(self, job_id: int) -> int | None:
        """The newest step of the job's newest attempt."""
        states = self.attempts(job_id)
        return self.progress(states[0]).last_step if states else None

    def wait_for_step(self, job_id: int, step: int, timeout_s: float = 120) -> None:
        """Wait until the newest attempt has passed `step`."""
        wait_until(lambda: (self.step(job_id) or 0) >= step, timeout_s, f"job {job_id} to reach step {step}", 0.1)

    def wait_for_outcome(self, job_id: int, timeout_s: float = 300, since: datetime | None = None) -> Incident:
        """Wait until the job's newest incident (opened after `since`) has closed, and return it."""

        def closed() -> bool:
            incidents = self._since(job_id, since)
            return bool(incidents) and not incidents[0].open

        wait_until(closed, timeout_s, f"the incident of job {job_id} to close", 0.1)
        return self._since(job_id, since)[0]

    def wait_for_incident(self, job_id: int, timeout_s: float = 120, since: datetime | None = None) -> Incident:
        """Wait until the job has an incident that has a plan, and return it."""

        def planned() -> bool:
            incidents = self._since(job_id, since)
            return bool(incidents) and incidents[0].plan is not None

        wait_until(planned, timeout_s, f"a plan for job {job_id}", 0.1)
        return self._since(job_id, since)[0]

    def _since(self, job_id: int, since: datetime | None) -> tuple[Incident, ...]:
        return tuple(i for i in self.incidents(job_id) if since is None or i.opened_at >= since)


@contextmanager
def ledger_of(config: Path) -> Iterator[LedgerView]:
    """A view of the ledger that a settings file names."""
    with LedgerView(config) as view:
        yield view
