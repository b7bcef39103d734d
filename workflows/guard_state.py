"""What the guard carries, and what it makes of a fresh look: pure, beside the workflow."""

from datetime import datetime

from relight.activities import contracts as c
from relight.domain.breaker import Trip
from relight.domain.guard import LEAVE_LASTS, Case, Grant, Room, View, out_of_service, recent
from relight.domain.guard_standing import LONGEST_PAUSE, Pause, Standing

UNREADABLE = (
    "what the guard had written of pauses and the breaker cannot be read, so they may stand: a person must look"
)


def remember(state: c.GuardState, look: c.Look, now: datetime) -> c.GuardState:
    """The state with what the ledger knows: grants of the last hour, and, in a first run, pauses and breaker.

    Whoever has ended the run before must not have ended its counts; what cannot be read counts as an open breaker.
    """
    known = {(grant.node, grant.incident, grant.action, grant.at): grant for grant in (*look.grants, *state.grants)}
    grants = recent(sorted(known.values(), key=lambda grant: grant.at), now)
    standing = state.standing
    if standing.written_at is None:
        standing = look.standing.model_copy(update={"killed": "", "unknown": ""})
        if look.standing.unknown:
            standing = standing.model_copy(update={"trip": Trip(at=now, why=UNREADABLE), "written_at": now})
    if look.partitions:
        standing = standing.model_copy(update={"partitions": look.partitions, "seen_at": now})
    return state.model_copy(update={"grants": grants, "standing": standing})


def paused_before(by: str, now: datetime) -> Pause:
    """A pause of version 0.1, which had neither reason nor end."""
    return Pause(by=by, reason="paused before an upgrade", since=now, until=now + LONGEST_PAUSE)


def standing_now(state: c.GuardState, now: datetime) -> Standing:
    """The standing as it is written down now."""
    live = state.standing.paused(now)
    return state.standing.model_copy(
        update={"pauses": live, "grants": recent(state.grants, now), "written_at": now},
    )


def case(request: c.DrainRequest) -> Case:
    """What is asked for."""
    return Case(
        node=request.node,
        evidence=request.evidence,
        incident=request.incident.id,
        action=request.action,
        targets=request.targets,
        restarts=request.restarts,
    )


def view(node: str, look: c.Look, grants: tuple[Grant, ...], now: datetime) -> View:
    """What the look shows of one node, less what was granted since."""
    records = {record.name: record for record in look.nodes}
    record = records.get(node)
    pending = {g.node for g in grants if now - g.at < LEAVE_LASTS}
    mine = set(record.partitions) if record else set()
    room = look.room.get(node)
    since = pending - set(look.pending) - {node}
    return View(
        node=record,
        partitions=tuple(each for each in look.partitions if each.name in mine),
        domains=None if look.domains is None else look.domains.get(node),
        undrained_at=look.undrained.get(node),
        room=Room(needs=room.needs, spare=room.spare - len(since)) if room else None,
        unseen=tuple(n for n in pending if n not in records or not out_of_service(records[n])),
    )


def grant(request: c.DrainRequest, look: c.Look, now: datetime) -> Grant:
    """What counts against the limits once leave is given."""
    record = next((record for record in look.nodes if record.name == request.node), None)
    return Grant(
        node=request.node,
        incident=request.incident.id,
        at=now,
        action=request.action,
        partitions=record.partitions if record else (),
        domains=(look.domains or {}).get(request.node, ()),
    )


def details(state: c.GuardState, now: datetime) -> str:
    """What the Temporal web UI shows of the guard, in Markdown."""
    standing, lines = state.standing, []
    if standing.trip:
        lines.append(f"**The breaker is open since {standing.trip.at:%Y-%m-%d %H:%M} UTC.** {standing.trip}")
    lines += [f"**{pause}**" for pause in standing.paused(now)[:10]]
    used = len(recent(state.grants, now))
    lines.append(f"Leave granted {used} times in the last hour; {state.handled} requests in all.")
    return "\n\n".join(lines)
