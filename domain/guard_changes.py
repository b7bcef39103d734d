"""What a person's word makes of the guard's standing: pause, resume, reset the breaker. Pure; a word may be refused."""

import re
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.base import clip
from relight.domain.guard import wild
from relight.domain.guard_standing import LONGEST_PAUSE, MOST_PAUSES, SHORTEST_PAUSE, Pause, Reset, Standing
from relight.domain.human import spoken

MOST_WORDS = 300
"""Characters of a name or a reason that are kept."""
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")


class Change(NamedTuple):
    """The standing after a person's word, and what is written down of it."""

    standing: Standing
    what: str = ""
    text: str = ""
    by: str = ""
    problem: str = ""
    """Why nothing was changed."""


def pause(
    standing: Standing, *, by: str, reason: str, lasts: timedelta, now: datetime, partition: str = "", node: str = ""
) -> Change:
    """Observe only, for a while; a pause of the same scope is replaced."""
    made = Pause(
        by=clip(by.strip(), MOST_WORDS),
        reason=clip(reason.strip(), MOST_WORDS),
        since=now,
        until=now + min(max(lasts, timedelta(0)), LONGEST_PAUSE),
        partition=clip(partition, MOST_WORDS),
        node=clip(node, MOST_WORDS),
    )
    others = tuple(each for each in standing.paused(now) if each.where != made.where)
    problem = _unsaid(by, reason) or _no_scope(partition, node)
    if not SHORTEST_PAUSE <= lasts <= LONGEST_PAUSE:
        problem = f"a pause lasts from {spoken(SHORTEST_PAUSE)} to {spoken(LONGEST_PAUSE)}"
    elif len(others) >= MOST_PAUSES:
        problem = f"there are {MOST_PAUSES} pauses already: pause a partition, or the cluster"
    if problem:
        return Change(standing, problem=problem)
    return Change(standing.model_copy(update={"pauses": (*others, made)}), "paused", str(made), made.by)


def resume(standing: Standing, *, by: str, now: datetime, partition: str = "", node: str = "") -> Change:
    """End the pause of exactly this scope."""
    scope = Pause(by=by, reason="", since=now, until=now, partition=partition, node=node).where
    live = standing.paused(now)
    ended = next((each for each in live if each.where == scope), None)
    if ended is None:
        others = ", ".join(each.where for each in live[:5])
        return Change(standing, problem=f"{scope} is not paused" + (f"; paused: {others}" if others else ""))
    left = tuple(each for each in live if each is not ended)
    text = f"{scope} is resumed by {clip(by, MOST_WORDS)}; it was paused by {ended.by}: {ended.reason}"
    return Change(standing.model_copy(update={"pauses": left}), "resumed", text, clip(by, MOST_WORDS))


def reset(standing: Standing, *, by: str, reason: str, now: datetime) -> Change:
    """Close the breaker. What began before neither counts nor is carried out later."""
    trip = standing.trip
    problem = "the breaker is not open" if trip is None else _unsaid(by, reason)
    if problem or trip is None:
        return Change(standing, problem=problem)
    made = Reset(at=now, by=clip(by.strip(), MOST_WORDS), reason=clip(reason.strip(), MOST_WORDS))
    text = f"reset by {made.by}: {made.reason}; it was open since {trip.at:%Y-%m-%d %H:%M} UTC: {trip.why}"
    return Change(standing.model_copy(update={"trip": None, "reset": made}), "reset", text, made.by)


def _unsaid(by: str, reason: str) -> str:
    if not by.strip():
        return "say who you are"
    return "" if reason.strip() else "say why: a reason is needed"


def _no_scope(partition: str, node: str) -> str:
    if partition and node:
        return "pause a partition or a node, not both"
    if partition and not _PARTITION.fullmatch(partition):
        return f"not one plain partition name: {clip(partition, 60)!r}"
    return wild(node) if node else ""
