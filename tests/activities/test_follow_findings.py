"""What the follower finds beside plain silence: fatal lines, slow-downs, wrong numbers, a stalled file system."""

from datetime import timedelta

import pytest

from relight.activities.investigate import Investigate
from relight.domain.evidence import Answer, Interruption
from relight.domain.findings import SLOWER_STEPS, SLOWER_THAN_ITSELF
from relight.domain.ledger import RowKind
from relight.domain.policy import Policy
from relight.domain.progress import HangPolicy, witness

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


class Job:
    """A job that prints, followed second by second."""

    def __init__(self, world, path, followed):
        self.world, self.path, self.followed = world, path, followed
        self.step = 0

    def add(self, text):
        with self.path.open("a") as file:
            file.write(text)

    async def run(self, seconds, *, line=None):
        """So many seconds, a round each; `line` makes of a step's number what is printed in each."""
        for _ in range(seconds):
            if line:
                self.step += 1
                self.add(line(self.step))
            await self.world.run(self.world.follow._round, self.followed)
            self.world.clock.on(1)


def steps(seconds=1.0, loss=0.5, more=""):
    return lambda step: f"step {step}/100000 | loss {loss} | step_time {seconds} s{more}\n"


@pytest.fixture
def world(make_world):
    """A site that waits ten minutes for a job it does not know, as by default."""
    return make_world(policy=Policy(hang=HangPolicy(floor=timedelta(seconds=30))))


@pytest.fixture
async def job(world, tmp_path):
    await world.train(work_dir=str(tmp_path))
    return Job(world, tmp_path / "train.out", {})


async def found(world, kind=None):
    return [d for d in await world.ledger.undelivered() if kind in (None, d.kind)]


# --- fatal lines ---


async def test_a_job_that_printed_its_death_and_stands_is_found_early(world, job):
    """After 20 s instead of 30, with the line as evidence and second witness."""
    await job.run(40, line=steps())
    job.add(ECC)
    await job.run(20)
    assert await found(world) == []
    await job.run(2)
    (hang,) = await found(world)
    assert hang.kind is Interruption.HANG
    assert [e.signature for e in hang.evidence] == [None, "CUDA_ECC"]
    assert witness(hang) is Answer.YES


async def test_while_the_rhythm_is_unknown_a_fatal_line_hastens_nothing(world, job):
    """After a few steps: a first checkpoint may be what takes so long."""
    await job.run(4, line=steps())
    job.add(ECC)
    await job.run(590)
    assert await found(world) == []
    await job.run(20)
    assert len(await found(world)) == 1


async def test_a_step_after_a_fatal_line_takes_it_back(world, job):
    """It was caught: silence counts as ever. A step within seconds may have been on its way, and does not."""
    await job.run(40, line=steps())
    job.add(ECC)
    await job.run(8, line=steps())
    await job.run(29)
    assert await found(world) == []
    await job.run(3)
    (hang,) = await found(world)
    assert [e.signature for e in hang.evidence] == [None]
    assert witness(hang) is Answer.UNKNOWN


async def test_steps_on_their_way_do_not_take_a_fatal_line_back(world, job):
    """Another rank's last step became visible after it."""
    await job.run(40, line=steps())
    job.add(ECC)
    await job.run(3, line=steps())
    await job.run(19)
    assert await found(world) == []
    await job.run(4)
    assert len(await found(world)) == 1


async def test_slow_steps_are_waited_for_after_a_fatal_line(world, job):
    """A caught exception in a job with steps of 20 s: the next step is not overdue."""
    for _ in range(15):
        await job.run(1, line=steps(20.0))
        await job.run(19)
    job.add(ECC)
    await job.run(25)
    assert await found(world) == []


async def test_before_the_first_step_a_fatal_line_hastens_nothing(world, job):
    """It may be told of an attempt before this one."""
    job.add(ECC)
    await job.run(400)
    assert await found(world) == []


# --- phases and files ---


async def test_an_announced_checkpoint_may_take_its_time(world, job):
    """Longer than any silence between steps."""
    await job.run(40, line=steps())
    job.add("saving checkpoint at iteration 40 to /ckpt\n")
    await job.run(100)
    assert await found(world) == []


