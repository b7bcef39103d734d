"""Following the ledger for a channel, and sending: nothing of before, nothing lost, one that is down alone."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from relight.activities import contracts as c
from relight.activities.notify import LONGEST_PAUSE, Notify, Outlet
from relight.clients.notices import NoticeNotAllowedError, NoticeNotSentError, NoticeRefusedError, Receipt
from relight.domain.ledger import Change, RowKind
from relight.domain.notices_channel import Standing, Wishes, cursor_name

OPS, MAIL = c.NotifyInput(cluster="test", channel="ops"), c.NotifyInput(cluster="test", channel="mail")


class Fake:
    """A channel that keeps what it is sent, and fails as a test says."""

    def __init__(self):
        self.taken, self.errors = [], []

    async def send(self, message, *, plain=False):
        if self.errors and (error := self.errors.pop(0)):
            raise error
        self.taken.append((message.id, message.title, plain))
        return Receipt("taken", f"ref-{len(self.taken)}")


class Channels:
    """Two channels of a site, by the real activities over a real ledger."""

    def __init__(self, world):
        self.world, self.ops, self.mail = world, Fake(), Fake()
        self.rows = 0
        self.renew()

    def renew(self):
        """Another process."""
        outlets = {"ops": Outlet(self.ops, Wishes()), "mail": Outlet(self.mail, Wishes())}
        self.notify = Notify(self.world.site, outlets)

    async def row(self, text="3 nodes"):
        self.rows += 1
        body = {"what": "tripped", "text": text}
        entry = self.world.site.entry(f"guard/{self.rows}", RowKind.GUARD, body)
        await self.world.ledger.real.commit(Change(entries=(entry,)))

    async def gather(self, arg=OPS):
        return await self.world.run(self.notify.gather, arg)

    async def send(self, arg=OPS):
        return await self.world.run(self.notify.send, arg)

    async def standing(self, arg=OPS):
        return Standing.model_validate(await self.world.ledger.cursor(cursor_name(arg.cluster, arg.channel)))


@pytest.fixture
def channels(world):
    return Channels(world)


async def test_what_was_before_the_channel_is_not_sent_and_what_comes_is(channels):
    """Also what came while nobody followed."""
    await channels.row("old")
    channels.world.clock.on(1)
    channels.world.after(3, channels.row)
    assert (await channels.gather()).title == "the breaker is open"
    assert (await channels.send()).text == "taken"
    await channels.row()
    channels.renew()
    assert (await channels.gather()).title
    await channels.send()
    assert [id_ for id_, _, _ in channels.ops.taken] == ["test/2", "test/3"]
    assert (await channels.standing()).messages == 2


async def test_a_channel_that_is_down_holds_up_no_other_and_is_told(channels):
    """Where it stands says since when, and why; what it has not been told is sent once it is back, the same."""
    for arg in (OPS, MAIL):
        channels.world.after(1, channels.row)
        await channels.gather(arg)
    channels.ops.errors = [NoticeNotSentError("Slack: no answer within 10 s"), NoticeNotAllowedError("invalid_auth")]
    for error, again in (("no answer", timedelta(seconds=1)), ("invalid_auth", LONGEST_PAUSE)):
        with pytest.raises(ApplicationError, match=error) as told:
            await channels.send()
        assert told.value.next_retry_delay == again
        assert error in (await channels.standing()).problem
    assert (await channels.standing()).failing == channels.world.clock.now
    await channels.send(MAIL)
    assert len(channels.mail.taken) == 1
    await channels.send()
    assert len(channels.ops.taken) == 1
    assert (await channels.standing()).failing is None


async def test_how_long_to_wait_is_the_channels_to_say(channels):
    """A 429 with Retry-After becomes Temporal's next delay."""
    channels.world.after(1, channels.row)
    await channels.gather()
    channels.ops.errors = [NoticeNotSentError("limits our rate", timedelta(seconds=17))]
    with pytest.raises(ApplicationError) as told:
        await channels.send()
    assert told.value.next_retry_delay == timedelta(seconds=17)


@pytest.mark.parametrize("sends", [1, 2])
async def test_a_message_that_may_have_got_through_is_sent_again_as_the_same(channels, sends):
    """The ledger goes away between the channel's answer and its note; the id is what receivers tell repeats by."""
    channels.world.after(1, channels.row)
    await channels.gather()
    real = channels.ops.send

    async def dying(message, *, plain=False):
        receipt = await real(message, plain=plain)
        channels.world.ledger.down = True
        return receipt

    channels.ops.send = dying
    for _ in range(sends):
        with pytest.raises(Exception, match="does not answer"):
            await channels.send()
        channels.world.ledger.down = False
    channels.ops.send = real
    channels.renew()
    await channels.row()
    await channels.send()
    assert [id_ for id_, _, _ in channels.ops.taken] == ["test/1"] * (sends + 1)
    assert (await channels.standing()).sending is None


async def test_what_is_taken_in_no_form_is_written_down_and_holds_up_nothing(channels):
    """First tried as plainly as can be."""
    channels.world.after(1, channels.row)
    await channels.gather()
    channels.ops.errors = [NoticeRefusedError("invalid_blocks")]
    await channels.send()
    assert channels.ops.taken == [("test/1", "the breaker is open", True)]
    await channels.row()
    await channels.gather()
    channels.ops.errors = [NoticeRefusedError("invalid_blocks"), NoticeRefusedError("no_text")]
    assert "given up" in (await channels.send()).text
    (note,) = await channels.world.ledger.rows(kind=RowKind.NOTE)
    assert "nobody was told by it: the breaker is open (no_text)" in note.body["text"]
    standing = await channels.standing()
    assert (standing.refused, standing.pending) == (1, ())


async def test_a_channel_that_is_gone_from_the_settings_ends(channels):
    """Its workflow has nothing to do any more."""
    assert (await channels.gather(c.NotifyInput(cluster="test", channel="pager"))).gone
