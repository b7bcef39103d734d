"""What an open incident is trying right now: the one thing that Temporal knows and the ledger does not."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from relight.config.settings import Settings
from relight.console.context import connected
from relight.console.errors import Stop
from relight.domain.incidents import Incident

ANSWER_WITHIN = timedelta(seconds=3)


class Trying(NamedTuple):
    """An activity under way."""

    name: str
    attempt: int
    failure: str
    """Why the last try failed; empty where none did."""


class Now(NamedTuple):
    """What goes on, or why that is not known."""

    trying: tuple[Trying, ...] = ()
    unknown: str = ""


async def ask(settings: Settings, incident: Incident) -> Now:
    """Ask Temporal, for a few seconds at most; the story is told whether or not it answers."""
    from temporalio.service import RPCError

    try:
        async with asyncio.timeout(ANSWER_WITHIN.total_seconds()):
            client = await connected(settings)
            handle = client.get_workflow_handle(incident.workflow_id, run_id=incident.run_id)
            described = await handle.describe(rpc_timeout=ANSWER_WITHIN)
    except TimeoutError:
        return Now(unknown="Temporal does not answer")
    except Stop as error:
        return Now(unknown=error.message.partition("\n")[0])
    except RPCError as error:
        return Now(unknown=f"Temporal: {error.message}")
    status = described.status
    if status is not None and status.name != "RUNNING":
        return Now(unknown=f"its workflow is {status.name}: nobody works on it any more, and the ledger was not told")
    return Now(
        tuple(
            Trying(each.activity_type.name, each.attempt, each.last_failure.message)
            for each in described.raw_description.pending_activities
        ),
    )


def sentences(at: Now) -> Sequence[tuple[str, bool]]:
    """Each with whether it is bad news. A first try under way is not worth a word."""
    if at.unknown:
        return ((f"What is being tried right now is not known: {at.unknown}", True),)
    return tuple(
        (f"{each.name} is tried for the {_ordinal(each.attempt)} time; the last failed: {each.failure}", True)
        if each.failure
        else (f"{each.name} is under way", False)
        for each in at.trying
    )


def _ordinal(number: int) -> str:
    if number % 100 in {11, 12, 13}:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