async def test_after_the_end_of_training_silence_is_no_hang(world, job):
    """Uploading what was trained may take hours."""
    await job.run(40, line=steps())
    job.add("Training completed. Do not forget to share your model on huggingface.co/models =)\n")
    await job.run(2500)
    assert await found(world) == []


@pytest.fixture
async def precise(world, tmp_path):
    """A job whose comment names a progress file."""
    attempt = await world.train(work_dir=str(tmp_path), comment='{"relight": {"progress": "progress.jsonl"}}')
    return attempt, Job(world, tmp_path / "train.out", {}), Job(world, tmp_path / "progress.jsonl", {})


async def test_a_progress_file_is_the_precise_source(world, precise):
    """Once it has spoken, printed steps count no more."""
    attempt, printed, file = precise
    await printed.run(2, line=steps())
    assert (await world.site.progress(attempt.key)).last_step == 2
    file.add('{"step": 700, "loss": 0.5}\n')
    await printed.run(2, line=steps())
    assert (await world.site.progress(attempt.key)).last_step == 700
    await printed.run(2)
    assert (await world.site.progress(attempt.key)).last_step == 700


async def test_silence_of_the_progress_file_is_a_hang(world, precise):
    """Although the output goes on and on."""
    _, printed, file = precise
    for number in range(40):
        file.add(f'{{"step": {number}}}\n')
        await printed.run(1)
    await printed.run(34, line=lambda _: "still alive\n")
    assert len(await found(world, Interruption.HANG)) == 1


async def test_two_files_do_not_count_against_each_other(world, tmp_path):
    """A bar on stderr counts within the epoch, stdout over the run: the surer one's steps are the attempt's."""
    attempt = await world.train(stderr=str(tmp_path / "train.err"))
    out, err = Job(world, tmp_path / "train.out", {}), Job(world, tmp_path / "train.err", {})
    for step in range(1000, 1040):
        err.add(f"  {step - 999}%|#         | {step - 999}/100 [00:10<01:00,  1.00it/s]\n")
        out.add(steps()(step))
        await out.run(1)
    found = await world.site.progress(attempt.key)
    assert (found.last_step, found.stride) == (1039, 1)


# --- slower than itself ---


async def test_a_job_that_slows_down_is_told_once(world, job):
    """Within 30 steps, with what was lost and since when."""
    await job.run(150, line=steps(1.0))
    await job.run(30, line=steps(1.2))
    (slow,) = await found(world)
    assert (slow.kind, slow.id) == (Interruption.STRAGGLER, f"{slow.attempt}/straggler/151")
    assert "20% longer since step 151" in slow.evidence[0].text
    assert slow.evidence[0].signature == SLOWER_STEPS
    assert (await world.site.progress(slow.attempt)).slow_since == 151
    job.followed.clear()
    await job.run(60, line=steps(1.2))
    assert len(await found(world)) == 1
    assert len(await world.rows(RowKind.DETECTED)) == 1


async def test_recovery_of_the_pace_is_seen(world, job):
    """And a later slow-down is another one."""
    await job.run(150, line=steps(1.0))
    await job.run(30, line=steps(1.3))
    await job.run(60, line=steps(1.0))
    attempt = next(iter(job.followed))
    assert (await world.site.progress(attempt)).slow_since is None
    await job.run(40, line=steps(1.3))
    assert len({d.id for d in await found(world, Interruption.STRAGGLER)}) == 2


async def test_a_change_of_work_is_no_slow_down(world, job):
    """Twice the samples in twice the time; and where samples are printed, a slow-down is certain."""
    await job.run(150, line=steps(1.0, more=" | 64 samples/s"))
    await job.run(100, line=steps(2.0, more=" | 64 samples/s"))
    assert await found(world) == []
    await job.run(40, line=steps(3.0, more=" | 42.6667 samples/s"))
    (slow,) = await found(world)
    assert slow.evidence[0].signature == SLOWER_THAN_ITSELF


async def test_slow_checkpoint_steps_are_no_slow_down(world, job):
    """One step in twenty takes three times as long."""
    for _ in range(20):
        await job.run(19, line=steps(1.0))
        await job.run(1, line=steps(3.0))
    assert await found(world) == []


