"""Slurm's accounting as reports ask it: no longer than it answers, of no more jobs than can be waited for."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from relight.clients.slurm import SlurmError
from relight.config.settings import Settings
from relight.console.text import count
from relight.domain.base import clip
from relight.domain.slurm import AccountingRow

MOST_ASKED = 100
"""Jobs of which accounting is asked for one report: each is a process of Slurm's."""
AT_ONCE = 4


class Accounting(Protocol):
    """Where the executions of a job are read: any Slurm client."""

    async def executions(self, job_id: int) -> tuple[AccountingRow, ...]:
        """Every execution of a job in the accounting database, oldest first."""


@asynccontextmanager
async def accounting_of(settings: Settings) -> AsyncIterator[Accounting | None]:
    """Slurm by the way that the settings take; None where that way cannot be had on this machine."""
    from relight.clients.ways import WayError, open_access

    async with AsyncExitStack() as stack:
        try:
            access = await stack.enter_async_context(open_access(settings))
        except WayError:
            yield None
        else:
            yield access.slurm


class Executions:
    """Asks accounting, no longer than it answers and of no more jobs than `MOST_ASKED`."""

    def __init__(self, accounting: Accounting | None) -> None:
        self._accounting = accounting
        self._problem = "" if accounting else "Slurm cannot be reached from here"
        self._asked = 0
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def of_jobs(self, jobs: Mapping[str, Sequence[int]]) -> dict[str, tuple[AccountingRow, ...]]:
        """The executions of each job that it could be asked about; the others are left out.

        Args:
            jobs: by any name, the Slurm job ids of each, the newest last.
        """
        chosen = list(jobs)[-MOST_ASKED:]
        found = await asyncio.gather(*(self._of(jobs[name]) for name in chosen))
        return {name: rows for name, rows in zip(chosen, found, strict=True) if rows is not None}

    async def _of(self, numbers: Sequence[int]) -> tuple[AccountingRow, ...] | None:
        rows: list[AccountingRow] = []
        for number in numbers:
            async with self._turn:
                if self._accounting is None or self._problem:
                    return None
                try:
                    rows += await self._accounting.executions(number)
                except SlurmError as error:
                    self._problem = clip(" ".join(str(error).split()).partition(" sacct: ")[0], 120)
                    return None
        self._asked += 1
        return tuple(rows)

    def notes(self, jobs: int) -> list[str]:
        """What it did not say."""
        if self._problem:
            return [f"times, and attempts, are those that Relight saw, without Slurm's accounting: {self._problem}"]
        if self._asked < jobs:
            return [f"Slurm's accounting was asked about {count(self._asked, 'job')} of {jobs}: more would take long"]
        return []
