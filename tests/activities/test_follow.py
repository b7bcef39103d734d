"""Outputs are followed as they grow, are emptied and go on, and silence is told from a job's own rhythm."""

from datetime import timedelta

import pytest

from relight.clients.logs import LogUnreadableError
from relight.domain.attempts import Progress, progress_cursor
from relight.domain.evidence import Interruption
from relight.domain.ledger import RowKind
from relight.domain.policy import Policy
from relight.domain.progress import CPU_FELL, HangPolicy
from relight.domain.slurm import JobState


def line(step):
    return f"step {step}/1000 | loss 0.5 | step_time 1.0 s\n"


class Output:
    """A job's output file."""

    def __init__(self, path):
        self.path = path

    def add(self, *steps, text=""):
        with self.path.open("a") as file:
            file.write(text + "".join(line(step) for step in steps))

    def empty(self):
        self.path.write_text("")


@pytest.fixture
def output(tmp_path):
    return Output(tmp_path / "train.out")


@pytest.fixture
def follow(world):
    """Follows for some rounds of half a second."""
    followed = {}

    async def call(rounds=1, *, fresh=False):
        if fresh:
            followed.clear()
        for _ in range(rounds):
            await world.run(world.follow._round, followed)
            world.clock.on(0.5)
        return followed

    return call


async def progress(world, attempt) -> Progress:
    return await world.site.progress(attempt.key)


async def test_steps_are_followed(world, output, follow):
    """The newest step and when it became visible."""
    attempt = await world.train()
    await follow()
    assert (await progress(world, attempt)).last_step is None
    output.add(1, 2)
    seen = world.clock.now
    await follow()
    found = await progress(world, attempt)
    assert (found.last_step, found.last_step_at) == (2, seen)
    await follow()
    assert (await progress(world, attempt)).last_step_at == seen
    output.add(3)
    await follow()
    assert (await progress(world, attempt)).last_step == 3


async def test_other_lines_are_no_progress(world, output, follow):
    """A job that prints is not a job that moves."""
    attempt = await world.train()
    output.add(1)
    await follow()
    before = await progress(world, attempt)
    output.add(text="WARNING: something\n")
    await follow()
    after = await progress(world, attempt)
    assert (after.last_step, after.last_step_at) == (before.last_step, before.last_step_at)
    assert after.files != before.files


async def test_half_a_line_is_waited_for(world, output, follow):
    """`step 12` may go on to be `step 128`."""
    attempt = await world.train()
    output.add(text=line(128)[:7])
    await follow()
    assert (await progress(world, attempt)).last_step is None
    output.add(text=line(128)[7:])
    await follow()
    assert (await progress(world, attempt)).last_step == 128


async def test_a_new_follower_goes_on_where_the_last_stood(world, output, follow):
    """Another worker reads nothing twice and forgets nothing."""
    attempt = await world.train()
    output.add(1, 2)
    await follow()
    seen = await progress(world, attempt)
    await follow(fresh=True)
    assert await progress(world, attempt) == seen
    output.add(3)
    await follow(fresh=True)
    assert (await progress(world, attempt)).last_step == 3


async def test_error_output_is_followed_too(world, output, follow, tmp_path):
    """Some trainers print their steps there."""
    attempt = await world.train(stderr=str(tmp_path / "train.err"))
    output.add(text="hello\n")
    (tmp_path / "train.err").write_text(line(4))
    await follow()
    assert (await progress(world, attempt)).last_step == 4


async def next_attempt(world, attempt):
    """Let the job be queued again and run."""
    await world.slurm.requeue(attempt.key.job_id)
    await world.look()
    world.clock.on(125)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    assert again.key != attempt.key
    return again


async def test_what_a_requeue_emptied_is_read_anew(world, output, follow):
    """The second attempt's steps are its own; the first attempt's progress stays as it was."""
    attempt = await world.train()
    output.add(*range(90, 101))
    await follow()
    output.empty()
    again = await next_attempt(world, attempt)
    await follow()
    assert (await progress(world, again)).last_step is None
    output.add(81)
    await follow()
    found = await progress(world, again)
    assert (found.last_step, found.files[str(output.path)].start) == (81, 0)
    assert (await progress(world, attempt)).last_step == 100


