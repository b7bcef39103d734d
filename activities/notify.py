"""Activities by which people are told: follow the ledger for one channel, and send one message.

Nothing of a recovery waits for them or knows of them: they read the ledger, and write only where the channel stands.
A channel that is down holds up itself alone; what it has not been told yet waits in the ledger.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from temporalio import activity
from temporalio.exceptions import ApplicationError

from relight.activities import contracts as c
from relight.activities.site import Site, poll
from relight.clients.notices import (
    NoticeChannel,
    NoticeError,
    NoticeNotAllowedError,
    NoticeNotSentError,
    NoticeRefusedError,
    Receipt,
)
from relight.domain.base import clip
from relight.domain.ledger import Change, Entry, Row, RowKind
from relight.domain.notices import OF_INCIDENTS, TELLING, Notice, notice_of
from relight.domain.notices_channel import (
    Message,
    Standing,
    Wishes,
    after,
    cursor_name,
    due,
    due_at,
    failed,
    given_up,
    room,
    take,
)

LOOK_AGAIN = timedelta(seconds=2)
RUN_FOR = timedelta(hours=6)
"""Then the activity ends and is begun anew: a retry goes by the newest settings."""
WRITTEN_EVERY = 500
"""Rows that tell nobody anything, after which the place is written down all the same."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=5)
"""Between two tries of a channel that does not say when to come again."""
_TITLE = 120


class Outlet(NamedTuple):
    """A channel, and what it is for."""

    channel: NoticeChannel
    wishes: Wishes


class Notify:
    """Tells people by the channels of a cluster.

    Args:
        site: the cluster.
        outlets: by the name of the channel in the settings.
    """

    def __init__(self, site: Site, outlets: Mapping[str, Outlet]) -> None:
        self._site = site
        self._outlets = outlets

    @activity.defn(name=c.GATHER_NOTICES.name)
    async def gather(self, arg: c.NotifyInput) -> c.ToSend:
        """Follow the ledger until there is something to send and it may be sent."""
        outlet = self._outlets.get(arg.channel)
        if outlet is None:
            return c.ToSend(gone=True)
        name = cursor_name(arg.cluster, arg.channel)
        written = standing = await self._standing(name)
        ends, generation = self._site.clock() + RUN_FOR, 0
        while (now := self._site.clock()) < ends:
            standing = await self._read(standing, outlet.wishes)
            if standing != written and _worth_writing(written, standing):
                await self._write(name, standing)
                written = standing
            if (message := due(standing, outlet.wishes, now)) is not None:
                return c.ToSend(title=clip(message.title, _TITLE))
            generation += 1
            next_ = due_at(standing, outlet.wishes, now)
            await poll(self._site, min(LOOK_AGAIN, next_ - now) if next_ else LOOK_AGAIN, generation)
        return c.ToSend()

    async def _read(self, standing: Standing, wishes: Wishes) -> Standing:
        """The standing with the next rows read, as many as there is room for what they may tell."""
        since = standing.since if standing.seq == 0 else None
        limit = room(standing)
        rows = await self._site.ledger.rows(after=standing.seq, since=since, limit=limit) if limit > 0 else ()
        told = [(row.seq, await self._told(row)) for row in rows]
        return take(standing, told, wishes, self._site.clock())

    async def _told(self, row: Row) -> Notice | None:
        if row.cluster != self._site.cluster or row.kind not in TELLING:
            return None
        known = await self._site.ledger.incident(row.incident) if row.kind in OF_INCIDENTS and row.incident else None
        return notice_of(row, known)

    @activity.defn(name=c.SEND_NOTICE.name)
    async def send(self, arg: c.NotifyInput) -> c.NoticeSent:
        """Send the next message; what it is stands in the ledger before, and that it is sent afterwards."""
        outlet = self._outlets.get(arg.channel)
        if outlet is None:
            return c.NoticeSent(text="the settings have no such channel any more")
        name = cursor_name(arg.cluster, arg.channel)
        standing = await self._standing(name)
        message = due(standing, outlet.wishes, self._site.clock())
        if message is None:
            return c.NoticeSent(text="nothing is left to be sent")
        standing = standing.model_copy(update={"sending": message})
        await self._write(name, standing)
        try:
            receipt = await _sent(outlet.channel, message)
        except NoticeRefusedError as error:
            await self._give_up(arg, name, standing, message, error)
            return c.NoticeSent(text=f"given up: {error}")
        except NoticeError as error:
            await self._write(name, failed(standing, str(error)[:300], self._site.clock()))
            again = _again(error, activity.info().attempt)
            raise ApplicationError(str(error)[:300], type=type(error).__name__, next_retry_delay=again) from error
        await self._write(name, after(standing, message, receipt.ref, self._site.clock()))
        return c.NoticeSent(text=clip(receipt.text, 200))

    async def _give_up(
        self, arg: c.NotifyInput, name: str, standing: Standing, message: Message, error: NoticeError
    ) -> None:
        """What a channel takes in no form must not hold up the rest; the ledger keeps that somebody was not told."""
        text = f"channel {arg.channel} takes this in no form, and nobody was told by it: {message.title} ({error})"
        entry = Entry(
            id=f"{name}/refused/{message.id}"[:300],
            kind=RowKind.NOTE,
            at=self._site.clock(),
            cluster=arg.cluster,
            incident=message.notices[0].incident,
            body={"text": text[:500]},
        )
        activity.logger.error("%s", text)
        cursors = {name: given_up(standing, message).model_dump(mode="json")}
        await self._site.ledger.commit(Change(entries=(entry,), cursors=cursors))

    async def _standing(self, name: str) -> Standing:
        """As the ledger has it; a channel that is new begins now, with nothing of before."""
        known = await self._site.ledger.cursor(name)
        if known is not None:
            return Standing.model_validate(known)
        fresh = Standing(since=self._site.clock())
        await self._write(name, fresh)
        return fresh

    async def _write(self, name: str, standing: Standing) -> None:
        await self._site.ledger.commit(Change(cursors={name: standing.model_dump(mode="json")}))


async def _sent(channel: NoticeChannel, message: Message) -> Receipt:
    """Sent as it is, or, where that is not taken, as plainly as can be."""
    try:
        return await channel.send(message)
    except NoticeRefusedError:
        return await channel.send(message, plain=True)


def _worth_writing(written: Standing, standing: Standing) -> bool:
    """More than the number of a row that tells nobody anything."""
    moved = standing.seq - written.seq
    return moved >= WRITTEN_EVERY or standing != written.model_copy(update={"seq": standing.seq})


def _again(error: NoticeError, attempt: int) -> timedelta:
    """When to try again: as the channel says, else at ever longer intervals."""
    if isinstance(error, NoticeNotAllowedError):
        return LONGEST_PAUSE
    asked = error.again if isinstance(error, NoticeNotSentError) else None
    return asked or min(FIRST_PAUSE * 2 ** min(attempt - 1, 10), LONGEST_PAUSE)
