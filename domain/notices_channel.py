"""Where one channel stands with its notices: what waits to be sent, in which threads, and how much at a time. Pure.

The standing is one value, kept in the ledger as a cursor and replaced as a whole: whatever dies in between, what is
there says which rows are still to be read and which notices are still to be sent. A message that was sent and not yet
noted is sent again, with the same id; none is lost.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from relight.domain.base import Value, short_hash
from relight.domain.notices import Audience, Fact, Notice, Severity, at_least

_V = TypeVar("_V")
WINDOW = timedelta(minutes=1)
"""In which `Wishes.most` messages go to one recipient; and how long notices gather after a digest."""
REPEAT = timedelta(hours=1)
"""How often what waits for people, and what is told `seldom`, is told again."""
MOST_PENDING = 200
"""Notices that wait; while there are so many, no more rows are read: they wait in the ledger."""
MOST_THREADS = 500
MOST_WAITING = 100
MOST_SELDOM = 500
MOST_RECIPIENTS = 1000


class Wishes(Value):
    """What a channel is for."""

    about: tuple[Audience, ...] = (Audience.OPERATORS, Audience.APPROVERS)
    least: Severity = Severity.INFO
    most: int = 10
    """Messages a minute to one recipient; what is more becomes a digest."""
    each_user: bool = False
    """True where each job's user gets the own notices, and nobody else's."""
    alerts: bool = False
    """True where a topic is an alert that is raised once and resolved at its end (a pager)."""


class Thread(Value):
    """How a topic goes on in the channel."""

    ref: str
    """The channel's own name of what it continues: Slack's `ts`, a message id, an alert's key."""
    open: bool = True
    """The topic has not ended: what comes next belongs to it."""
    held: bool = False
    """A person must do something: its end resolves no alert, and it stays open."""


class Waiting(Value):
    """A notice by which people were asked, and who have not answered yet."""

    notice: Notice
    told: datetime
    times: int = 0
    """How often it was repeated."""


class Message(Value):
    """What is sent at once: one notice, or a digest of many."""

    id: str
    """The same when it is sent again."""
    recipient: str = ""
    """The user whom it is for; empty: whoever reads the channel."""
    title: str
    severity: Severity
    facts: tuple[Fact, ...]
    notices: tuple[Notice, ...]
    thread: str = ""
    """What it continues; empty: it begins a thread."""
    resolves: bool = False
    """The alert that `thread` names is over."""
    quiet: bool = False
    """It disturbs nobody, and is not counted."""

    @property
    def digest(self) -> bool:
        """True where it stands for several notices."""
        return len(self.notices) > 1

    @property
    def at(self) -> datetime:
        """When the newest of its notices was made."""
        return self.notices[-1].at


class Standing(Value):
    """Where one channel stands."""

    since: datetime
    """Set up then: what was written before is not sent."""
    seq: int = 0
    """The newest row that was read."""
    pending: tuple[Notice, ...] = ()
    """Still to be sent, oldest first."""
    sending: Message | None = None
    """On its way: whether it got through is not known yet. Sent again, it is the same message."""
    threads: dict[str, Thread] = {}
    waiting: dict[str, Waiting] = {}
    told: dict[str, datetime] = {}
    """When what is told `seldom` was last told."""
    sent: dict[str, tuple[datetime, ...]] = {}
    """By recipient, the messages of the last minute."""
    digests: dict[str, datetime] = {}
    """By recipient, when the last digest went out."""
    messages: int = 0
    """Sent in all."""
    last: datetime | None = None
    """When the last was."""
    failing: datetime | None = None
    """Since when nothing can be sent; None: nothing is known to be wrong."""
    problem: str = ""
    refused: int = 0
    """Messages that the channel takes in no form, and that were given up."""

    @property
    def undelivered(self) -> int:
        """Notices that wait; beyond `MOST_PENDING` they wait in the ledger, uncounted."""
        return len(self.pending)


def cursor_name(cluster: str, channel: str) -> str:
    """Under which the ledger keeps a channel's standing."""
    return f"notify/{cluster}/{channel}"


# --- taking in ------------------------------------------------------------------------------------------------------


def room(standing: Standing) -> int:
    """How many more notices may wait."""
    return MOST_PENDING - len(standing.pending)


