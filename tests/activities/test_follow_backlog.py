"""What was printed while nobody looked is caught up with in bounded memory; what is over by then triggers nothing."""

from datetime import timedelta

import pytest

from relight.activities import follow_state
from relight.activities.follow_lines import Lines
from relight.clients.logs import LogUnreadableError
from relight.domain.evidence import Interruption
from relight.domain.findings import Learnt, learnt_cursor
from relight.domain.policy import Policy
from relight.domain.progress import HangPolicy
from relight.domain.rhythm import p99

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def line(step, seconds=1.0, loss=0.5):
    return f"step {step}/100000 | loss {loss} | step_time {seconds} s\n"


class Job:
    """A job that prints, followed second by second; `outage` lets time pass in which nobody follows."""

    def __init__(self, world, attempt):
        self.world, self.attempt, self.followed, self.step = world, attempt, {}, 0
        self.path = world.folder / "train.out"

    def add(self, text=""):
        with self.path.open("a") as file:
            file.write(text)

    def steps(self, count, **how):
        for _ in range(count):
            self.step += 1
            self.add(line(self.step, **how))

    async def run(self, rounds, *, steps=1, **how):
        for _ in range(rounds):
            self.steps(steps, **how)
            await self.world.run(self.world.follow._round, self.followed)
            self.world.clock.on(1)

    def outage(self, seconds):
        """The worker is down: what it had in memory is lost."""
        self.followed.clear()
        self.world.clock.on(seconds)

    @property
    def following(self):
        return self.followed[self.attempt.key]

    async def progress(self):
        return await self.world.site.progress(self.attempt.key)

    async def found(self, kind=None):
        return [d for d in await self.world.ledger.undelivered() if kind in (None, d.kind)]


@pytest.fixture
async def job(make_world):
    world = make_world(policy=Policy(hang=HangPolicy(floor=timedelta(seconds=30))))
    return Job(world, await world.train())


async def test_nothing_is_learnt_from_how_late_lines_are_read(job):
    """Neither an outage nor the quick reading after it is a gap between lines; the newest step counts at once."""
    await job.run(150)
    before = job.following.learnt.rhythm
    job.outage(3600)
    job.steps(400)
    await job.run(1)
    after = job.following.learnt.rhythm
    assert (await job.progress()).last_step == 551
    assert (after.peaks, after.peak, after.long) == (before.peaks, before.peak, ())
    assert after.in_block <= before.in_block
    await job.run(30)
    assert p99(job.following.learnt.rhythm) == 1.0
    assert await job.found() == []


async def test_a_first_look_at_a_job_that_has_run_for_long(job):
    """Its lines tell where it stands; its first gaps are not taken for its start-up."""
    job.steps(200)
    await job.run(1, steps=0)
    assert (await job.progress()).last_step == 200
    await job.run(20)
    rhythm = job.following.learnt.rhythm
    assert (rhythm.phases, p99(rhythm), rhythm.since) == ({}, 1.0, 1)


async def test_silence_begins_when_it_is_looked_at_again(job):
    """A job that has fallen silent in an outage is found as late as if it did so now."""
    await job.run(40)
    job.outage(3600)
    job.steps(5)
    await job.run(30, steps=0)
    assert await job.found() == []
    await job.run(3, steps=0)
    assert [d.kind for d in await job.found()] == [Interruption.HANG]


async def test_silence_begins_anew_when_a_file_can_be_read_again(job, monkeypatch):
    """While the file system hung, the job could print nothing."""
    await job.run(40)
    read = job.world.site.logs.read_new

    async def fails(path, _cursor):
        raise LogUnreadableError(f"{path}: the file system did not answer")

    monkeypatch.setattr(job.world.site.logs, "read_new", fails)
    await job.run(300, steps=0)
    monkeypatch.setattr(job.world.site.logs, "read_new", read)
    await job.run(29, steps=0)
    assert await job.found() == []
    await job.run(4, steps=0)
    assert len(await job.found(Interruption.HANG)) == 1


# --- fatal lines ---


@pytest.mark.parametrize("chunk", [1 << 20, 200])
async def test_an_old_fatal_line_with_steps_behind_it_is_over(job, monkeypatch, chunk):
    """However the reads cut it."""
    await job.run(40)
    job.outage(60)
    job.add(ECC)
    job.steps(30)
    read = job.world.site.logs.read_new
    monkeypatch.setattr(job.world.site.logs, "read_new", lambda path, at: read(path, at, max_bytes=chunk))
    await job.run(12, steps=0)
    assert not job.following.more
    assert job.following.fatal is None