async def test_an_emptied_file_that_grew_longer_is_noticed(world, output, follow):
    """Its size alone does not show that it was emptied."""
    attempt = await world.train()
    output.add(*range(90, 101))
    await follow()
    output.empty()
    output.add(*range(1, 60))
    again = await next_attempt(world, attempt)
    await follow()
    found = await progress(world, again)
    assert (found.last_step, found.files[str(output.path)].start) == (59, 0)


async def test_the_first_attempts_steps_do_not_count_for_the_second(world, output, follow):
    """A job that appends keeps its old lines: the second attempt begins where the first one's output ended."""
    attempt = await world.train()
    output.add(*range(90, 101))
    await follow()
    again = await next_attempt(world, attempt)
    await follow()
    assert (await progress(world, again)).last_step is None
    end = output.path.stat().st_size
    output.add(81)
    await follow()
    found = await progress(world, again)
    assert (found.last_step, found.files[str(output.path)].start) == (81, end)


async def test_the_last_lines_of_an_ended_attempt_are_read(world, output, follow):
    """They may become visible only after its end; then it is let go."""
    attempt = await world.train()
    output.add(1)
    await follow()
    world.slurm.fail(attempt.key.job_id)
    await world.look()
    output.add(2)
    followed = await follow()
    assert (await progress(world, attempt)).last_step == 2
    assert not followed


async def test_a_missing_output_is_waited_for(world, output, follow):
    """It is not there yet: no blindness, and read once it comes."""
    attempt = await world.train()
    await follow(3)
    assert await world.rows(RowKind.BLIND) == ()
    output.add(1)
    await follow()
    assert (await progress(world, attempt)).last_step == 1


async def test_an_unreadable_output_is_said_once(world, output, follow, monkeypatch):
    """However often it is tried; and again when it became readable in between."""
    await world.train()
    output.add(1)
    read = world.site.logs.read_new

    async def fails(path, _cursor):
        raise LogUnreadableError(f"{path}: stale file handle")

    monkeypatch.setattr(world.site.logs, "read_new", fails)
    await follow(5)
    (row,) = await world.rows(RowKind.BLIND)
    assert "stale file handle" in row.body["why"]
    monkeypatch.setattr(world.site.logs, "read_new", read)
    await follow()
    monkeypatch.setattr(world.site.logs, "read_new", fails)
    await follow(5)
    assert len(await world.rows(RowKind.BLIND)) == 2


async def test_one_unreadable_output_of_two_is_said_once(world, output, follow, tmp_path):
    """The readable one does not make the other one news again and again."""
    (tmp_path / "err").mkdir()
    await world.train(stderr=str(tmp_path / "err"))
    output.add(1)
    await follow(5)
    assert len(await world.rows(RowKind.BLIND)) == 1


# --- silence ---


@pytest.fixture
def quick(make_world):
    """A site that waits 30 s for a job whose rhythm it knows, and a minute otherwise."""
    minute = timedelta(minutes=1)
    return make_world(policy=Policy(hang=HangPolicy(floor=timedelta(seconds=30), unlearned=minute, startup=minute)))


async def rounds(world, seconds, followed, *, step=None, output=None, cpu=None):
    """Let so many seconds pass, a round each; with `step`, a step becomes visible in each."""
    for _ in range(seconds):
        if step is not None:
            step += 1
            output.add(step)
        if cpu is not None:
            job_id = next(iter(world.slurm.job_records))
            world.slurm.cpu[job_id] = world.slurm.cpu.get(job_id, timedelta(0)) + timedelta(seconds=cpu)
        await world.run(world.follow._round, followed)
        world.clock.on(1)
    return step


async def hangs(world):
    return [d for d in await world.ledger.undelivered() if d.kind is Interruption.HANG]


async def test_a_job_that_steps_does_not_hang(quick, output):
    """For as long as it does."""
    await quick.train()
    await rounds(quick, 90, {}, step=0, output=output)
    assert await hangs(quick) == []


