"""Rounds of the follower: what hangs or waits holds up nobody else, and what is written in one is bounded."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from relight.activities import follow_checks, follow_written
from relight.activities.follow import Follow
from relight.activities.follow_checks import Checks
from relight.activities.follow_reading import Reading
from relight.clients.log_readers import LogReaders
from relight.clients.logs import Chunk, Cursor, LogUnreadableError
from relight.domain.attempts import progress_cursor
from relight.domain.evidence import Interruption
from relight.domain.ledger import Change, RowKind

LONG = timedelta(seconds=60)


def line(step, loss=0.5):
    return f"step {step}/100000 | loss {loss} | step_time 1.0 s\n"


class Places:
    """Logs of places that are the first folder of a path; simulated: it answers when it is let."""

    def __init__(self):
        self.asked: list[list[str]] = []
        self.stuck: dict[str, asyncio.Event] = {}
        self.most = 100

    def place(self, path):
        return path.split("/")[1]

    async def read_many(self, asked):
        self.asked.append([each.path for each in asked])
        if stuck := self.stuck.get(self.place(asked[0].path)):
            await stuck.wait()
        chunk = Chunk(lines=("hello",), cursor=Cursor(inode=1, offset=6))
        return [chunk if number < self.most else None for number in range(len(asked))]


@pytest.fixture
async def attempts(world):
    """Attempts with outputs in two places, followed."""
    for name in ("/a/1", "/b/1", "/a/2"):
        await world.train(nodes=1, stdout=name, name=name)
    followed = {}
    world.follow._reading = Reading(Places(), LONG)
    await world.run(world.follow._round, followed)
    return [*followed.values()]


async def test_a_place_that_does_not_answer_holds_up_only_its_own(world, attempts):
    """Others are taken in the round; its files count as unread, and it is not asked again before it has answered."""
    places = Places()
    places.stuck["a"] = asyncio.Event()
    reading = Reading(places, timedelta(seconds=0.05))
    first, _, third = attempts
    outcomes = await reading.look(attempts, world.clock())
    assert [turn.path for turn, _ in outcomes] == ["/b/1"]
    assert (first.more, third.more) == (True, True)
    outcomes = await reading.look(attempts, world.clock())
    assert [turn.path for turn, _ in outcomes] == ["/b/1"]
    assert places.asked == [["/a/1", "/a/2"], ["/b/1"], ["/b/1"]]
    places.stuck["a"].set()
    await asyncio.wait(reading._under_way.values())
    outcomes = await reading.look(attempts, world.clock())
    assert [turn.path for turn, _ in outcomes] == ["/a/1", "/a/2", "/b/1"]
    await reading.close()


async def test_an_answer_that_is_cut_is_gone_on_with(world, attempts):
    """In the same round, for those that were not come to; the next round begins with them."""
    places = Places()
    places.most = 1
    reading = Reading(places, LONG)
    outcomes = await reading.look(attempts, world.clock())
    came = [turn.path for turn, found in outcomes if found]
    while outcomes:
        outcomes = await reading.go_on(outcomes)
        came += [turn.path for turn, found in outcomes if found]
    assert sorted(came) == ["/a/1", "/a/2", "/b/1"]
    for each in attempts:
        each.standing[each.files[0]].unread = each is attempts[2]
    places.asked.clear()
    await reading.look(attempts, world.clock())
    assert places.asked[0] == ["/a/2", "/a/1"]
    await reading.close()


async def test_a_place_that_refuses_is_not_asked_again_in_the_round(world, attempts):
    """It has said enough."""
    places = Places()

    async def refuses(asked):
        places.asked.append(asked)
        return [LogUnreadableError("no"), *[None] * (len(asked) - 1)]

    places.read_many = refuses
    reading = Reading(places, LONG)
    outcomes = await reading.look(attempts, world.clock())
    assert await reading.go_on(outcomes) == []
    assert len(places.asked) == 2


async def test_a_mount_that_hangs_is_said_and_its_silence_is_no_hang(world, tmp_path):
    """Through the follower: its files are unread, then unreadable; other jobs are followed on."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        await world.train(nodes=1, stdout=str(tmp_path / name / "out"), name=name)
    logs, hung = world.site.logs, asyncio.Event()
    logs.place = lambda path: path.split("/")[-2]
    read = logs.read_many

    async def read_many(asked):
        if "/a/" in asked[0].path and not hung.is_set():
            await hung.wait()
        return await read(asked)

    logs.read_many = read_many
    follow = Follow(world.site, patience=timedelta(seconds=0.2))
    followed = {}
    for step in range(3):
        for name in ("a", "b"):
            with (tmp_path / name / "out").open("a") as file:
                file.write(line(step))
        await world.run(follow._round, followed)
        world.clock.on(1)
    a, b = followed.values()
    assert (a.more, a.progress.last_step, b.progress.last_step) == (True, None, 2)
    hung.set()
    await asyncio.wait(follow._reading._under_way.values())
    await world.run(follow._round, followed)
    assert (a.more, a.progress.last_step) == (False, 2)
    await follow._reading.close()


