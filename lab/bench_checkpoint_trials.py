"""Writers of checkpoints killed at random moments, what the guard makes of what is left, and what is loaded then.

Each writer (`checkpoint_writers`) is a process that saves one checkpoint after the other until SIGKILL. In half of the
trials a file of the newest is then cut short, as a node leaves it that lost its power before all was on the disk. The
guard looks, and makes the change that it proposes; then the trainer's own rule chooses, and every byte of the choice is
compared with what was to be written. After that a next attempt is killed, too, and the guard says whether it moved.
"""

import asyncio
import getpass
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from relight.clients.checkpoint_moves import CheckpointMover
from relight.clients.checkpoint_readers import CheckpointReaders
from relight.domain.checkpoint_look import look_of
from relight.domain.checkpoints import HowNamed, Root, Survey, is_new_durable, newest_whole
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Answer
from relight.domain.fallback import Advice, advise
from relight.lab.checkpoint_writers import EVERY, LAYOUTS, Layout, step_of, whole

FIRST = 2
"""Checkpoints that are surely saved before a writer is killed."""
LATEST_S = 0.06
"""The kill comes up to so long after them: a save takes a few milliseconds."""
HALF = 0.5
CRASH = Diagnosis(
    hypotheses=(
        Hypothesis(
            signature="EXIT_SIGKILL",
            category=Category.UNKNOWN,
            action=Action.RESTART,
            action_if_it_repeats=Action.RESTART,
            confidence=1,
        ),
    )
)


class Result(NamedTuple):
    """How one trial went."""

    layout: str
    damaged: bool
    """Whether the trainer's own rule would have taken something damaged."""
    went_back: bool
    stopped: bool
    from_damaged: bool
    """It was restarted, and took something damaged."""
    moved: bool
    """Whether there is a whole checkpoint with more training in it than any before the restart."""
    said_moved: Answer
    """The same by the guard."""


def measure(trials: int, seed: int, say: Callable[[str], None], folder: Path | None = None) -> dict[str, Any]:
    """Run the trials; what came of them, counted."""
    say(f"{trials} writers killed at random moments")
    with tempfile.TemporaryDirectory(prefix="relight-bench-", dir=folder) as name:
        results = asyncio.run(_trials(trials, Random(seed), Path(name)))
    said = [each for each in results if each.said_moved is Answer.YES]
    return {
        "trials": len(results),
        "restarts_from_damaged": sum(each.from_damaged for each in results),
        "false_recovered": sum(not each.moved for each in said),
        "killed": {
            "would_take_damaged": sum(each.damaged for each in results),
            "went_back": sum(each.went_back for each in results),
            "stopped": sum(each.stopped for each in results),
            "moved": sum(each.moved for each in results),
            "recovered": len(said),
            "layouts": {name: sum(each.layout == name for each in results) for name in LAYOUTS},
            "seed": seed,
        },
    }


async def _trials(trials: int, rng: Random, folder: Path) -> list[Result]:
    results = []
    async with CheckpointReaders() as readers:
        for number in range(trials):
            here = folder / str(number) / "checkpoints"
            await asyncio.to_thread(here.mkdir, parents=True)
            results.append(await _trial(list(LAYOUTS)[number % len(LAYOUTS)], here, rng, readers))
            await asyncio.to_thread(shutil.rmtree, here.parent, ignore_errors=True)
    return results


async def _trial(name: str, folder: Path, rng: Random, readers: CheckpointReaders) -> Result:
    layout = LAYOUTS[name]
    await _write_and_kill(name, folder, EVERY, FIRST, rng)
    if rng.random() < HALF:
        _lose_power(layout, folder, rng)
    damaged = _takes_damaged(layout, folder)
    before = await _look(readers, folder)
    advice = await _go_back(before)
    from_damaged = not advice.stop and _takes_damaged(layout, folder)
    if not advice.stop and not from_damaged:
        await _next_attempt(name, folder, rng)
    now, known = await _look(readers, folder), newest_whole(before)
    return Result(
        layout=name,
        damaged=damaged,
        went_back=advice.back is not None,
        stopped=bool(advice.stop),
        from_damaged=from_damaged,
        moved=_newest_step(layout, folder) > ((known.step or 0) if known else 0),
        said_moved=is_new_durable(known, now),
    )


async def _write_and_kill(name: str, folder: Path, step: int, first: int, rng: Random) -> None:
    """Let a process save from this step on, and kill it at a random moment after so many whole ones."""
    command = (sys.executable, "-m", "relight.lab.checkpoint_writers", name, str(folder), str(step))
    writer = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    if writer.stdout is None:
        raise RuntimeError("the writer's output is not read")
    for _ in range(first + 1):
        await writer.stdout.readline()
    await asyncio.sleep(rng.uniform(0, LATEST_S))
    writer.kill()
    await writer.communicate()


def _lose_power(layout: Layout, folder: Path, rng: Random) -> None:
    """Cut one of the files of what the trainer would take."""
    chosen = layout.choose(folder)
    if chosen is None:
        return
    files = sorted(path for path in (chosen, *chosen.rglob("*")) if path.is_file())
    if files:
        cut = rng.choice(files)
        os.truncate(cut, rng.randrange(cut.stat().st_size or 1))


def _takes_damaged(layout: Layout, folder: Path) -> bool:
    chosen = layout.choose(folder)
    return chosen is not None and not whole(layout, chosen)


def _newest_step(layout: Layout, folder: Path) -> int:
    return max((step_of(each) for each in folder.glob(layout.pattern) if whole(layout, each)), default=0)


async def _look(readers: CheckpointReaders, folder: Path) -> Survey:
    return await readers.look([Root(path=str(folder), how=HowNamed.SCRIPT)], owner=os.geteuid())


async def _go_back(survey: Survey) -> Advice:
    """What the guard says of it, and the change made where it proposes one."""
    advice = advise(look_of(survey, began=None, writable=Answer.YES), CRASH, ())
    if advice.back is not None:
        standing = await CheckpointMover().make(advice.back, getpass.getuser(), "ibench")
        if not standing.done:
            raise RuntimeError(f"the change was not made: {standing.problem}")
    return advice


async def _next_attempt(name: str, folder: Path, rng: Random) -> None:
    """It goes on from what its rule chooses and is killed, too; or it only saves once more what was there."""
    chosen = LAYOUTS[name].choose(folder)
    step = step_of(chosen) if chosen else 0
    if step and rng.random() < HALF / 2:
        LAYOUTS[name].save(folder, step)
        return
    await _write_and_kill(name, folder, step + EVERY, rng.randrange(2), rng)
