"""Flight-recorder dumps of an attempt's ranks, where its batch script says where they are."""

import asyncio
from typing import NamedTuple

from relight.activities.site import Site, beating
from relight.attribution.flight import LARGEST, Dump, FlightError, read_dump
from relight.attribution.flight_search import recorded
from relight.attribution.sources import Recorded
from relight.domain.attempts import Attempt
from relight.domain.base import clip
from relight.domain.ranks import dump_files, rank_nodes

TRIED = 64
"""Where so many ranks left no dump, the others are not looked for: the job ended without a stall."""
TOLD = 4
"""Dumps that could not be read, of which the reason is told."""


class Dumps(NamedTuple):
    """What they say, and why some could not be read."""

    recorded: tuple[Recorded, ...] = ()
    unreadable: tuple[str, ...] = ()


async def flight_dumps(site: Site, attempt: Attempt) -> Dumps:
    """Read all dumps of the attempt; those of an earlier one, which lie at the same place, are left out."""
    files = dump_files(attempt)
    if not files:
        return Dumps()
    async with beating():
        return await asyncio.to_thread(_read, site, attempt, files)


def _read(site: Site, attempt: Attempt, files: dict[int, str]) -> Dumps:
    began = attempt.record.start_time or attempt.key.submit_time
    dumps: list[Dump] = []
    unreadable: list[str] = []
    for rank, path in files.items():
        if rank >= TRIED and not dumps:
            break
        try:
            with site.logs.open(path) as stream:
                dump = read_dump(stream.read(LARGEST + 1), rank)
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable.append(clip(f"{path}: {error.strerror or error}", 300))
        except FlightError as error:
            unreadable.append(clip(f"{path}: not a flight-recorder dump: {error}", 300))
        else:
            dumps += [dump] if dump.newest >= began.timestamp() else []
    # A dump that is there and cannot be read says that its rank was alive: nobody is missing for it.
    ranks = () if unreadable else rank_nodes(attempt)
    found = recorded(dumps, ranks) if dumps else None
    more = len(unreadable) - TOLD
    return Dumps(
        recorded=(found,) if found else (),
        unreadable=(*unreadable[:TOLD], *((f"{more} more flight-recorder dumps",) if more > 0 else ())),
    )
