"""What of an attempt's time its saves and stalls take, as its lines show it, is kept with its progress."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.activities.follow_saves import Saves, Silent, lateness
from relight.attribution.progress_marks import Edge, PhaseMark, StepMark
from relight.domain.attempts import Progress
from relight.domain.rhythm import Phase

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
BEGIN = PhaseMark(phase=Phase.CHECKPOINT, edge=Edge.BEGINS)
END = PhaseMark(phase=Phase.CHECKPOINT, edge=Edge.ENDS, saved=True)


def step(number):
    return StepMark(step=number)


@pytest.mark.parametrize(
    ("chunks", "saves", "waited_for"),
    [
        ([[step(1), BEGIN, END, step(2)]], 1, [1]),
        ([[step(1), BEGIN], [END], [step(2)]], 1, [0, 0, 1]),
        ([[step(1), END, step(2)]], 1, [1]),
        ([[step(1), BEGIN, step(2), BEGIN, step(3)]], 2, [2]),
        ([[step(1), BEGIN, step(2), step(3), END, step(4)]], 1, [1]),
        ([[step(1), BEGIN, BEGIN, END, END, step(2)]], 1, [1]),
        ([[step(1), step(2), END]], 1, [0]),
        ([[PhaseMark(phase=Phase.EVALUATION, edge=Edge.BEGINS), step(2)]], 0, [0]),
    ],
    ids=["whole", "in parts", "end only", "begin only", "beside training", "many lines", "after the last", "no save"],
)
def test_one_save_between_two_steps(chunks, saves, waited_for):
    """However many lines tell of it; one that is written while training goes on is one save."""
    counting = Saves()
    told = [counting.count(marks) for marks in chunks]
    assert sum(each.saves for each in told) == saves
    assert [each.waited_for for each in told] == waited_for


SILENT = Silent(timedelta(seconds=12), timedelta(seconds=30))
HUNG = Silent(timedelta(seconds=50), timedelta(seconds=30))
KNOWN = Progress(last_step=10, last_step_at=NOW - timedelta(seconds=50), saving_seconds=1.0, saves_timed=1)


@pytest.mark.parametrize(
    ("known", "usual", "saves", "silence", "update"),
    [
        (KNOWN, 2.0, 1, SILENT, {"saving_seconds": 49.0, "saves_timed": 2}),
        (KNOWN, 60.0, 1, SILENT, {"saving_seconds": 1.0, "saves_timed": 2}),
        (KNOWN, 2.0, 0, HUNG, {"stalled_seconds": 48.0}),
        (KNOWN, 2.0, 0, SILENT, {}),
        (KNOWN, None, 1, SILENT, {}),
        (Progress(), 2.0, 1, SILENT, {}),
    ],
    ids=["a save", "a save beside training", "a stall that ended", "nothing", "no rhythm yet", "the first step"],
)
def test_how_much_later_than_usual(known, usual, saves, silence, update):
    """Beyond the ordinary time of its steps; where that is not known, nothing is."""
    assert lateness(known, 11, usual, NOW, saves=saves, silence=silence) == update


class Output:
    """A job's output file, and rounds of its follower."""

    def __init__(self, world):
        self.world, self.followed = world, {}

    async def prints(self, text, *, after=0.0):
        self.world.clock.on(after)
        with (self.world.folder / "train.out").open("a") as file:
            file.write(text)
        await self.world.run(self.world.follow._round, self.followed)


def line(number):
    return f"step {number}/1000 | loss 0.5 | step_time 1.0 s\n"


@pytest.fixture
async def attempt(world):
    return await world.train()


@pytest.fixture
def output(world):
    return Output(world)


async def test_first_step_saves_and_their_time_are_kept(world, attempt, output):
    """The first step with the time at which it came; a save with what it took from training."""
    await output.prints("")
    seen = world.clock.now
    await output.prints(line(41))
    for number in range(42, 46):
        await output.prints(line(number), after=1)
    await output.prints("saving checkpoint to ckpt/45\n", after=0.5)
    await output.prints("saved checkpoint ckpt/45\n", after=3)
    await output.prints(line(46), after=1.5)
    found = await world.site.progress(attempt.key)
    assert (found.first_step, found.first_step_at) == (41, seen)
    assert (found.saves, found.saves_timed, found.saved_step) == (1, 1, 45)
    assert found.saving_seconds == pytest.approx(4.0)


async def test_when_a_step_came_that_was_there_already_is_not_known(world, attempt, output):
    """The follower came late: its first look finds steps, and says so."""
    await output.prints(line(1) + "saved checkpoint ckpt/1\n" + line(2))
    found = await world.site.progress(attempt.key)
    assert (found.first_step, found.first_step_at) == (1, None)
    assert (found.saves, found.saves_timed, found.saving_seconds) == (1, 0, 0.0)


async def test_a_progress_file_says_when_also_of_what_was_there_already(world):
    """By the job's own clock."""
    wish = '{"relight": {"progress": "progress.jsonl"}}'
    attempt = await world.train(work_dir=str(world.folder), comment=wish)
    (world.folder / "progress.jsonl").write_text('{"step": 7, "time": 1796126400.0}\n')
    await Output(world).prints("")
    found = await world.site.progress(attempt.key)
    assert found.first_step == 7
    assert found.first_step_at is not None


def test_progress_written_before_this_was_kept_still_loads():
    """What is not in it is not known, and nothing is counted twice."""
    old = Progress.model_validate({"last_step": 9, "saved_step": 8})
    assert (old.first_step, old.first_step_at, old.saves, old.saving_seconds) == (None, None, 0, 0.0)
