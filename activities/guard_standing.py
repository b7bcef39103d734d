"""How the guard stands, as those who plan and act read it, and the kill switch: looked at each time, never kept."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from relight.activities.site import Site
from relight.domain.base import clip
from relight.domain.guard_standing import Standing, standing_cursor

LOOKED_WITHIN = timedelta(seconds=5)
"""A kill switch on a mount that does not answer counts as on."""
NEVER_REFUSED = frozenset({"allow", "undrain", "release"})
"""What undoes something of ours, by the word in its intent: an exclusion or a drain taken back, a hold undone."""
ON_NODES = frozenset({"drain", "down"})


class StoppedError(Exception):
    """A person's word, or the breaker, stands against this change; trying again does not help."""


async def standing(site: Site) -> Standing:
    """The guard's standing by the ledger, with the kill switch. What cannot be understood is unknown, never good.

    Raises:
        LedgerError: when the ledger does not answer.
    """
    value = await site.ledger.cursor(standing_cursor(site.cluster))
    try:
        known = Standing.model_validate(value) if value else Standing()
    except ValidationError:
        known = Standing(unknown="what the guard wrote into the ledger cannot be read")
    return known.model_copy(update={"killed": await killed(site.kill_switch)})


async def killed(file: Path | None) -> str:
    """Why the kill switch counts as on; empty when it is off. It is on also where that cannot be found out."""
    if file is None:
        return ""
    try:
        async with asyncio.timeout(LOOKED_WITHIN.total_seconds()):
            return await asyncio.to_thread(_look, file)
    except TimeoutError:
        return f"{file} cannot be looked at: no answer within {LOOKED_WITHIN.seconds} s"


def _look(file: Path) -> str:
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{file} cannot be looked at: {error.strerror}"
    return f"{file} is there{_said(file)}"


def _said(file: Path) -> str:
    """The file's first line: why it was put there. Whatever it is, that it is there counts."""
    try:
        with file.open("rb") as opened:
            first = opened.read(400).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {clip(first[0], 200)}" if first else ""


async def check_write(site: Site, what: str, node: str = "") -> None:
    """The last look before a change to the outside.

    The kill switch stops everything but what undoes. A pause or an open breaker stops what takes a node out of service;
    a restart that is half done is finished, since a job left in between is worse than either.

    Raises:
        StoppedError: when it must not be written.
    """
    if what in NEVER_REFUSED:
        return
    if why := await killed(site.kill_switch):
        raise StoppedError(f"the kill switch is on: {why}")
    if what in ON_NODES:
        now = site.clock()
        known = await standing(site)
        # That it began before a reset has been looked at when leave was given, minutes ago.
        if why := known.unknown or known.stops_node(now, _after_reset(known, now), node, ()):
            raise StoppedError(f"{what} of {node}: {why}")


def _after_reset(known: Standing, now: datetime) -> datetime:
    return now if known.reset is None or known.reset.at < now else known.reset.at + timedelta(microseconds=1)
