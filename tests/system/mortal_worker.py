"""A controller worker to be killed: all of it real but Slurm, whose jobs stand in a file that outlives it. SIMULATED.

    python mortal_worker.py SETTINGS JOBS

Temporal notices a dead worker by its silence; here that takes seconds in place of minutes.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from relight.activities.site import Site
from relight.clients.ledger_sql import SqlLedger
from relight.clients.memory import MemorySlurm
from relight.config.settings import Settings, load
from relight.domain.slurm import JobRecord
from relight.workers import controller
from relight.workflows.options import OPTIONS

SILENT, SLOW = timedelta(seconds=3), timedelta(seconds=8)


class FileSlurm(MemorySlurm):
    """A simulated slurmctld whose jobs are read from a file each time."""

    def __init__(self, file: Path) -> None:
        super().__init__(lambda: datetime.now(UTC), nodes=("n1",), cluster="mortal", accounting=False)
        self._file = file

    def _settle(self) -> None:
        records = [JobRecord.model_validate(each) for each in json.loads(self._file.read_text())]
        self.job_records = {record.job_id: record for record in records}
        self.scripts = dict.fromkeys(self.job_records, "#!/bin/sh\n")


def write_jobs(file: Path, jobs: dict[int, JobRecord]) -> None:
    """What `FileSlurm` shows from now on."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps([job.model_dump(mode="json") for job in jobs.values()]))
    fresh.rename(file)


def be_noticed_soon() -> None:
    """Shorten the time-outs after which Temporal tries elsewhere."""
    for name, options in OPTIONS.items():
        long = options.start_to_close > timedelta(days=1)
        within = options.start_to_close if long else min(options.start_to_close, SLOW)
        OPTIONS[name] = options._replace(start_to_close=within, heartbeat=SILENT if options.heartbeat else None)


async def work(settings: Settings, jobs: Path) -> None:
    """Work until killed."""

    @asynccontextmanager
    async def site(settings: Settings, ledger: SqlLedger) -> AsyncIterator[Site]:
        slurm = FileSlurm(jobs)
        async with controller.open_site(settings, ledger) as real:
            yield replace(real, slurm=slurm, nodes=slurm)

    await controller.run(settings, site=site)


if __name__ == "__main__":
    be_noticed_soon()
    asyncio.run(work(load(Path(sys.argv[1])), Path(sys.argv[2])))
