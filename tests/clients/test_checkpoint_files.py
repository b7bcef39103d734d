"""Checkpoints are found by name, and judged without being loaded."""

import asyncio
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from relight.clients import checkpoint_files
from relight.clients.checkpoint_files import MAX_ENTRIES, NAMES, CheckpointFiles
from relight.clients.checkpoints import Checkpoint, Checkpoints
from relight.clients.files import Files
from relight.clients.logs import LogUnreadableError
from relight.domain.evidence import Answer

files: Files | None = None


async def find(root: str) -> tuple[Checkpoint, ...]:
    return await CheckpointFiles(files=files).find(root)


@pytest.fixture(params=["local", "sftp"], autouse=True)
def where(request: pytest.FixtureRequest) -> str:
    """Where the files are: on this machine, or behind a real sshd."""
    global files  # noqa: PLW0603
    files = None if request.param == "local" else request.getfixturevalue("sftp")
    return str(request.param)


async def judge(path: str) -> Answer:
    """The judgement of one file: in a thread, as it blocks."""
    return await asyncio.to_thread(checkpoint_files.judge, path, files)


def touch(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def npz(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, w=np.arange(1000), step=np.int64(1))
    return path


def safetensors(path: Path, count: int = 16, missing: int = 0) -> Path:
    header = b'{"__metadata__":{"a":"b"},"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (count, count)
    return touch(path, struct.pack("<Q", len(header)) + header + b"w" * (count - missing))


def test_it_is_checkpoints():
    """The type checker accepts it for the contract."""
    contract: Checkpoints = CheckpointFiles()
    assert contract


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_000120.npz", 120),
        ("step-7.pt", 7),
        ("model_step_5.safetensors", 5),
        ("ckpt_10.pt", 10),
        ("ckpt.pt", None),
        ("last.ckpt", None),
        ("epoch=2-step=300.ckpt", 300),
        ("epoch=2-step=300-v1.ckpt", 300),
        ("gpt--val_loss=2.31-step=900-consumed_samples=7200.0.ckpt", 900),
        ("checkpoint-500/model.safetensors", 500),
        ("iter_0000100/mp_rank_00/model_optim_rng.pt", 100),
        ("global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt", 100),
        ("step-100/__0_0.distcp", 100),
        ("epoch=0-step=9/weights/__0_0.distcp", 9),
    ],
)
async def test_names_of_known_trainers(tmp_path: Path, name: str, step: int | None):
    """Each trainer's names are recognised, with their step."""
    touch(tmp_path / "run" / name)
    (found,) = await find(str(tmp_path))
    assert found.step == step
    assert found.path == str(tmp_path / "run" / name.split("/", maxsplit=1)[0])
    assert found.size == 1


@pytest.mark.parametrize(
    "name",
    [
        *("step_1.npz.tmp", "tmp_step_1.npz", ".step_1.npz", "step_1.npz~", "step_1.partial.pt", "step_1.txt"),
        *("tmp-checkpoint-500/x.pt", "checkpoint-500.incomplete/x.pt", "steps/readme", "global_stepx/x", "iter_/x"),
    ],
)
async def test_temporary_and_other_names_are_ignored(tmp_path: Path, name: str):
    """What is being written, or has another name, is no checkpoint."""
    touch(tmp_path / name)
    assert await find(str(tmp_path)) == ()


async def test_newest_step_first_and_at_most_100(tmp_path: Path):
    """Steps sort as numbers; a checkpoint without a step comes last."""
    for step in range(1, 120):
        touch(tmp_path / f"step_{step}.pt")
    touch(tmp_path / "ckpt.pt")
    found = await find(str(tmp_path))
    assert [c.step for c in found] == list(range(119, 19, -1))