# --- numbers ---


async def test_a_loss_that_is_not_a_number_is_told_once(world, job):
    """With the first step at which it was so; the job runs on."""
    await job.run(20, line=steps())
    await job.run(2, line=steps(loss="nan"))
    assert await found(world) == []
    await job.run(20, line=steps(loss="nan"))
    (wrong,) = await found(world)
    assert (wrong.kind, wrong.id) == (Interruption.NUMERICS, f"{wrong.attempt}/numerics/21")
    assert "since step 21" in wrong.evidence[0].text
    assert (await world.site.progress(wrong.attempt)).wrong_since == 21


async def test_losses_may_stand_in_another_file_than_steps(world, tmp_path):
    """A bar on stderr counts the steps, and dictionaries on stdout tell the loss."""
    await world.train(stderr=str(tmp_path / "train.err"))
    out, err = Job(world, tmp_path / "train.out", {}), Job(world, tmp_path / "train.err", {})
    for step in range(1, 12):
        err.add(f"  {step}%|#         | {step}/100 [00:10<01:00,  1.00it/s]\n")
        out.add(f"{{'loss': {'nan' if step > 5 else 2.5}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}}\n")
        await out.run(1)
    (wrong,) = await found(world)
    assert wrong.kind is Interruption.NUMERICS


async def test_a_skipped_step_is_no_wrong_number(world, job):
    """A single nan, as mixed precision prints."""
    for _ in range(10):
        await job.run(5, line=steps())
        await job.run(1, line=steps(loss="nan"))
    assert await found(world) == []


@pytest.mark.parametrize("kind", [Interruption.STRAGGLER, Interruption.NUMERICS])
async def test_a_diagnosis_of_what_goes_on_names_it(world, job, ref, kind):
    """No earlier line of the log takes its place."""
    from relight.activities import contracts as c

    slow = kind is Interruption.STRAGGLER
    job.add("ValueError: caught\n")
    await job.run(150, line=steps())
    await job.run(30, line=steps(1.5) if slow else steps(loss="nan"))
    (detection,) = await found(world)
    attempt = await world.attempt(detection.attempt.job_id)
    diagnosis = await world.run(
        Investigate(world.site).diagnose, c.DiagnoseInput(incident=ref(attempt, kind), detection=detection)
    )
    assert diagnosis.verdict.category == str(kind).upper()
    assert detection.evidence[0] in diagnosis.verdict.evidence


# --- a file system ---


@pytest.mark.parametrize("owners", [("ann", "bob"), ("ann",)])
async def test_jobs_that_fall_silent_together_are_not_blamed(world, tmp_path, owners):
    """Four jobs of different owners on one file system: it is said, and no job hangs. Of one owner: they do."""
    jobs, followed = [], {}
    for number in range(4):
        path = tmp_path / f"{number}.out"
        await world.train(nodes=1, stdout=str(path), user=owners[number % len(owners)], name=f"job{number}")
        jobs.append(Job(world, path, followed))
    for number in range(1, 40):
        for each in jobs:
            each.add(steps()(number))
        await jobs[0].run(1)
    await jobs[0].run(120)
    blind = await world.rows(RowKind.BLIND)
    if len(owners) > 1:
        assert await found(world) == []
        assert [row.body["what"] for row in blind] == ["file system"]
    else:
        assert len(await found(world)) == 4
        assert blind == ()


async def test_a_file_system_is_not_suspected_for_ever(world, tmp_path):
    """What makes all jobs hang at once is told in the end."""
    jobs, followed = [], {}
    for number in range(4):
        path = tmp_path / f"{number}.out"
        await world.train(nodes=1, stdout=str(path), user=f"user{number}", name=f"job{number}")
        jobs.append(Job(world, path, followed))
    for number in range(1, 40):
        for each in jobs:
            each.add(steps()(number))
        await jobs[0].run(1)
    world.clock.on(timedelta(minutes=31).total_seconds())
    await jobs[0].run(1)
    assert len(await found(world, Interruption.HANG)) == 4
