"""The guard of checkpoints on real folders: what a look tells, and going back once, whatever dies in between."""

import asyncio
import dataclasses
import getpass
import os
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from relight.activities import contracts as c
from relight.activities.checkpoints import TRIES, GuardCheckpoints
from relight.clients.checkpoint_files import CheckpointFiles
from relight.clients.checkpoint_mover import Standing
from relight.clients.checkpoint_moves import CheckpointMover
from relight.clients.checkpoint_readers import CheckpointReaders
from relight.clients.checkpoints import MovesUnavailableError
from relight.domain.attempts import Progress, progress_cursor
from relight.domain.checkpoint_look import CheckpointLook, FallBack, Why
from relight.domain.checkpoints import Survey
from relight.domain.evidence import Answer, Interruption
from relight.domain.incidents import Outcome
from relight.domain.ledger import Change, RowKind
from relight.domain.slurm import JobState
from relight.lab import sharded
from tests.activities.test_crash_points import Death, Points, Through

ME = getpass.getuser()


@pytest.fixture
async def guarded(world, tmp_path):
    """The site, its guard, and a job of ours with the checkpoints of steps 10, 20 and 30, of which the last is cut."""
    # Files carry the machine's own time.
    world.clock.now = datetime.now(UTC)
    folder = tmp_path / "run" / "checkpoints"
    for step in (10, 20, 30):
        sharded.save(folder, step, b"x" * 1000, ".npz")
    cut(folder / "checkpoint-30")
    async with CheckpointReaders() as readers:
        object.__setattr__(world.site, "checkpoints", readers)
        object.__setattr__(world.site, "moves", CheckpointMover())
        script = f"#!/bin/bash\nsrun python train.py --output_dir {folder}\n"
        fields = {"user": ME, "work_dir": str(tmp_path / "run"), "script": script}
        yield world, GuardCheckpoints(world.site), folder, fields


