"""How the guard stands, as those who plan and act read it, and the kill switch: looked at each time, never kept."""

from datetime import datetime, timedelta

from pydantic import ValidationError

from relight.activities.site import Site
from relight.clients.kill_switch import killed
from relight.domain.guard_standing import Standing, standing_cursor

NEVER_REFUSED = frozenset({"allow", "undrain", "release"})
"""What undoes something of ours, by the word in its intent: an exclusion or a drain taken back, a hold undone."""
ON_NODES = frozenset({"drain", "down"})


class StoppedError(Exception):
    """A person's word, or the breaker, stands against this change; trying again does not help."""


async def written(site: Site) -> Standing:
    """The guard's standing by the ledger. What cannot be understood is unknown, never good.

    Raises:
        LedgerError: when the ledger does not answer.
    """
    value = await site.ledger.cursor(standing_cursor(site.cluster))
    try:
        return Standing.model_validate(value) if value else Standing()
    except ValidationError:
        return Standing(unknown="what the guard wrote into the ledger cannot be read")


async def standing(site: Site) -> Standing:
    """The same with the kill switch.

    Raises:
        LedgerError: when the ledger does not answer.
        KillSwitchUnknownError: when the kill switch cannot be looked for. Nobody plans or acts by that: Temporal tries
            the activity again, so that the incident waits instead of ending.
    """
    known = await written(site)
    return known.model_copy(update={"killed": await killed(site.kill_switch)})


async def check_write(site: Site, what: str, node: str = "") -> None:
    """The last look before a change to the outside.

    The kill switch stops everything but what undoes. A pause or an open breaker stops what takes a node out of service;
    a restart that is half done is finished, since a job left in between is worse than either.

    Raises:
        StoppedError: when it must not be written.
        KillSwitchUnknownError: when that cannot be told now; LedgerError and SlurmError likewise. Trying again helps.
    """
    if what in NEVER_REFUSED:
        return
    if why := await killed(site.kill_switch):
        raise StoppedError(f"the kill switch is on: {why}")
    if what in ON_NODES:
        now = site.clock()
        known = await written(site)
        # That it began before a reset has been looked at when leave was given, minutes ago.
        partitions = await _partitions(site, node) if any(pause.partition for pause in known.paused(now)) else ()
        if why := known.unknown or known.stops_node(now, _after_reset(known, now), node, partitions):
            raise StoppedError(f"{what} of {node}: {why}")


async def _partitions(site: Site, node: str) -> tuple[str, ...]:
    return (await site.slurm.node(node)).partitions


def _after_reset(known: Standing, now: datetime) -> datetime:
    return now if known.reset is None or known.reset.at < now else known.reset.at + timedelta(microseconds=1)