async def test_a_fatal_line_that_is_the_newest_thing_counts(job):
    """The job died while nobody looked: it is found after 20 s instead of 30."""
    await job.run(40)
    job.outage(60)
    job.steps(30)
    job.add(ECC + "Traceback (most recent call last):\n")
    await job.run(20, steps=0)
    assert await job.found() == []
    await job.run(2, steps=0)
    (hang,) = await job.found()
    assert [e.signature for e in hang.evidence] == [None, "CUDA_ECC"]


async def test_a_fatal_line_outlives_the_follower(job):
    """Its place in the log is passed at once, so the line itself is kept; what follows it takes it back as ever."""
    await job.run(40)
    job.add(ECC)
    await job.run(1, steps=0)
    job.outage(2)
    await job.run(21, steps=0)
    (hang,) = await job.found()
    assert [e.signature for e in hang.evidence] == [None, "CUDA_ECC"]
    await job.run(1, steps=3)
    job.outage(2)
    await job.run(1, steps=0)
    assert job.following.fatal is None
    kept = await job.world.ledger.cursor(learnt_cursor(job.attempt.key))
    assert Learnt.model_validate(kept).fatal is None


async def test_far_behind_it_goes_on_near_the_end(job, monkeypatch):
    """Of megabytes a few hundred lines are read; a fatal line before them, and one known from before, are over."""
    await job.run(150)
    job.add(ECC)
    await job.run(1, steps=0)
    assert job.following.fatal
    job.outage(7200)
    job.add(ECC)
    job.steps(60_000)
    read, counted = Lines.read, []

    def count(self, lines, file, now):
        counted.append(len(lines))
        return read(self, lines, file, now)

    monkeypatch.setattr(Lines, "read", count)
    await job.run(1, steps=0)
    assert sum(counted) * len(line(60_000)) <= follow_state.FAR
    assert (await job.progress()).last_step == 60_150
    assert job.following.fatal is None
    await job.run(25)
    assert await job.found() == []


async def test_who_keeps_up_reads_everything(job, monkeypatch):
    """A flood of lines between two looks is not a backlog: what is in its midst is found."""
    await job.run(40)
    job.add("noise\n" * 20_000 + ECC + "noise\n" * 20_000)
    read = job.world.site.logs.read_new
    monkeypatch.setattr(job.world.site.logs, "read_new", lambda path, at: read(path, at, max_bytes=1 << 16))
    await job.run(5, steps=0)
    assert job.following.fatal


# --- findings ---


async def test_a_slow_down_that_is_over_is_not_told(job):
    """It began and ended while nobody looked."""
    await job.run(150)
    job.outage(600)
    job.steps(60, seconds=1.5)
    job.steps(120)
    await job.run(20)
    assert await job.found() == []
    assert (await job.progress()).slow_since is None


async def test_a_slow_down_that_stands_is_told(job):
    """It began while nobody looked, and lasts."""
    await job.run(150)
    job.outage(600)
    job.steps(60, seconds=1.5)
    await job.run(2, seconds=1.5)
    (slow,) = await job.found()
    assert slow.id == f"{job.attempt.key}/straggler/151"


@pytest.mark.parametrize("cut", [60, 1 << 20])
async def test_numbers_that_are_in_order_again_are_not_told(job, monkeypatch, cut):
    """However the reads cut it: nothing is told before all is read."""
    await job.run(60)
    job.outage(600)
    job.steps(10, loss="nan")
    job.steps(10)
    read = job.world.site.logs.read_new
    monkeypatch.setattr(job.world.site.logs, "read_new", lambda path, at: read(path, at, max_bytes=cut))
    await job.run(30, steps=0)
    assert not job.following.more
    assert (await job.progress()).last_step == 80
    assert await job.found() == []


async def test_what_was_left_out_makes_no_slow_down(job):
    """The first line behind a gap of thousands of steps is compared with the baseline alone."""
    await job.run(150)
    job.outage(7200)
    for _ in range(20_000):
        job.step += 1
    job.add("noise\n" * 30_000)
    job.steps(3, seconds=1.5)
    job.steps(40)
    await job.run(20)
    assert await job.found() == []