async def test_a_job_that_falls_silent_hangs_once(quick, output):
    """After the floor of 30 s, at the step where it stood; reported once, whoever looks again."""
    attempt = await quick.train()
    followed = {}
    await rounds(quick, 20, followed, step=0, output=output)
    await rounds(quick, 29, followed)
    assert await hangs(quick) == []
    await rounds(quick, 60, followed)
    (found,) = await hangs(quick)
    assert found.id == f"{attempt.key}/hang/20"
    assert found.detected_at - found.occurred_at == timedelta(seconds=30)
    await rounds(quick, 130, {})
    assert len(await hangs(quick)) == 1
    assert len(await quick.rows(RowKind.DETECTED)) == 1


async def test_output_that_is_not_a_step_does_not_hide_a_hang(quick, output):
    """A heartbeat thread that prints is not training."""
    await quick.train()
    followed = {}
    await rounds(quick, 20, followed, step=0, output=output)
    for _ in range(40):
        output.add(text="still alive\n")
        await rounds(quick, 1, followed)
    assert len(await hangs(quick)) == 1


async def test_a_job_that_never_stepped_does_not_hang(quick, output):
    """Nothing is known of its rhythm, nor that it prints steps at all."""
    await quick.train()
    output.add(text="hello\n")
    await rounds(quick, 200, {})
    assert await hangs(quick) == []


async def test_a_job_known_to_step_may_hang_before_its_first(quick, output):
    """Its earlier attempt stepped: the start-up limit holds."""
    attempt = await quick.train()
    followed = {}
    await rounds(quick, 3, followed, step=0, output=output)
    output.empty()
    again = await next_attempt(quick, attempt)
    await rounds(quick, 59, followed)
    assert await hangs(quick) == []
    await rounds(quick, 5, followed)
    assert [d.id for d in await hangs(quick)] == [f"{again.key}/hang/start"]


async def test_a_blind_follower_finds_no_hang(quick, output, monkeypatch):
    """Unreadable is not silent."""
    await quick.train()
    followed = {}
    await rounds(quick, 20, followed, step=0, output=output)

    async def fails(path, _cursor):
        raise LogUnreadableError(f"{path}: stale file handle")

    monkeypatch.setattr(quick.site.logs, "read_new", fails)
    await rounds(quick, 90, followed)
    assert await hangs(quick) == []


@pytest.mark.parametrize(("cpu", "witnesses"), [(0.0, [CPU_FELL]), (16.0, []), (None, [])])
async def test_cpu_use_is_the_second_witness(quick, output, cpu, witnesses):
    """Fallen away from the job's own baseline: a witness. Spinning on, or unknown: none."""
    await quick.train()
    followed = {}
    await rounds(quick, 40, followed, step=0, output=output, cpu=None if cpu is None else 16.0)
    await rounds(quick, 40, followed, cpu=cpu)
    (found,) = await hangs(quick)
    assert [e.signature for e in found.evidence if e.signature] == witnesses


async def test_an_ended_attempt_does_not_hang(quick, output):
    """Its end is another's to judge."""
    attempt = await quick.train()
    followed = {}
    await rounds(quick, 20, followed, step=0, output=output)
    quick.slurm.fail(attempt.key.job_id, state=JobState.COMPLETED, exit_code=0)
    await quick.look()
    await rounds(quick, 90, followed)
    assert await hangs(quick) == []
    assert not followed


async def test_progress_is_kept_under_its_name(world, output, follow):
    """Where other activities read it."""
    attempt = await world.train()
    output.add(7)
    await follow()
    assert (await world.ledger.cursor(progress_cursor(attempt.key)))["last_step"] == 7


async def test_what_was_learnt_of_a_job_outlives_the_follower(quick, output):
    """Another worker knows its rhythm at once: it waits 30 s again, not as long as for a job it has never seen."""
    await quick.train()
    await rounds(quick, 20, {}, step=0, output=output)
    again = {}
    await rounds(quick, 30, again)
    assert await hangs(quick) == []
    await rounds(quick, 2, again)
    assert len(await hangs(quick)) == 1


async def test_a_suspended_job_does_not_hang(quick, output):
    """Its silence begins anew when it goes on."""
    attempt = await quick.train()
    followed = {}
    await rounds(quick, 20, followed, step=0, output=output)
    quick.change(attempt, state=JobState.SUSPENDED)
    await rounds(quick, 100, followed)
    assert await hangs(quick) == []
    quick.change(attempt, state=JobState.RUNNING)
    await rounds(quick, 40, followed)
    assert len(await hangs(quick)) == 1