def take(standing: Standing, read: Sequence[tuple[int, Notice | None]], wishes: Wishes, now: datetime) -> Standing:
    """The standing once these rows are read.

    Args:
        standing: before.
        read: by row, its number and what it tells; at most `room` of them.
        wishes: what the channel is for.
        now: the time.
    """
    for seq, notice in read:
        standing = standing.model_copy(update={"seq": seq})
        if notice is not None:
            standing = _heard(standing, notice, wishes, now)
    return _reminded(standing, now)


def _heard(standing: Standing, notice: Notice, wishes: Wishes, now: datetime) -> Standing:
    waiting = dict(standing.waiting)
    if notice.settles or notice.waits:
        waiting.pop(notice.topic, None)
    wanted = _wanted(standing, notice, wishes, now)
    if wanted and notice.waits:
        waiting = _newest({**waiting, notice.topic: Waiting(notice=notice, told=now)}, MOST_WAITING)
    standing = standing.model_copy(update={"waiting": waiting})
    if not wanted:
        return standing
    told = _newest({**standing.told, notice.seldom: now}, MOST_SELDOM) if notice.seldom else standing.told
    return standing.model_copy(update={"pending": (*standing.pending, notice), "told": told})


def _wanted(standing: Standing, notice: Notice, wishes: Wishes, now: datetime) -> bool:
    if not set(notice.about) & set(wishes.about) or (wishes.each_user and not notice.owner):
        return False
    thread = standing.threads.get(notice.topic)
    known = (thread is not None and thread.open) or any(each.topic == notice.topic for each in standing.pending)
    if notice.ends and known:
        return True
    if notice.if_told or (notice.ends and wishes.alerts):
        return False  # nobody has heard of it, or nothing is to be resolved
    last = standing.told.get(notice.seldom) if notice.seldom else None
    if last is not None and now - last < REPEAT:
        return False
    return at_least(notice.severity, wishes.least)


def _reminded(standing: Standing, now: datetime) -> Standing:
    """With what waits for people told again, at most once an hour, for as long as an answer counts."""
    waiting: dict[str, Waiting] = {}
    again: list[Notice] = []
    for topic, each in standing.waiting.items():
        if each.notice.until is not None and each.notice.until <= now:
            continue
        if now - each.told < REPEAT or room(standing) <= len(again):
            waiting[topic] = each
            continue
        times = each.times + 1
        title = f"still waiting: {each.notice.title}"
        again.append(each.notice.model_copy(update={"id": f"{each.notice.id}/{times}", "title": title, "at": now}))
        waiting[topic] = each.model_copy(update={"told": now, "times": times})
    if not again and len(waiting) == len(standing.waiting):
        return standing
    return standing.model_copy(update={"waiting": waiting, "pending": (*standing.pending, *again)})


# --- sending --------------------------------------------------------------------------------------------------------


def due(standing: Standing, wishes: Wishes, now: datetime) -> Message | None:
    """What is to be sent now; None where nothing is, or where it would be too much at once."""
    if standing.sending is not None:
        return standing.sending
    if (end := _quiet_end(standing, wishes)) is not None:
        return _single(standing, end, "").model_copy(update={"quiet": True})
    for recipient, group in _by_recipient(standing.pending, wishes).items():
        if now < _not_before(standing, recipient, wishes, now):
            continue
        left = wishes.most - len(_recent(standing, recipient, now))
        if len(group) <= left:
            return _single(standing, group[0], recipient)
        fitting = [each for each in group if not (wishes.alerts and each.ends)]
        return _digest(fitting, recipient) if len(fitting) > 1 else _single(standing, group[0], recipient)
    return None


def due_at(standing: Standing, wishes: Wishes, now: datetime) -> datetime | None:
    """When the next message may be sent; None where none waits."""
    if standing.sending is not None or _quiet_end(standing, wishes) is not None:
        return now
    groups = _by_recipient(standing.pending, wishes)
    return min((_not_before(standing, recipient, wishes, now) for recipient in groups), default=None)