async def test_outputs_are_followed_by_processes(world, tmp_path):
    """As the controller does it: with links, a file that is emptied, one that is missing."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "train.out").symlink_to("elsewhere/train.out")
    attempt = await world.train(stderr=str(tmp_path / "none.err"))
    async with LogReaders() as logs:
        follow, followed = Follow(replace(world.site, logs=logs), patience=LONG), {}
        for text, step in ((line(1) + line(2), 2), (line(3), 3), ("", 3)):
            with (tmp_path / "elsewhere" / "train.out").open("a") as file:
                file.write(text)
            await world.run(follow._round, followed)
            assert (await world.site.progress(attempt.key)).last_step == step
        (tmp_path / "elsewhere" / "train.out").write_text(line(1))
        await world.run(follow._round, followed)
        assert (await world.site.progress(attempt.key)).last_step == 1
        assert await world.rows(RowKind.BLIND) == ()


# --- checks ---


async def test_a_check_that_waits_holds_up_nobody(attempts, monkeypatch):
    """It goes on in later rounds, and is not begun twice; the others are checked in each."""
    monkeypatch.setattr(follow_checks, "STARTED_TOGETHER", 1)
    answer, seen = asyncio.Event(), []

    async def check(each, everyone):
        assert len(everyone) == 3
        seen.append(each)
        if each is attempts[0]:
            await answer.wait()

    checks = Checks(check, timedelta(seconds=0.05))
    for _ in range(2):
        await checks.look(attempts)
        assert [*checks.under_way] == attempts[:1]
    assert seen == [*attempts, *attempts[1:]]
    answer.set()
    await asyncio.wait([*checks._under_way.values()])
    seen.clear()
    await checks.look(attempts)
    assert sorted(map(id, seen)) == sorted(map(id, attempts))
    assert not checks.under_way


async def test_where_checks_wait_a_round_ends_and_the_next_goes_on(attempts, monkeypatch):
    """At most so many wait at the same time; those that were not reached come first in the next round."""
    monkeypatch.setattr(follow_checks, "STARTED_TOGETHER", 1)
    monkeypatch.setattr(follow_checks, "WAITED_FOR", 1)
    answer, seen = asyncio.Event(), []

    async def check(each, _):
        seen.append(each)
        await answer.wait()

    checks = Checks(check, timedelta(seconds=0.05))
    await checks.look(attempts)
    assert seen == attempts[:1]
    answer.set()
    await checks.look(attempts)
    assert seen[1:3] == attempts[1:]
    await checks.close()


async def test_a_check_that_fails_is_not_passed_over(attempts):
    """The activity ends with its error, as for any other."""

    async def check(_, __):
        raise RuntimeError("the ledger is gone")

    checks = Checks(check, LONG)
    with pytest.raises(RuntimeError):
        await checks.look(attempts)
    await checks.close()


# --- what is written ---


@pytest.fixture
async def many(world, tmp_path, monkeypatch):
    """Four jobs, of which two are written in a round; `go` lets all step and follows them for a round."""
    monkeypatch.setattr(follow_written, "AT_ONCE", 2)
    monkeypatch.setattr(follow_written, "ROUNDS", 5)
    attempts = [
        await world.train(nodes=1, stdout=str(tmp_path / f"{number}.out"), name=f"j{number}") for number in range(4)
    ]
    followed = {}

    async def go(step, *, fresh=False, loss=0.5):
        if fresh:
            followed.clear()
        for number in range(len(attempts)):
            with (tmp_path / f"{number}.out").open("a") as file:
                file.write(line(step, loss))
        await world.run(world.follow._round, followed)
        world.clock.on(1)

    await go(0)
    return attempts, go


async def written(world, attempts):
    return [(await world.site.progress(each.key)).last_step for each in attempts]


async def test_positions_are_written_in_turn(world, many):
    """The first step of each at once, then so many in each round, those that have waited longest first."""
    attempts, go = many
    assert await written(world, attempts) == [0, 0, 0, 0]
    await go(1)
    assert sorted(await written(world, attempts)) == [0, 0, 1, 1]
    await go(2)
    assert sorted(await written(world, attempts)) == [1, 1, 2, 2]
    await go(3)
    assert sorted(await written(world, attempts)) == [2, 2, 3, 3]


async def test_what_somebody_waits_for_is_written_at_once(world, many, incident, ref):
    """The attempts of a job with an open incident, and one with news."""
    attempts, go = many
    opened = incident(ref(attempts[3]), attempts[3], world.clock())
    await world.ledger.commit(Change(incidents=(opened,)))
    for step in range(1, 4):
        await go(step)
        assert (await written(world, attempts))[3] == step


async def test_what_was_not_written_is_read_again_and_told_once(world, many):
    """Whenever the follower is killed."""
    attempts, go = many
    for step in range(1, 20):
        await go(step)
    for step in range(20, 32):
        await go(step, loss="nan", fresh=step % 3 == 0)
    followed = {}
    await world.run(world.follow._round, followed)
    assert [each.progress.last_step for each in followed.values()] == [31] * 4
    found = [d.id for d in await world.ledger.undelivered() if d.kind is Interruption.NUMERICS]
    assert sorted(found) == sorted(f"{each.key}/numerics/20" for each in attempts)


async def test_all_is_written_at_the_end(world, many):
    """A follower that ends by itself leaves nothing to be read again, and an attempt that has ended neither."""
    attempts, go = many
    await go(1)
    world.slurm.fail(attempts[0].key.job_id)
    world.slurm.fail(attempts[1].key.job_id)
    await world.look()
    await go(2)
    assert (await written(world, attempts))[:2] == [2, 2]


async def test_a_ledger_that_fails_loses_nothing(world, many):
    """What was found stays to be written, and what was learnt with it."""
    attempts, go = many
    for step in range(1, 10):
        await go(step)
    world.ledger.down = True
    for step in range(10, 14):
        with pytest.raises(Exception, match="does not answer"):
            await go(step, loss="nan")
    world.ledger.down = False
    await go(14, loss="nan")
    assert len([d for d in await world.ledger.undelivered() if d.kind is Interruption.NUMERICS]) == 4
    assert await world.ledger.cursor(progress_cursor(attempts[0].key))
