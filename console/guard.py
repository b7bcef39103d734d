"""How the guard stands, for people: pauses, the breaker, the kill switch, and what of the limits is used."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from rich.text import Text

from relight.clients.kill_switch import KillSwitchUnknownError, killed
from relight.clients.ledger import Ledger
from relight.config.settings import Settings
from relight.console.errors import NotFoundStop, RefusedStop, Stop
from relight.console.output import words
from relight.console.text import ago, count, local, span
from relight.domain.base import Value
from relight.domain.guard import NodeAct, part, recent
from relight.domain.guard_standing import Standing, standing_cursor
from relight.domain.policy import Policy

if TYPE_CHECKING:
    from temporalio.client import Client

ANSWER_WITHIN_S = 20
_SHOWN = 5
"""Pauses and partitions that are listed one by one."""


class Guarded(NamedTuple):
    """How the guard stands, and the limits it goes by."""

    standing: Standing
    policy: Policy
    kill_file: Path
    now: datetime

    @property
    def stopped(self) -> bool:
        """True when a person is called, or has stopped everything."""
        return bool(self.standing.trip or self.standing.killed or self.standing.unknown)


async def collect(ledger: Ledger, settings: Settings, now: datetime) -> Guarded:
    """Read it from the ledger, and look for the kill switch as this user may."""
    value = await ledger.cursor(standing_cursor(settings.cluster))
    try:
        known = Standing.model_validate(value or {})
    except ValidationError:
        known = Standing(unknown="what the guard wrote into the ledger cannot be read")
    try:
        known = known.model_copy(update={"killed": await killed(settings.kill_file)})
    except KillSwitchUnknownError as error:
        known = known.model_copy(update={"unknown": known.unknown or str(error)})
    return Guarded(known, settings.policy, settings.kill_file, now)


def as_json(guarded: Guarded) -> dict[str, Any]:
    """For other programs; keys are only ever added."""
    standing, now, policy = guarded.standing, guarded.now, guarded.policy
    grants = recent(standing.grants, now)
    return {
        "breaker": {
            "open": standing.trip is not None,
            "since": standing.trip.at.isoformat() if standing.trip else None,
            "why": standing.trip.why if standing.trip else "",
            "nodes": list(standing.trip.nodes) if standing.trip else [],
            "incidents": list(standing.trip.incidents) if standing.trip else [],
            "last_reset": standing.reset.model_dump(mode="json") if standing.reset else None,
        },
        "pauses": [pause.model_dump(mode="json") for pause in standing.paused(now)],
        "kill_switch": {"file": str(guarded.kill_file), "on": bool(standing.killed), "why": standing.killed},
        "unknown": standing.unknown,
        "used": {
            "drains": {"used": _used(grants, NodeAct.DRAIN), "of": policy.drains_per_hour},
            "downs": {"used": _used(grants, NodeAct.DOWN), "of": policy.downs_per_hour},
        },
        "partitions": [
            {**each.model_dump(), "limit": part(policy.most_unavailable, each.nodes)} for each in standing.partitions
        ],
        "seen_at": standing.seen_at.isoformat() if standing.seen_at else None,
    }


def lines(guarded: Guarded) -> tuple[Text, ...]:
    """The guard's part of `relight status`."""
    standing, now = guarded.standing, guarded.now
    told = []
    if standing.killed:
        told.append(words(f"the kill switch is on, nothing is touched: {standing.killed}", "bold red", 300))
    if standing.unknown:
        told.append(words(f"{standing.unknown}: nothing is done unasked", "bold red"))
    if standing.trip:
        since = f"{local(standing.trip.at, now)} ({ago(standing.trip.at, now)})"
        told.append(words(f"the breaker is open since {since}: {standing.trip}", "bold red", 600))
    paused = standing.paused(now)
    told += [
        words(f"{p.where} is paused by {p.by} for {span(p.until - now)} more: {p.reason}", "yellow", 300)
        for p in paused[:_SHOWN]
    ]
    if len(paused) > _SHOWN:
        told.append(words(f"and {len(paused) - _SHOWN} more pauses", "yellow"))
    return (*told, *_limits(guarded))


def _limits(guarded: Guarded) -> tuple[Text, ...]:
    standing, policy = guarded.standing, guarded.policy
    if standing.written_at is None:
        return () if standing.unknown else (words("the guard has not written to this ledger yet", "dim"),)
    grants = recent(standing.grants, guarded.now)
    used = [f"{_used(grants, NodeAct.DRAIN)} of {count(policy.drains_per_hour, 'drain')} this hour"]
    if downs := _used(grants, NodeAct.DOWN):
        used.append(f"{downs} of {count(policy.downs_per_hour, 'down')}")
    told = [words(f"{', '.join(used)} used")]
    fullest = sorted(standing.partitions, key=lambda each: each.out / part(policy.most_unavailable, each.nodes))
    seen = f", seen {ago(standing.seen_at, guarded.now)}" if standing.seen_at else ""
    for each in reversed(fullest[-_SHOWN:]):
        limit = part(policy.most_unavailable, each.nodes)
        out = f"{each.out} of {count(each.nodes, 'node')} of partition {each.name} unavailable"
        style = "yellow" if each.out >= limit else "dim"
        told.append(words(f"{out} ({policy.most_unavailable} = {limit}{seen})", style))
    return tuple(told)


def _used(grants: tuple[Any, ...], action: NodeAct) -> int:
    return sum(grant.action is action for grant in grants)


async def say(client: "Client", cluster: str, update: str, word: Value) -> str:
    """Send a person's word to the guard; returns its answer.

    Raises:
        RefusedStop: when it makes no sense to the guard.
        NotFoundStop: when no guard runs.
        Stop: when no answer came: it may count all the same.
    """
    from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
    from temporalio.service import RPCError, RPCStatusCode

    from relight.activities.contracts import guard_id

    handle = client.get_workflow_handle(guard_id(cluster))
    hint = "Is `relight worker controller` running? relight doctor"
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            answer: str = await handle.execute_update(update, word, result_type=str)
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
        late = f"no answer within {ANSWER_WITHIN_S} s: it may count all the same\nLook: relight status"
        raise Stop(f"{late}; {hint}") from error
    except WorkflowUpdateFailedError as error:
        raise RefusedStop(str(error.cause or error)) from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotFoundStop(f"no guard runs for cluster {cluster}\n{hint}") from error
        raise Stop(f"the guard cannot be reached: {error.message}\n{hint}") from error
    return answer
