"""Where a channel stands: nothing lost, nothing told twice but after a crash, never too much at once."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.notices import Audience, Notice, Severity
from relight.domain.notices_channel import (
    MOST_PENDING,
    MOST_THREADS,
    REPEAT,
    WINDOW,
    Standing,
    Wishes,
    after,
    due,
    due_at,
    failed,
    given_up,
    room,
    take,
)

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
ALL = Wishes(about=tuple(Audience), most=4)
PAGER = ALL.model_copy(update={"alerts": True})
EACH = Wishes(about=(Audience.USERS,), each_user=True, most=4)


def notice(seq, topic="i1", **fields):
    base = {"about": (Audience.OPERATORS, Audience.USERS), "severity": Severity.WARNING, "owner": "ada"}
    return Notice(
        **{"id": f"main/{seq}", "at": NOW, "topic": topic, "incident": topic, "title": f"t{seq}", **base, **fields}
    )


def heard(*notices, standing=None, wishes=ALL, now=NOW):
    start = standing or Standing(since=NOW)
    return take(start, [(start.seq + n, each) for n, each in enumerate(notices, 1)], wishes, now)


def drained(standing, wishes=ALL, now=NOW):
    """All that goes out without a failure, with when; time passes only where the rules make it wait."""
    out = []
    while (at := due_at(standing, wishes, now)) is not None:
        now = max(now, at)
        message = due(standing, wishes, now)
        out.append((now, message))
        standing = after(standing, message, f"ref-{len(out)}", now)
    return out, standing


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("row"), st.integers(0, 5), st.sampled_from(["plain", "waits", "ends", "nothing"]), st.integers(1, 4)
        ),
        st.sampled_from([("gather",), ("die",), ("minute",), ("second",)]),
        st.tuples(st.just("send"), st.sampled_from(["sent", "lost answer", "no answer"])),
    ),
    min_size=20,
    max_size=60,
)


class Receiver:
    """A channel by the rules, whose process dies and whose answers are lost when a test says so."""

    def __init__(self, wishes):
        self.wishes, self.now, self.rows, self.ledger = wishes, NOW, [], Standing(since=NOW)
        self.received = []  # messages, by id and the notices in them
        self.wanted = []  # notices that were taken in

    def row(self, topic, kind, times):
        for _ in range(times):
            self._row(topic, kind)

    def _row(self, topic, kind):
        kinds = {"plain": {}, "waits": {"waits": True}, "ends": {"ends": True, "settles": True}}
        made = notice(len(self.rows) + 1, f"i{topic}", owner=f"u{topic % 2}", **kinds[kind]) if kind in kinds else None
        self.rows.append(made)

    def gather(self):
        seq, before = self.ledger.seq, {each.id for each in self.ledger.pending}
        fresh = list(enumerate(self.rows, 1))[seq : seq + room(self.ledger)]
        self.ledger = take(self.ledger, fresh, self.wishes, self.now)
        self.wanted += [each.id for each in self.ledger.pending if each.id not in before]

    def send(self, how="sent"):
        self.gather()
        message = due(self.ledger, self.wishes, self.now)
        if message is None:
            return
        self.ledger = self.ledger.model_copy(update={"sending": message})
        if how != "no answer":
            self.received.append((message.id, tuple(each.id for each in message.notices)))
        done = how == "sent"
        self.ledger = after(self.ledger, message, message.id, self.now) if done else failed(self.ledger, how, self.now)

    def die(self):
        """All that is left is what the ledger holds."""
        self.ledger = Standing.model_validate_json(self.ledger.model_dump_json())


@given(EVENTS, st.sampled_from([ALL, PAGER, EACH]))
def test_nothing_is_lost_and_nothing_told_twice_whenever_it_dies(events, wishes):
    """Every notice that is wanted reaches the receiver once, or as the same message again where an answer was lost."""
    run = Receiver(wishes)
    for event, *args in events:
        if event in {"minute", "second"}:
            run.now += WINDOW if event == "minute" else timedelta(seconds=1)
        else:
            getattr(run, event)(*args)
    run.gather()
    while (at := due_at(run.ledger, wishes, run.now)) is not None:
        run.now = max(run.now, at)
        run.send()
    messages = dict(run.received)
    told = [each for notices in messages.values() for each in notices]
    assert sorted(told) == sorted(run.wanted), "each once, over all different messages"
    assert all(messages[id_] == notices for id_, notices in run.received), "the same id is the same message"
    if wishes is ALL:
        assert set(run.wanted) == {each.id for each in run.rows if each is not None}


@pytest.mark.parametrize("first", [1, 6], ids=["one notice", "a digest"])
def test_a_message_whose_answer_was_lost_is_sent_again_as_it_was(first):
    """Whatever came meanwhile, and however many could go out by then."""
    standing = heard(*(notice(n) for n in range(first)))
    message = due(standing, ALL, NOW)
    standing = failed(standing.model_copy(update={"sending": message}), "no answer", NOW)
    standing = heard(*(notice(n) for n in range(10, 16)), standing=standing)
    assert due(standing, ALL, NOW + WINDOW) == message
    assert len(after(standing, message, "", NOW).pending) == 6


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 59)), min_size=1, max_size=120), st.integers(1, 5))
def test_a_burst_is_bounded(rows, most):
    """Never more than so many messages in any minute, however many rows come; and all of them are told."""
    wishes = ALL.model_copy(update={"most": most})
    standing, sent, now = Standing(since=NOW), [], NOW
    for seq, (topic, pause) in enumerate(rows, 1):
        now += timedelta(seconds=pause / 10)
        standing = take(standing, [(seq, notice(seq, f"i{topic}"))], wishes, now)
        while (message := due(standing, wishes, now)) is not None:
            sent.append((now, message))
            standing = after(standing, message, "", now)
    rest, _ = drained(standing, wishes, now)
    sent += rest
    assert sum(len(message.notices) for _, message in sent) == len(rows)
    times = [at for at, _ in sent]
    assert all(sum(at <= each < at + WINDOW for each in times) <= most for at in times)


def test_200_incidents_at_once_become_a_few_messages():
    """Three notices each, as fast as the ledger is read."""
    many = [notice(n, f"i{n % 200}") for n in range(600)]
    standing, out, now = Standing(since=NOW), [], NOW
    while many:
        batch, many = many[: room(standing)], many[room(standing) :]
        standing = heard(*batch, standing=standing, now=now)
        sent, standing = drained(standing, now=now)
        out += sent
        now = sent[-1][0]
    assert len(out) <= 4
    assert sum(len(message.notices) for _, message in out) == 600
    assert all(message.digest for _, message in out)
    assert "200 notices about 200 incidents" in out[0][1].title


def test_one_recipients_burst_holds_up_nobody_else():
    """In a channel that tells each job's user, limits and digests are each user's own."""
    mine = [notice(n, f"i{n}", owner="ada") for n in range(50)]
    standing = heard(*mine, notice(99, "i99", owner="bob"), notice(100, "i100", owner=""), wishes=EACH)
    out, _ = drained(standing, EACH)
    assert [(m.recipient, len(m.notices)) for at, m in out] == [("ada", 50), ("bob", 1)]
    assert all(at == NOW for at, _ in out)


def test_a_thread_goes_on_until_its_topic_ends_and_what_comes_later_begins_anew():
    """By the channel's own name of the first message."""
    standing = heard(notice(1), notice(2), notice(3, ends=True), notice(4))
    out, standing = drained(standing)
    assert [message.thread for _, message in out] == ["", "ref-1", "ref-1", ""]
    assert standing.threads["i1"].ref == "ref-4"


