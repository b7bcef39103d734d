"""How the channels stand by which people are told, and a labelled message to try one."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from relight.clients import notices_standing
from relight.config.notify import ChannelKind
from relight.config.reading import ConfigError
from relight.console.doctor_checks import Check, fail, ok, warn
from relight.console.errors import NotFoundStop, Stop
from relight.console.output import words
from relight.console.text import ago, count, local
from relight.domain.notices import Audience, Fact, Notice, Severity
from relight.domain.notices_channel import Message
from relight.domain.notices_channel import Standing as ChannelStanding

if TYPE_CHECKING:
    from relight.clients.ledger import Ledger
    from relight.clients.notices import NoticeChannel
    from relight.config.settings import Settings

_NAME = "notices"


async def standings(ledger: "Ledger", settings: "Settings") -> dict[str, ChannelStanding | None]:
    """Where each channel of the settings stands; None: nothing has followed the ledger for it yet."""
    return await notices_standing.standings(ledger, settings.cluster, settings.notify.channels)


def as_json(channels: dict[str, ChannelStanding | None]) -> dict[str, Any]:
    """For other programs."""
    return {
        name: {
            "messages": each.messages,
            "pending": each.undelivered,
            "given_up": each.refused,
            "last": each.last.isoformat() if each.last else None,
            "failing_since": each.failing.isoformat() if each.failing else None,
            "problem": each.problem,
        }
        if each is not None
        else None
        for name, each in channels.items()
    }


def lines(channels: dict[str, ChannelStanding | None], now: datetime) -> tuple[Text, ...]:
    """One line for each channel."""
    return tuple(_line(name, each, now) for name, each in channels.items())


def _line(name: str, standing: ChannelStanding | None, now: datetime) -> Text:
    if standing is None:
        return words(f"{name}: no worker has followed the ledger for it yet", "yellow")
    waits = f"; {count(len(standing.pending), 'notice')} waiting" if standing.pending else ""
    if standing.failing is not None:
        since = f"nothing gets through since {local(standing.failing, now)}"
        return words(f"{name}: {since}: {standing.problem}{waits}", "bold red", 300)
    last = f", the last {ago(standing.last, now)}" if standing.last else ""
    lost = f"; {count(standing.refused, 'message')} that it takes in no form" if standing.refused else ""
    return words(f"{name}: {standing.messages} sent{last}{waits}{lost}", "yellow" if lost else "")


# --- doctor -----------------------------------------------------------------------------------------------------------


async def check_channels(settings: "Settings") -> Sequence[Check]:
    """That each channel could send: its secret is there, and packages are. Nothing is sent."""
    channels = settings.notify.channels
    if not channels:
        return ()
    found = [await asyncio.to_thread(_check, settings, name) for name in channels]
    told = {about for each in channels.values() for about in each.about}
    if Audience.APPROVERS not in told:
        advice = "Give a channel about: [approvers], or plans expire unseen."
        found.append(warn(_NAME, "no channel tells approvers what waits for them", advice))
    return found


def _check(settings: "Settings", name: str) -> Check:
    at = settings.notify.channels[name]
    try:
        _set(settings, name).open()
    except ConfigError as error:
        return fail(_NAME, f"{name}: {error}", "Until then it tells nobody; nothing else waits for it.")
    about = ", ".join(at.about)
    where = f"slack {at.channel}" if at.kind is ChannelKind.SLACK and at.channel else str(at.kind)
    return ok(_NAME, f"{name}: {where}, for {about}; to try it: relight notify test {name}")


def _set(settings: "Settings", name: str) -> Any:
    from relight.clients.notices import Frame
    from relight.clients.notices_open import SetChannel

    frame = Frame(settings.cluster, settings.console.url.rstrip("/"))
    return SetChannel(settings.notify.channels[name], frame)


# --- trying it --------------------------------------------------------------------------------------------------------


class Tried(NamedTuple):
    """How a test message went."""

    channel: str
    good: bool
    text: str


async def try_channels(settings: "Settings", name: str, user: str, now: datetime) -> tuple[Tried, ...]:
    """Send a test message by one channel, or by all.

    Args:
        settings: name the channels.
        name: of one; empty: all.
        user: who tries it; who is mailed where each user gets the own notices.
        now: the time.

    Raises:
        Stop: there are none.
        NotFoundStop: there is none of that name.
    """
    known = settings.notify.channels
    if not known:
        raise Stop("the settings have no notify.channels\nWhat a channel needs: docs/notifications.md")
    if name and name not in known:
        raise NotFoundStop(f"no channel {name!r} in notify.channels; there are: {', '.join(known)}")
    return tuple([await _try(_set(settings, each), each, user, now) for each in ([name] if name else known)])


async def _try(channel: "NoticeChannel", name: str, user: str, now: datetime) -> Tried:
    from relight.clients.notices import NoticeError

    try:
        sent = await channel.send(_test(name, user, now))
        said = sent.text
        # A pager's alert is not left open; other channels take this as a second message, in the first one's thread.
        if sent.ref and said.startswith("PagerDuty"):
            over = _test(name, user, now).model_copy(update={"thread": sent.ref, "resolves": True})
            said = f"{said}; {(await channel.send(over)).text}"
    except NoticeError as error:
        return Tried(name, good=False, text=str(error))
    return Tried(name, good=True, text=said)


def _test(name: str, user: str, now: datetime) -> Message:
    facts = (Fact(name="What", text=f"{user} tries channel {name} of Relight: nothing has happened"),)
    title = "TEST: this is only a test"
    notice = Notice(
        id=f"test/{name}/{now.isoformat()}",
        at=now,
        topic="test",
        about=(Audience.OPERATORS,),
        severity=Severity.INFO,
        title=title,
        facts=facts,
    )
    fields = {"title": title, "severity": Severity.INFO, "facts": facts, "notices": (notice,)}
    return Message(id=notice.id, recipient=user, **fields)
