"""Checkpoints are looked at by a process for each file system; one that does not answer blinds only its own.

No file system here can be made to hang: a process that is stopped (SIGSTOP) stands for one in a call that does not
return. Two folders stand for two mounts.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest

from relight.clients import checkpoint_dcp, checkpoint_reader
from relight.clients.checkpoint_files import CheckpointFiles
from relight.clients.checkpoint_reader import OneMount
from relight.clients.checkpoint_readers import CheckpointReaders
from relight.clients.checkpoint_tree import ElsewhereError
from relight.domain.checkpoints import HowNamed, Root, Survey
from relight.domain.evidence import Answer
from relight.lab.bench_checkpoints import write_checkpoint

TIMEOUT = timedelta(seconds=2)


def npz(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, w=np.arange(1000))
    return path


class Mounts:
    """Two folders, `a` and `b`, that stand for two mounts, and who looks at both."""

    def __init__(self, folder: Path, readers: CheckpointReaders) -> None:
        self.a, self.b, self.readers = folder / "a", folder / "b", readers

    async def look(self, *roots: Path, **how: object) -> Survey:
        return await self.readers.look([Root(path=str(root), how=HowNamed.PERSON) for root in roots], **how)

    def process(self, folder: Path) -> psutil.Process:
        process = self.readers._readers[str(folder), False][0]._process
        assert process
        return psutil.Process(process.pid)

    async def ended(self, folder: Path) -> None:
        """Wait until asyncio knows that the process is gone."""
        process = self.readers._readers[str(folder), False][0]._process
        assert process
        await process.wait()


@pytest.fixture
async def mounts(tmp_path: Path) -> AsyncIterator[Mounts]:
    info = tmp_path / "mountinfo"
    points = ("/", tmp_path / "a", tmp_path / "b")
    info.write_text("".join(f"1 0 0:1 / {point} rw - ext4 /dev/x rw\n" for point in points))
    private = tmp_path / "a" / "private"
    async with CheckpointReaders(timeout=TIMEOUT, mountinfo=info, private=(private,)) as readers:
        for folder in (tmp_path / "a", tmp_path / "b"):
            npz(folder / "run" / "step_1.npz")
        yield Mounts(tmp_path, readers)


def paths(survey: Survey) -> list[str]:
    return [c.path for s in survey.series for c in s.checkpoints]


async def test_a_mount_that_does_not_answer_blinds_only_its_own(mounts: Mounts):
    """It is given up after the time-out and said; the other is looked at; once it answers again, so is it."""
    assert len(paths(await mounts.look(mounts.a, mounts.b))) == 2
    hung = mounts.process(mounts.a)
    hung.suspend()
    survey = await mounts.look(mounts.a, mounts.b)
    assert paths(survey) == [str(mounts.b / "run/step_1.npz")]
    assert "did not answer within 2 s" in survey.problems[0]
    # Killed, not waited for; left alone for a while, which costs nothing.
    await mounts.ended(mounts.a)
    begun = asyncio.get_running_loop().time()
    assert "left alone" in (await mounts.look(mounts.a)).problems[0]
    assert asyncio.get_running_loop().time() - begun < TIMEOUT.total_seconds()


async def test_a_process_that_is_killed_is_said_and_replaced(mounts: Mounts):
    """Nothing is made of what it had found."""
    await mounts.look(mounts.a)
    process = mounts.readers._readers[str(mounts.a), False][0]._process
    assert process
    process.send_signal(signal.SIGSTOP)
    looking = asyncio.ensure_future(mounts.look(mounts.a))
    await asyncio.sleep(0)
    process.kill()
    assert "has ended" in (await looking).problems[0]
    await process.wait()
    assert len(paths(await mounts.look(mounts.a))) == 1


async def test_links_into_another_file_system_are_followed_by_its_own_process(mounts: Mounts):
    """Of a root, of a folder on the way, of the checkpoints within; a circle of them ends."""
    (mounts.a / "root").symlink_to(mounts.b / "run")
    (mounts.a / "work").mkdir()
    (mounts.a / "work/checkpoints").symlink_to(mounts.b / "run")
    npz(mounts.a / "work/ckpt/step_2.npz")
    (mounts.b / "run/back").symlink_to(mounts.a / "work")
    assert paths(await mounts.look(mounts.a / "root"))[0] == str(mounts.a / "root/step_1.npz")
    found = paths(await mounts.look(mounts.a / "work"))
    assert set(found) == {str(mounts.a / "work/ckpt/step_2.npz"), str(mounts.b / "run/step_1.npz")}
    assert {key for key, _ in mounts.readers._readers} >= {str(mounts.a), str(mounts.b)}


async def test_a_link_into_one_that_hangs_costs_only_what_lies_there(mounts: Mounts):
    """The process of the other file system waits, ours does not."""
    (mounts.a / "run/far").symlink_to(mounts.b / "run")
    await mounts.look(mounts.b)
    mounts.process(mounts.b).suspend()
    survey = await mounts.look(mounts.a)
    assert paths(survey) == [str(mounts.a / "run/step_1.npz")]
    assert "did not answer" in survey.problems[0]
    assert mounts.process(mounts.a).is_running()


async def test_links_in_a_circle(mounts: Mounts):
    """They are said, and take no time."""
    (mounts.a / "x").symlink_to(mounts.b / "x")
    (mounts.b / "x").symlink_to(mounts.a / "x")
    assert "links" in (await mounts.look(mounts.a / "x")).problems[0]


async def test_private_folders_and_no_permission(mounts: Mounts):
    """A folder of ours is not looked into, by no link either; one that may not be read is said."""
    npz(mounts.a / "private/step_3.npz")
    (mounts.b / "way").symlink_to(mounts.a / "private")
    for root in (mounts.a / "private", mounts.b / "way"):
        survey = await mounts.look(root)
        assert paths(survey) == []
        assert "private" in survey.problems[0]
    if os.getuid():
        (mounts.b / "closed").mkdir(mode=0)
        assert "ermission" in (await mounts.look(mounts.b / "closed")).problems[0]


async def test_a_file_as_root_and_odd_paths(mounts: Mounts):
    """A file stands for its folder; a path that is none is a problem, never an exception."""
    assert len(paths(await mounts.look(mounts.a / "run/step_1.npz"))) == 1
    (mounts.a / "run/readme").touch()
    assert len(paths(await mounts.look(mounts.a / "run/readme"))) == 1
    for odd in ("/nul\0/x", "relative", "/", "//", ""):
        survey = await mounts.readers.look([Root(path=odd, how=HowNamed.SCRIPT)], within=timedelta(seconds=1))
        assert isinstance(survey, Survey)


async def test_time_is_up_in_the_middle(mounts: Mounts, monkeypatch: pytest.MonkeyPatch):
    """What was found until then is told, and that it is not all."""
    survey = await mounts.look(mounts.a, within=timedelta(0))
    assert not survey.complete
    assert "time was up" in survey.problems[0]


async def test_a_large_checkpoint_of_sparse_files(mounts: Mounts):
    """A checkpoint of many shards is judged by their lengths alone; one byte short, or one file gone, is seen.

    Documented layout, not written by torch.
    """
    step = mounts.a / "large/step-5"
    write_checkpoint(step, 300, 30_000_000_000)
    (found,) = (await mounts.look(mounts.a / "large")).series[0].checkpoints
    assert (found.whole, found.files, found.size > 30_000_000_000) == (Answer.YES, 301, True)
    os.truncate(step / "__7_0.distcp", 100_000_000 - 1)
    (step / "__9_0.distcp").unlink()
    (found,) = (await mounts.look(mounts.a / "large")).series[0].checkpoints
    assert found.whole is Answer.NO
    assert found.reasons == (
        "1 of 300 files are missing: __9_0.distcp",
        "1 of 300 files are cut short: __7_0.distcp by 1 bytes",
    )


async def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The process has a limit, and a `.metadata` that would need more leaves the checkpoint unknown. Simulated."""
    write_checkpoint(tmp_path / "step-1", 3, 30_000)

    def too_much(_: bytes) -> Iterator[None]:
        yield
        raise MemoryError

    monkeypatch.setattr(checkpoint_dcp.pickles, "steps", too_much)
    survey = await CheckpointFiles().look([Root(path=str(tmp_path), how=HowNamed.PERSON)])
    (found,) = survey.series[0].checkpoints
    assert (found.whole, found.reasons) == (Answer.UNKNOWN, (".metadata: needs too much memory",))


def test_only_one_file_system_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A path that leads elsewhere is known before anything there is looked at."""
    looked = list[str]()
    real = os.lstat
    monkeypatch.setattr(checkpoint_reader.os, "lstat", lambda path: looked.append(str(path)) or real(path))
    (tmp_path / "link").symlink_to("/elsewhere/x")
    mounts = {"/": "/", "/elsewhere": "there", "/elsewhere/deep": "/"}
    with pytest.raises(ElsewhereError) as error:
        OneMount("/", mounts).resolved(str(tmp_path / "link" / "y"))
    assert error.value.target == "/elsewhere/x/y"
    with pytest.raises(FileNotFoundError):
        OneMount("/", mounts).resolved("/elsewhere/deep/y")
    assert not [path for path in looked if path.startswith("/elsewhere") and "deep" not in path]