def cut(checkpoint):
    file = checkpoint / sharded.shard(1)
    os.truncate(file, file.stat().st_size // 2)


def back(folder, *names, target=20, why=Why.DAMAGED):
    given = {"why": why, "folder": str(folder), "target": f"checkpoint-{target}", "step": target}
    return FallBack(**given, aside=names or ("checkpoint-30",))


def asked(act, attempt, folder, *, ended=False, kind=Interruption.CRASH, **plan):
    return c.FallBackInput(act=act(attempt, kind, **{"fall_back": back(folder), **plan}), ended=ended)


def there(folder):
    return {path.name for path in folder.iterdir()}


# --- looking ---


async def test_a_look_tells_what_a_restart_takes_and_whether_it_can_be_changed(guarded, ref):
    """Found by the job's script; the newest is cut short, the one before it whole, and its folder ours to change."""
    world, guard, folder, fields = guarded
    attempt = await world.failed(**fields)
    found = await world.run(guard.look, c.LookAtCheckpointsInput(incident=ref(attempt)))
    assert (found.series.folder, found.doubt, found.problems) == (str(folder), "", ())
    assert (found.choice.safe, found.choice.fall_back.step) == (Answer.NO, 20)
    assert (found.writable, found.why_not) == (Answer.YES, "")
    assert there(folder) == {"checkpoint-10", "checkpoint-20", "checkpoint-30"}


@pytest.mark.parametrize("hostile", ["gone", "link to itself", "no permission", "half a tracker", "nobody's"])
async def test_what_is_hostile_is_recorded_and_bounded(guarded, ref, hostile):
    """Nothing is concluded but what is known; the look ends."""
    world, guard, folder, fields = guarded
    if hostile == "gone":
        fields |= {"script": f"#!/bin/bash\ntrain --output_dir {folder}/none\n", "work_dir": "/no/such/folder"}
    elif hostile == "link to itself":
        loop = folder.parent / "loop"
        loop.symlink_to(loop)
        fields |= {"script": f"#!/bin/bash\ntrain --output_dir {loop}\n", "work_dir": str(loop)}
    elif hostile == "no permission":
        fields["user"] = "nobody"
    elif hostile == "half a tracker":
        (folder.parent / "ds" / "global_step5").mkdir(parents=True)
        (folder.parent / "ds" / "latest").write_bytes(b"")
        fields["script"] = f"#!/bin/bash\ntrain --save_dir {folder.parent}/ds\n"
    else:
        fields["user"] = "no-such-user"
    attempt = await world.failed(**fields)
    async with asyncio.timeout(60):
        found = await world.run(guard.look, c.LookAtCheckpointsInput(incident=ref(attempt)))
    if hostile == "half a tracker":
        assert found.series.tracker.problem == "is empty: half written"
    else:
        assert found.series is None
        assert found.problems


async def test_a_site_that_only_reads_says_so(guarded, ref):
    """Over SSH files are read by SFTP: what would have to be changed is left to a person."""
    world, guard, _folder, fields = guarded
    object.__setattr__(world.site, "checkpoints", CheckpointFiles())
    object.__setattr__(world.site, "moves", None)
    attempt = await world.failed(**fields)
    found = await world.run(guard.look, c.LookAtCheckpointsInput(incident=ref(attempt)))
    assert (found.choice.safe, found.writable) == (Answer.NO, Answer.NO)
    assert found.why_not == "Relight only reads files on this site"


async def test_a_plan_is_made_with_what_was_found(guarded, ref, detection):
    """From the look to the plan, and into the ledger with it."""
    world, guard, _folder, fields = guarded
    attempt = await world.failed(**fields)
    looked = await world.run(guard.look, c.LookAtCheckpointsInput(incident=ref(attempt)))
    found = detection(attempt, world.clock.now)
    diagnosis = await world.run(world.investigate.diagnose, c.DiagnoseInput(incident=ref(attempt), detection=found))
    arg = c.PlanInput(incident=ref(attempt), detection=found, diagnosis=diagnosis, checkpoints=looked)
    verdict = await world.run(world.investigate.plan, arg)
    assert verdict.plan.fall_back.step == 20
    (row,) = await world.rows(RowKind.PLANNED)
    assert row.body["checkpoints"]["series"]["checkpoints"][0]["reasons"]


# --- going back ---


async def test_it_goes_back_before_the_requeue_once_the_attempt_has_ended(guarded, act):
    """Meant, made once, written down with how to undo it; a second call finds it done."""
    world, guard, folder, fields = guarded
    attempt = await world.failed(**fields)
    arg = asked(act, attempt, folder)
    done = await world.run(guard.fall_back, arg)
    assert (done.outcome, done.waits) == (None, False)
    assert there(folder) == {"checkpoint-10", "checkpoint-20", "relight-aside-i1"}
    kinds = [row.kind for row in await world.ledger.rows(incident="i1")]
    assert kinds == [RowKind.INTENT, RowKind.EFFECT]
    (intent,) = await world.rows(RowKind.INTENT)
    assert intent.body["undo"] == f"cd {folder} && mv relight-aside-i1/checkpoint-30 ."
    assert await world.run(guard.fall_back, arg) == done
    assert len(await world.ledger.rows(incident="i1")) == 2


@pytest.mark.parametrize("state", ["running", "completing"])
async def test_nothing_is_touched_while_the_old_attempt_may_write(guarded, act, state):
    """It waits: the requeue ends the attempt, and it is asked again then."""
    world, guard, folder, fields = guarded
    attempt = await world.train(**fields)
    if state == "completing":
        world.change(attempt, state=JobState.FAILED, flags=frozenset({"COMPLETING"}))
    done = await world.run(guard.fall_back, asked(act, attempt, folder))
    assert done.waits
    assert there(folder) == {"checkpoint-10", "checkpoint-20", "checkpoint-30"}
    assert await world.rows(RowKind.INTENT) == ()


async def test_a_job_that_runs_again_keeps_its_checkpoints(guarded, act):
    """Slurm's begin delay was faster: nobody moves what a running attempt may have open."""
    world, guard, folder, fields = guarded
    attempt = await world.requeued(**fields)
    world.slurm.start(attempt.key.job_id)
    done = await world.run(guard.fall_back, asked(act, attempt, folder, ended=True))
    assert (done.outcome, done.waits) == (None, False)
    assert "runs already" in done.text
    assert "checkpoint-30" in there(folder)


async def test_what_turned_out_whole_is_left(guarded, act):
    """The save that went on has come to its end: nothing has to be changed."""
    world, guard, folder, fields = guarded
    attempt = await world.requeued(**fields)
    sharded.save(folder, 30, b"x" * 1000, ".npz")
    done = await world.run(guard.fall_back, asked(act, attempt, folder, ended=True))
    assert done.outcome is None
    assert "nothing had to be changed" in done.text
    assert "checkpoint-30" in there(folder)


@pytest.mark.parametrize("ended", [False, True])
async def test_no_restart_where_the_other_one_is_damaged_too(guarded, act, ended):
    """Stopped in clear words; what is queued again already is held, and the words say how it is let go."""
    world, guard, folder, fields = guarded
    attempt = await (world.requeued if ended else world.failed)(**fields)
    cut(folder / "checkpoint-20")
    done = await world.run(guard.fall_back, asked(act, attempt, folder, ended=ended))
    assert done.outcome is Outcome.STOPPED
    assert "step 20 is no longer known to be whole" in done.text
    assert world.writes == (["hold"] if ended else [])
    assert (f"scontrol release {attempt.key.job_id}" in done.text) is ended
    assert "checkpoint-30" in there(folder)


async def test_where_it_was_only_a_guess_the_restart_is_made_as_ever(guarded, act):
    """The same failure at the same step: what cannot be changed stops nothing."""
    world, guard, folder, fields = guarded
    attempt = await world.failed(**fields)
    cut(folder / "checkpoint-20")
    change = back(folder, why=Why.REPEATS)
    done = await world.run(guard.fall_back, asked(act, attempt, folder, fall_back=change))
    assert done.outcome is None
    assert done.text.startswith("not gone back to step 20")


class Broken:
    """Moves that never answer."""

    async def look(self, *_):
        raise MovesUnavailableError("the file system did not answer")

    make = look


class Blind:
    """Checkpoints that cannot be looked at."""

    async def look(self, roots, **_):
        return Survey(roots=roots, problems=("/run: the file system did not answer",), read_at=datetime.now(UTC))


@pytest.mark.parametrize("what", ["checkpoints", "moves"])
async def test_what_does_not_answer_is_asked_again_and_then_given_up(guarded, act, what):
    """Not for ever, and never a restart from what is damaged."""
    world, guard, folder, fields = guarded
    attempt = await world.requeued(**fields)
    object.__setattr__(world.site, what, Blind() if what == "checkpoints" else Broken())
    arg = asked(act, attempt, folder, ended=True)
    with pytest.raises(Exception, match=r"did not answer"):
        await world.run(guard.fall_back, arg)
    last = ActivityEnvironment()
    last.info = dataclasses.replace(last.info, attempt=TRIES)
    done = await last.run(guard.fall_back, arg)
    assert (done.outcome, world.writes) == (Outcome.STOPPED, ["hold"])


async def test_what_was_approved_too_long_ago_is_not_begun(guarded, act):
    """The last look at the clock is right before the change."""
    world, guard, folder, fields = guarded
    attempt = await world.failed(**fields)
    arg = asked(act, attempt, folder)
    late = arg.act.model_copy(update={"approved_until": world.clock.now - timedelta(seconds=1)})
    done = await world.run(guard.fall_back, arg.model_copy(update={"act": late}))
    assert done.outcome is Outcome.EXPIRED
    assert "checkpoint-30" in there(folder)


async def test_in_vain_where_relight_may_not_write(guarded, act):
    """Refused by the mover after it was meant: told, and no restart."""
    world, guard, folder, fields = guarded

    class Refuses:
        async def make(self, *_):
            return Standing(done=False, problem="no permission to write in /run")

    attempt = await world.failed(**fields)
    object.__setattr__(world.site, "moves", Refuses())
    done = await world.run(guard.fall_back, asked(act, attempt, folder))
    assert done.outcome is Outcome.STOPPED
    assert done.text == "not restarted from a damaged checkpoint: no permission to write in /run"


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
@pytest.mark.parametrize("ruined", [False, True], ids=["goes back", "is held"])
async def test_a_worker_may_die_anywhere(guarded, act, after, ruined):
    """Wherever it dies, the next one brings it to the same end: one change or one hold, one intent and effect each."""
    world, _, folder, fields = guarded
    if ruined:
        cut(folder / "checkpoint-20")
    attempt = await world.requeued(**fields)
    arg = asked(act, attempt, folder, ended=True)
    real = {name: getattr(world.site, name) for name in ("ledger", "slurm", "checkpoints", "moves")}

    async def live(points):
        for name, each in real.items():
            object.__setattr__(world.site, name, Through(each, points))
        return await world.run(GuardCheckpoints(world.site).fall_back, arg)

    lives = 0
    while True:
        try:
            done = await live(Points(lives, after=after))
            break
        except Death:
            lives += 1
    assert lives >= 5
    meant = [row.body["what"] for row in await real["ledger"].rows(kind=RowKind.INTENT)]
    assert meant == (["hold"] if ruined else ["fall back"])
    assert (done.outcome is Outcome.STOPPED) is ruined
    assert ("checkpoint-30" in there(folder)) is ruined
    assert (await real["ledger"].verify()).ok


# --- proof ---


async def test_a_newer_whole_checkpoint_proves_that_a_silent_job_moves(guarded, act):
    """Its output shows no steps. The same step written again proves nothing; one beyond it does."""
    world, guard, folder, fields = guarded
    attempt = await world.requeued(**fields)
    found = await world.run(guard.look, c.LookAtCheckpointsInput(incident=act(attempt).incident))
    world.slurm.start(attempt.key.job_id)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    until = world.clock.now + timedelta(minutes=5)
    arg = c.AwaitProgressInput(
        incident=act(attempt).incident, next_attempt=again.key, failed_step=None, until=until, checkpoints=found
    )
    world.after(30, lambda: sharded.save(folder, 20, b"x" * 1000, ".npz"))
    world.after(100, lambda: sharded.save(folder, 40, b"x" * 1000, ".npz"))
    proof = await world.run(world.verify.await_progress, arg)
    assert (proof.moved, proof.text) == (True, "the checkpoint of step 40 is whole, newer than step 20")
    assert proof.at >= until - timedelta(minutes=4)


async def test_nothing_new_proves_nothing(guarded, act):
    """Not seen to move by the end: not recovered."""
    world, guard, _folder, fields = guarded
    attempt = await world.requeued(**fields)
    found = await world.run(guard.look, c.LookAtCheckpointsInput(incident=act(attempt).incident))
    world.slurm.start(attempt.key.job_id)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    until = world.clock.now + timedelta(minutes=2)
    arg = c.AwaitProgressInput(
        incident=act(attempt).incident, next_attempt=again.key, failed_step=None, until=until, checkpoints=found
    )
    proof = await world.run(world.verify.await_progress, arg)
    assert (proof.moved, proof.outcome) == (False, Outcome.RESTARTED_UNVERIFIED)


@pytest.mark.parametrize(("fits", "minutes"), [(False, 1), (True, 2)])
async def test_a_job_that_took_long_to_start_is_given_longer(guarded, act, fits, minutes):
    """Three times the forty seconds that its first step took; histories from before keep the policy's bound."""
    world, _guard, _folder, fields = guarded
    attempt = await world.requeued(**fields)
    began = attempt.record.start_time or attempt.seen_at
    known = Progress(first_step=1, first_step_at=began + timedelta(seconds=40), last_step=25, last_step_at=began)
    await world.ledger.commit(Change(cursors={progress_cursor(attempt.key): known.model_dump(mode="json")}))
    world.slurm.start(attempt.key.job_id)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    await world.steps(again.key, 3)
    start, until = world.clock.now, world.clock.now + timedelta(minutes=1)
    object.__setattr__(world.site, "checkpoints", None)
    arg = c.AwaitProgressInput(
        incident=act(attempt).incident,
        next_attempt=again.key,
        failed_step=25,
        until=until,
        fits=fits,
        checkpoints=CheckpointLook(read_at=start),
    )
    proof = await world.run(world.verify.await_progress, arg)
    assert not proof.moved
    assert timedelta(0) <= world.clock.now - start - timedelta(minutes=minutes) < timedelta(seconds=20)