def test_a_pagers_alert_is_resolved_at_the_end_unless_a_person_must_do_something():
    """Ends of what was never raised are not sent."""
    standing = heard(notice(1), notice(2, ends=True), notice(3, "i2", ends=True), wishes=PAGER)
    out, _ = drained(standing, PAGER)
    assert [(message.notices[0].id, message.resolves) for _, message in out] == [("main/1", False), ("main/2", True)]
    out, standing = drained(heard(notice(1), notice(2, calls=True), notice(3, ends=True), wishes=PAGER), PAGER)
    assert [message.resolves for _, message in out] == [False, False, False]
    assert standing.threads["i1"].held


def test_a_pagers_digest_is_resolved_when_all_of_it_is_over():
    """The ends count against no limit: they disturb nobody."""
    standing = heard(*(notice(n, f"i{n}") for n in range(6)), wishes=PAGER)
    (first,), standing = drained(standing, PAGER)
    assert first[1].digest
    standing = heard(*(notice(9, f"i{n}", ends=True) for n in range(6)), standing=standing, wishes=PAGER)
    standing = standing.model_copy(
        update={"pending": tuple(e.model_copy(update={"id": f"e{n}"}) for n, e in enumerate(standing.pending))}
    )
    out, _ = drained(standing, PAGER)
    assert [(at, message.resolves, message.thread) for at, message in out] == [
        *[(NOW, False, "ref-1")] * 5,
        (NOW, True, "ref-1"),
    ]


