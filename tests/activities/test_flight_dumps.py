"""Flight-recorder dumps of an attempt: found by its script, read if they are of this attempt."""

import pickle

import pytest

from relight.activities.flight_dumps import TRIED, flight_dumps

SCRIPT = "#!/bin/bash\nexport TORCH_FR_DUMP_TEMP_FILE=fr/rank_\nsrun python train.py\n"


@pytest.fixture
def dumps(world):
    """Writes dumps of ranks that wait in one collective, and reads what is there."""
    (world.folder / "fr").mkdir()

    def write(*ranks, at=None, op="all_reduce"):
        made = (at or world.clock.now).timestamp()
        entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "state": "started", "retired": False}
        entry |= {"profiling_name": f"nccl:{op}", "time_created_ns": int(made * 1e9)}
        for rank in ranks:
            (world.folder / f"fr/rank_{rank}").write_bytes(pickle.dumps({"entries": [entry]}))

    return write


async def stalled(world, tasks=4):
    """A job of four ranks on two nodes, and what its dumps say."""
    attempt = await world.train(work_dir=str(world.folder), task_count=tasks)
    return attempt.model_copy(update={"script": SCRIPT})


async def test_the_rank_that_left_none_is_named(world, dumps):
    """Slurm knows how many there were."""
    attempt = await stalled(world)
    dumps(0, 1, 3)
    found = await world.run(flight_dumps, world.site, attempt)
    assert [each.ranks for each in found.recorded] == [(2,)]
    assert found.unreadable == ()


async def test_dumps_of_an_earlier_attempt_say_nothing(world, dumps):
    """They lie at the same place."""
    dumps(0, 1, 3)
    world.clock.on(60)
    attempt = await stalled(world)
    assert await world.run(flight_dumps, world.site, attempt) == ((), ())


async def test_a_dump_that_cannot_be_read_is_no_missing_one(world, dumps):
    """Its rank was alive to write it: what is wrong is said, and nobody is blamed."""
    attempt = await stalled(world)
    dumps(0, 1, 3)
    (world.folder / "fr/rank_2").write_bytes(b"cut off")
    found = await world.run(flight_dumps, world.site, attempt)
    assert [each.ranks for each in found.recorded] == [()]
    assert [text.rpartition("/")[2].partition(":")[0] for text in found.unreadable] == ["rank_2"]


async def test_without_any_not_all_ranks_are_looked_for(world, dumps, monkeypatch):
    """A job that crashed leaves none, however large it was."""
    attempt = await stalled(world, tasks=2048)
    opened = []
    logs = type(world.site.logs)
    monkeypatch.setattr(logs, "open", lambda _, path: opened.append(path) or open(path, "rb"))  # noqa: PTH123, SIM115
    assert await world.run(flight_dumps, world.site, attempt) == ((), ())
    assert len(opened) == TRIED