async def test_a_torn_file_is_not_whole(tmp_path: Path):
    """A zip file cut anywhere, an empty one and one that is no zip are not whole; a sound one is."""
    data = npz(tmp_path / "step_1.npz").read_bytes()
    for cut in (1, 30, len(data) // 2, len(data) - 1):
        assert await judge(str(touch(tmp_path / "step_2.npz", data[:cut]))) is Answer.NO, cut
        if cut > 4:
            assert await judge(str(touch(tmp_path / "step_2.pt", data[:cut]))) is Answer.NO, cut
    touch(tmp_path / "step_3.npz", b"")
    touch(tmp_path / "step_4.npz", b"not a zip file")
    assert {c.step: c.whole for c in await find(str(tmp_path))} == {
        1: Answer.YES,
        2: Answer.NO,
        3: Answer.NO,
        4: Answer.NO,
    }


async def test_safetensors_are_judged_by_their_header(tmp_path: Path):
    """The header says how long the file must be; a header that is none leaves it unknown."""
    assert await judge(str(safetensors(tmp_path / "a.safetensors"))) is Answer.YES
    assert await judge(str(safetensors(tmp_path / "a.safetensors", missing=1))) is Answer.NO
    assert await judge(str(touch(tmp_path / "a.safetensors", b"\x05\x00"))) is Answer.NO
    assert await judge(str(touch(tmp_path / "a.safetensors", b"\xff" * 100))) is Answer.NO
    assert await judge(str(touch(tmp_path / "a.safetensors", struct.pack("<Q", 2) + b"{]"))) is Answer.UNKNOWN
    for strange in (
        b"[]",
        b"[" * 100_000,
        b'{"w":1}',
        b'{"w":{"data_offsets":["a","b"]}}',
        b'{"w":{"data_offsets":[]}}',
    ):
        made = touch(tmp_path / "a.safetensors", struct.pack("<Q", len(strange)) + strange)
        assert await judge(str(made)) is Answer.UNKNOWN


async def test_nothing_is_unpickled(tmp_path: Path):
    """A pickle that would run code when loaded is not loaded, bare or within a zip file."""
    proof = tmp_path / "proof"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(proof),)

    touch(tmp_path / "step_1.pt", pickle.dumps(Evil()))
    with zipfile.ZipFile(tmp_path / "step_2.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil()))
    assert {c.step: c.whole for c in await find(str(tmp_path))} == {1: Answer.UNKNOWN, 2: Answer.YES}
    assert not proof.exists()


async def test_a_directory_that_claims_too_much_is_not_read(tmp_path: Path):
    """A zip directory beyond reason leaves the file unknown, in bounded memory."""
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for n in range(200):
            archive.writestr("x" * 60_000 + str(n), b"")
    assert await judge(str(tmp_path / "a.pt")) is Answer.UNKNOWN


async def test_torch_saves_are_whole(tmp_path: Path):
    """What `torch.save` writes today is recognised as whole, cut short as not."""
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(1000)}, tmp_path / "step_1.pt")
    assert await judge(str(tmp_path / "step_1.pt")) is Answer.YES
    data = (tmp_path / "step_1.pt").read_bytes()
    assert await judge(str(touch(tmp_path / "step_2.pt", data[:-100]))) is Answer.NO


async def test_folders_are_judged_by_what_is_in_them(tmp_path: Path):
    """Empty or torn parts: no; torch's metadata or the trainer's own tracker: yes; otherwise unknown."""
    (tmp_path / "checkpoint-1").mkdir()
    touch(tmp_path / "checkpoint-2/rng_state.pth", b"")
    npz(tmp_path / "checkpoint-3/w.npz")
    touch(tmp_path / "step-4/__0_0.distcp")
    touch(tmp_path / "step-5/__0_0.distcp")
    touch(tmp_path / "step-5/.metadata")
    touch(tmp_path / "iter_0000006/model.bin")
    touch(tmp_path / "iter_0000007/model.bin")
    touch(tmp_path / "latest_checkpointed_iteration.txt", b"6\n")
    touch(tmp_path / "x-step=8.ckpt")
    touch(tmp_path / "x-step=8-unfinished", b"")
    assert {c.step: c.whole for c in await find(str(tmp_path))} == {
        1: Answer.NO,
        2: Answer.NO,
        3: Answer.UNKNOWN,
        4: Answer.NO,
        5: Answer.YES,
        6: Answer.YES,
        7: Answer.UNKNOWN,
        8: Answer.NO,
    }


async def test_the_walk_is_bounded(tmp_path: Path):
    """Four levels down is too deep, links in circles end, links to nowhere and FIFOs are passed by."""
    touch(tmp_path / "a/b/step_1.pt")
    touch(tmp_path / "a/b/c/step_2.pt")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "step_3.pt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4/self").symlink_to(tmp_path / "checkpoint-4")
    os.mkfifo(tmp_path / "step_5.pt")
    assert [c.step for c in await find(str(tmp_path))] == [4, 1]


async def test_too_many_entries_are_not_no_checkpoint(tmp_path: Path):
    """Where the bound is reached with nothing found, that is said; what lies near the root is found."""
    (tmp_path / "data").mkdir()
    for n in range(MAX_ENTRIES + 10):
        (tmp_path / "data" / str(n)).touch()
    with pytest.raises(LogUnreadableError, match="among the first"):
        await find(str(tmp_path))
    touch(tmp_path / "zz" / "notes")
    touch(tmp_path / "step_1.pt")
    assert [c.step for c in await find(str(tmp_path))] == [1]


async def test_an_unreadable_root_raises(tmp_path: Path):
    """A root that is missing or no folder is unreadable, not empty; an empty one is empty."""
    touch(tmp_path / "file")
    for root in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(LogUnreadableError):
            await find(str(root))
    (tmp_path / "empty").mkdir()
    assert await find(str(tmp_path / "empty")) == ()


async def test_a_link_to_the_root_is_fine(tmp_path: Path):
    """Checkpoint folders are often links to faster storage."""
    touch(tmp_path / "real/step_1.pt")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert [c.path for c in await find(str(tmp_path / "link"))] == [str(tmp_path / "link/step_1.pt")]


def test_each_kind_of_name_has_one_group():
    """Each entry of the table has one group, the step."""
    assert all(names.pattern.groups == 1 for names in NAMES)