def test_what_waits_is_told_again_each_hour_until_it_is_settled_or_too_late():
    """One answer, or the end of the time, and it is quiet."""
    asked = notice(1, waits=True, until=NOW + timedelta(hours=2, minutes=30))
    _, standing = drained(heard(asked))
    almost = take(standing, [], ALL, NOW + REPEAT - timedelta(seconds=1))
    assert almost.pending == ()
    again = take(standing, [], ALL, NOW + REPEAT)
    assert [each.title for each in again.pending] == ["still waiting: t1"]
    assert take(again, [], ALL, NOW + REPEAT + timedelta(minutes=59)).pending == again.pending
    settled = heard(notice(2, settles=True), standing=again, now=NOW + REPEAT)
    assert settled.waiting == {}
    late = take(again, [], ALL, NOW + 3 * REPEAT)
    assert late.waiting == {}
    assert len(late.pending) == 1


@pytest.mark.parametrize(
    ("fields", "wishes", "wanted"),
    [
        ({}, ALL, True),
        ({"about": (Audience.APPROVERS,)}, EACH, False),
        ({"owner": ""}, EACH, False),
        ({"severity": Severity.INFO}, Wishes(least=Severity.WARNING), False),
        ({"severity": Severity.CRITICAL}, Wishes(least=Severity.WARNING), True),
        ({"if_told": True}, ALL, False),
    ],
    ids=["plain", "for others", "of nobody", "too mild", "severe", "news only to who knows"],
)
def test_a_channel_gets_what_it_is_for(fields, wishes, wanted):
    """And nothing else."""
    assert bool(heard(notice(1, **fields), wishes=wishes).pending) is wanted


def test_what_is_told_seldom_is_told_once_an_hour():
    """A node's same fault, a detector that blinks."""
    standing = heard(*(notice(n, seldom="fault/n1") for n in range(5)), notice(9, seldom="fault/n2"))
    assert len(standing.pending) == 2
    assert len(heard(notice(10, seldom="fault/n1"), standing=standing, now=NOW + REPEAT).pending) == 3


def test_what_is_kept_is_bounded():
    """Weeks of incidents, none of which ends, and a channel that is down."""
    standing = heard(*(notice(n, f"i{n}", waits=True, seldom=f"s{n}") for n in range(MOST_PENDING)))
    assert room(standing) == 0
    for n in range(20):
        _, standing = drained(standing, now=NOW + n * WINDOW)
        standing = heard(*(notice(1, f"i{n}.{m}") for m in range(60)), standing=standing, now=NOW + n * WINDOW)
    assert len(standing.threads) <= MOST_THREADS
    assert len(standing.waiting) <= 100


def test_what_is_taken_in_no_form_is_counted_and_holds_up_nothing():
    """The next goes out."""
    standing = heard(notice(1), notice(2))
    message = due(standing, ALL, NOW)
    standing = given_up(standing.model_copy(update={"sending": message}), message)
    assert standing.refused == 1
    assert due(standing, ALL, NOW).title == "t2"
