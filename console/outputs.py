"""`relight outputs`: what was kept of a job's failed attempts, and one of the copies."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from relight.clients import lineages
from relight.clients.outputs import KeptOutputs
from relight.console.checkpoints import size
from relight.console.context import opened
from relight.console.errors import NotFoundStop, Stop
from relight.console.lookup import JobName, attempts_of, incidents_of
from relight.console.output import words
from relight.console.text import clean, local
from relight.domain.kept_outputs import KeptOutput

if TYPE_CHECKING:
    from relight.config.settings import Settings

WHOLE = 32 << 20
"""Bytes that are read of one copy: more than any that Relight makes."""


class Found(NamedTuple):
    """A copy, with the attempt that wrote it."""

    attempt: int | None
    """The job's how manieth, from 1; None where the ledger does not know it."""
    kept: KeptOutput


async def of_job(settings: "Settings", job: JobName) -> tuple[Found, ...]:
    """What was kept of the job, in the order of its attempts; also under the ids that it had before.

    Raises:
        NotFoundStop: nothing was kept, or it has expired.
        Stop: the folder cannot be read.
    """
    async with opened(settings) as ledger:
        states = await attempts_of(ledger, settings.cluster, job)
        of_lineage = await lineages.attempts_of(ledger, states[0].attempt) if states else ()
        known = await incidents_of(ledger, settings.cluster, job, states)
    oldest = sorted({attempt.key for attempt in of_lineage}, key=lambda key: key.submit_time)
    number = {key: nth for nth, key in enumerate(oldest, start=1)}
    of_incident = {incident.id: number.get(incident.attempt) for incident in known}
    ids = dict.fromkeys((job.number, *(key.job_id for key in oldest)))
    folder = settings.folder / "outputs"
    try:
        kept = [each for job_id in ids for each in KeptOutputs(folder).listing(job_id)]
    except OSError as error:
        raise Stop(f"{folder} cannot be read: {error.strerror}\nThe worker's own user may read it") from error
    found = [Found(of_incident.get(each.incident), each) for each in kept]
    if not found:
        raise NotFoundStop(f"nothing is kept of job {job}: none of its attempts failed, or it has expired")
    return tuple(sorted(found, key=lambda each: (each.attempt or 0, each.kept.kept_at, each.kept.path)))


def of_attempt(found: Sequence[Found], number: int) -> tuple[Found, ...]:
    """Those of one attempt.

    Raises:
        NotFoundStop: nothing was kept of it.
    """
    chosen = tuple(each for each in found if each.attempt == number)
    if not chosen:
        there = ", ".join(str(n) for n in sorted({each.attempt for each in found if each.attempt}))
        raise NotFoundStop(f"nothing is kept of attempt {number}; of these there is: {there or 'none'}")
    return chosen


def named(found: Sequence[Found], name: str) -> KeptOutput:
    """The one copy of that path, or of that name: the file's own or the copy's.

    Raises:
        NotFoundStop: there is none, or more than one.
    """
    fits = [each.kept for each in found if name in {each.kept.path, each.kept.name, each.kept.original}]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        raise NotFoundStop(f"no kept output is called {name!r}: the paths are listed without --path")
    raise NotFoundStop(f"{len(fits)} kept outputs are called {name!r}: name its path, or an --attempt")


def content(settings: "Settings", kept: KeptOutput, lines: int | None) -> bytes:
    """The copy, or its last lines.

    Raises:
        Stop: it cannot be read.
    """
    try:
        data = KeptOutputs(settings.folder / "outputs").tail(kept, WHOLE)
    except OSError as error:
        raise Stop(f"{kept.path} cannot be read: {error.strerror}") from error
    return data if lines is None else b"".join(data.splitlines(keepends=True)[-lines:])


def safe(data: bytes) -> str:
    """The lines as a terminal can show them: nothing in a log moves its cursor."""
    return "\n".join(clean(line) for line in data.decode(errors="replace").splitlines())


def as_json(found: Sequence[Found]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "attempt": each.attempt,
            "job_id": each.kept.job_id,
            "incident": each.kept.incident,
            "file": each.kept.original,
            "kept_at": each.kept.kept_at.isoformat(),
            "bytes": each.kept.size,
            "path": each.kept.path,
        }
        for each in found
    ]


def tell(console: Console, found: Sequence[Found], now: datetime) -> None:
    """A line a copy."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("attempt", "job", "incident", "kept", "size", "path"):
        table.add_column(title, overflow="fold", no_wrap=title != "path")
    for each in found:
        kept = each.kept
        cells = (str(each.attempt or "?"), str(kept.job_id), kept.incident, local(kept.kept_at, now), size(kept.size))
        table.add_row(*map(words, cells), words(str(Path(kept.path))))
    console.print(table)