def after(standing: Standing, message: Message, ref: str, now: datetime) -> Standing:
    """The standing once the message is sent.

    Args:
        standing: before.
        message: as `due` made it.
        ref: the channel's own name of it, by which its thread goes on; empty where it has none.
        now: the time.
    """
    gone = {each.id for each in message.notices}
    threads = dict(standing.threads)
    for notice in message.notices:
        old = threads.pop(notice.topic, None)
        going_on = old if old is not None and old.open else None
        held = notice.calls or (going_on is not None and going_on.held)
        name = going_on.ref if going_on and going_on.ref else ref
        threads[notice.topic] = Thread(ref=name, open=held or not notice.ends, held=held)
    recent = {who: kept for who in standing.sent if (kept := _recent(standing, who, now))}
    if not message.quiet:
        recent[message.recipient] = (*recent.get(message.recipient, ()), now)
    digests = {who: at for who, at in standing.digests.items() if now - at < WINDOW}
    if message.digest:
        digests[message.recipient] = now
    return standing.model_copy(
        update={
            "pending": tuple(each for each in standing.pending if each.id not in gone),
            "sending": None,
            "threads": _newest(threads, MOST_THREADS),
            "sent": _newest(recent, MOST_RECIPIENTS),
            "digests": digests,
            "messages": standing.messages + 1,
            "last": now,
            "failing": None,
            "problem": "",
        }
    )


def given_up(standing: Standing, message: Message) -> Standing:
    """The standing once it is clear that the channel takes the message in no form."""
    gone = {each.id for each in message.notices}
    left = tuple(each for each in standing.pending if each.id not in gone)
    return standing.model_copy(update={"pending": left, "sending": None, "refused": standing.refused + 1})


def failed(standing: Standing, problem: str, now: datetime) -> Standing:
    """The standing after a try that came to nothing: nothing is forgotten."""
    return standing.model_copy(update={"failing": standing.failing or now, "problem": problem})


def _quiet_end(standing: Standing, wishes: Wishes) -> Notice | None:
    """The end of an alert, which disturbs nobody and need not wait; what its topic still has to say goes first."""
    firsts: dict[str, Notice] = {}
    for notice in standing.pending if wishes.alerts else ():
        firsts.setdefault(notice.topic, notice)
    return next((first for first in firsts.values() if first.ends), None)


def _by_recipient(pending: Iterable[Notice], wishes: Wishes) -> dict[str, list[Notice]]:
    groups: dict[str, list[Notice]] = {}
    for notice in pending:
        groups.setdefault(notice.owner if wishes.each_user else "", []).append(notice)
    return groups


def _recent(standing: Standing, recipient: str, now: datetime) -> tuple[datetime, ...]:
    return tuple(at for at in standing.sent.get(recipient, ()) if now - at < WINDOW)


def _not_before(standing: Standing, recipient: str, wishes: Wishes, now: datetime) -> datetime:
    """When the recipient may get the next message."""
    recent = _recent(standing, recipient, now)
    gathered = standing.digests[recipient] + WINDOW if recipient in standing.digests else now
    return max(gathered, recent[0] + WINDOW if len(recent) >= wishes.most else now)


def _single(standing: Standing, notice: Notice, recipient: str) -> Message:
    thread = standing.threads.get(notice.topic)
    # What happens again after its end begins anew: nobody looks into the old thread.
    ref = thread.ref if thread is not None and thread.open else ""
    others = (each for topic, each in standing.threads.items() if topic != notice.topic)
    shared = any(each.open and each.ref == ref for each in others)
    resolves = notice.ends and bool(ref) and thread is not None and not thread.held and not shared
    return Message(
        id=notice.id,
        recipient=recipient,
        title=notice.title,
        severity=notice.severity,
        facts=notice.facts,
        notices=(notice,),
        thread=ref,
        resolves=resolves,
    )


def _digest(group: Sequence[Notice], recipient: str) -> Message:
    """All that waits, in one: of each topic the newest notice, what people are asked for first."""
    newest = {each.topic: each for each in group}
    ordered = sorted(newest.values(), key=lambda each: (not each.waits, -_weight(each), each.at))
    worst = max(group, key=_weight).severity
    waiting = sum(each.waits for each in newest.values())
    asked = f", {waiting} waiting for people" if waiting else ""
    return Message(
        id="digest/" + short_hash("\n".join(each.id for each in group), 16),
        recipient=recipient,
        title=f"{len(group)} notices about {len(newest)} incidents, nodes or detectors{asked}",
        severity=worst,
        facts=tuple(Fact(name=each.incident or each.node or str(each.severity), text=each.title) for each in ordered),
        notices=tuple(group),
    )


def _weight(notice: Notice) -> int:
    return tuple(Severity).index(notice.severity)


def _newest(values: dict[str, _V], most: int) -> dict[str, _V]:
    """The last `most` that were put in."""
    return dict(list(values.items())[-most:])
