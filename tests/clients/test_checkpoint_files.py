"""Checkpoints are found by name, and judged without being loaded: in threads, on this machine and over SFTP."""

import os
import pickle
import struct
import zipfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from relight.clients import checkpoint_names, checkpoint_survey, checkpoint_tree
from relight.clients.checkpoint_files import CheckpointFiles
from relight.clients.checkpoint_names import claim
from relight.clients.checkpoint_readers import CheckpointReaders
from relight.clients.checkpoints import Checkpoints
from relight.clients.files import Files
from relight.domain.checkpoints import Checkpoint, Format, HowNamed, Root, Survey
from relight.domain.evidence import Answer

files: Files | None = None
YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN


@pytest.fixture(params=["local", "sftp"], autouse=True)
def where(request: pytest.FixtureRequest) -> str:
    """Where the files are: on this machine, or behind a real sshd."""
    global files  # noqa: PLW0603
    files = None if request.param == "local" else request.getfixturevalue("sftp")
    return str(request.param)


async def look(root: Path, **how: object) -> Survey:
    return await CheckpointFiles(files=files).look([Root(path=str(root), how=HowNamed.PERSON)], every=True, **how)


async def find(root: Path) -> dict[str, Checkpoint]:
    """What is found, by its last name."""
    return {each.name: each for series in (await look(root)).series for each in series.checkpoints}


async def judged(path: Path) -> tuple[Answer, str]:
    found = (await find(path.parent))[path.name]
    return found.whole, "; ".join(found.reasons)


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


def test_they_are_checkpoints():
    """The type checker accepts both for the contract."""
    contracts: tuple[Checkpoints, ...] = (CheckpointFiles(), CheckpointReaders())
    assert contracts


def test_each_format_has_a_judge():
    """What is named in the domain is judged by somebody."""
    assert {*checkpoint_names.JUDGES} == {*Format}


@pytest.mark.parametrize(
    ("name", "step", "kind"),
    [
        ("step_000120.npz", 120, "file"),
        ("step-7.pt", 7, "file"),
        ("model_step_5.safetensors", 5, "file"),
        ("ckpt_10.pt", 10, "file"),
        ("ckpt.pt", None, "file"),
        ("last.ckpt", None, "lightning"),
        ("epoch=2-step=300.ckpt", 300, "lightning"),
        ("epoch=2-step=300-v1.ckpt", 300, "lightning"),
        ("gpt--val_loss=2.31-step=900-consumed_samples=7200.0.ckpt", 900, "nemo"),
        ("llama--step=900-consumed_samples=7200.0-last/weights/__0_0.distcp", 900, "nemo"),
        ("checkpoint-500/model.safetensors", 500, "hugging_face"),
        ("checkpoint_3/model.safetensors", 3, "hugging_face"),
        ("iter_0000100/mp_rank_00/model_optim_rng.pt", 100, "megatron"),
        ("iter_0000100/train_state.pt", 100, "megatron_bridge"),
        ("global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt", 100, "deepspeed"),
        ("step-100/__0_0.distcp", 100, "torchtitan"),
        ("run7/.metadata", 7, "dcp"),
        ("epoch=0-step=9/weights/__0_0.distcp", 9, "lightning"),
        ("epoch_3/model.pt", 3, "folder"),
    ],
)
async def test_names_of_known_trainers(tmp_path: Path, name: str, step: int | None, kind: str):
    """Each trainer's names are recognised, with their step."""
    touch(tmp_path / "run" / name)
    (series,) = (await look(tmp_path)).series
    (found,) = series.checkpoints
    assert (found.step, found.format, found.size) == (step, kind, 1)
    assert found.path == str(tmp_path / "run" / name.split("/", maxsplit=1)[0])
    # A person may name the checkpoint itself.
    assert (await find(Path(found.path)))[found.name] == found


@pytest.mark.parametrize(
    "name",
    [
        *("step_1.npz.tmp", "tmp_step_1.npz", ".step_1.npz", ".step_1.npz.4711", "step_1.npz~", "step_1.pt.partial"),
        *("tmp-checkpoint-1/x.pt", "checkpoint-1.incomplete/x.pt", ".tmp_iter_1/x.pt", "step-1-unfinished/x.pt"),
    ],
)
async def test_names_that_say_unfinished(tmp_path: Path, name: str):
    """What is being written is found, with its step, and is not whole."""
    touch(tmp_path / name)
    (found,) = (await find(tmp_path)).values()
    assert (found.step, found.whole, found.published) == (1, NO, False)
    assert "being written" in found.reasons[0]


@pytest.mark.parametrize(
    "name", ["step_1.txt", "steps/readme", "global_stepx/x", "iter_/x", "data/x_1.pt", "step_2/log"]
)
async def test_other_names_are_ignored(tmp_path: Path, name: str):
    """What has another name, or holds no tensors, is no checkpoint."""
    touch(tmp_path / name)
    assert await find(tmp_path) == {}


def test_trackers_are_no_checkpoints():
    """What names the newest checkpoint is none itself."""
    for name in ("latest", "latest_checkpointed_iteration.txt", "latest_train_state.pt"):
        assert claim(name, is_folder=False) is None


async def test_newest_step_first_and_at_most_100(tmp_path: Path):
    """Steps sort as numbers; a checkpoint without a step comes last; how many older ones are left out is said."""
    for step in range(1, 120):
        npz(tmp_path / f"step_{step}.npz")
    npz(tmp_path / "ckpt.npz")
    (series,) = (await look(tmp_path)).series
    assert [c.step for c in series.checkpoints] == [*range(119, 19, -1), None]
    assert series.left_out == 19


async def test_a_torn_file_is_not_whole(tmp_path: Path):
    """A zip file cut anywhere, an empty one, one of zeros and one that is no zip are not whole; a sound one is."""
    data = npz(tmp_path / "step_1.npz").read_bytes()
    assert (await judged(tmp_path / "step_1.npz"))[0] is YES
    for cut in (0, 1, 30, len(data) // 2, len(data) - 1):
        answer, why = await judged(touch(tmp_path / "step_2.npz", data[:cut]))
        assert answer is NO, cut
        assert why
    for bad in (bytes(len(data)), b"not a zip file", data[:200] + bytes(100) + data[300:][:-200]):
        assert (await judged(touch(tmp_path / "step_2.npz", bad)))[0] is NO


async def test_safetensors_are_judged_by_their_header(tmp_path: Path):
    """The header says how long the file must be, and the tensors cover it exactly."""
    here = tmp_path / "model_1.safetensors"
    assert (await judged(safetensors(here)))[0] is YES
    assert await judged(safetensors(here, missing=1)) == (
        NO,
        "model_1.safetensors is 1 bytes short of what its header says",
    )
    assert (await judged(safetensors(here, missing=-1)))[0] is NO
    for strange in (
        *(b"\x05\x00", b"\xff" * 100, bytes(100), struct.pack("<Q", 2) + b"{]"),
        *(
            struct.pack("<Q", len(header)) + header
            for header in (
                b"[]",
                b"[" * 100_000,
                b'{"w":1}',
                b'{"w":{"data_offsets":["a","b"]}}',
                b'{"w":{"data_offsets":[]}}',
                b'{"w":{"data_offsets":[1,1]}}',
            )
        ),
    ):
        assert (await judged(touch(here, strange)))[0] is not YES, strange[:40]


async def test_nothing_is_unpickled(tmp_path: Path):
    """A pickle that would run code when loaded is not loaded, wherever it stands."""
    proof = tmp_path / "proof"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(proof),)

    evil = pickle.dumps(Evil())
    touch(tmp_path / "step_1.pt", evil)
    with zipfile.ZipFile(tmp_path / "ckpt.pt", "w") as archive:
        archive.writestr("archive/data.pkl", evil)
    touch(tmp_path / "step-3/.metadata", evil)
    touch(tmp_path / "step-3/__0_0.distcp")
    for name in ("latest_train_state.pt", "iter_0000004/train_state.pt"):
        touch(tmp_path / name, (tmp_path / "ckpt.pt").read_bytes())
    found = await find(tmp_path)
    whole = {name: each.whole for name, each in found.items()}
    assert whole == {"step_1.pt": UNKNOWN, "ckpt.pt": YES, "step-3": UNKNOWN, "iter_0000004": UNKNOWN}
    survey = await look(tmp_path, deep=True)
    assert {s.tracker.problem for s in survey.series if s.tracker} == {"cannot be read: half written, or damaged"}
    assert not proof.exists()


async def test_a_directory_that_claims_too_much_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A zip directory beyond reason leaves the file unknown, in bounded memory."""
    monkeypatch.setattr(checkpoint_tree.Limited, "limit", 1 << 20)
    with zipfile.ZipFile(tmp_path / "ckpt.pt", "w") as archive:
        for n in range(40):
            archive.writestr("x" * 60_000 + str(n), b"")
    assert (await judged(tmp_path / "ckpt.pt"))[0] is UNKNOWN


async def test_the_walk_is_bounded(tmp_path: Path):
    """Too deep a folder is said; links in circles end; links to nowhere and FIFOs are passed by."""
    npz(tmp_path / "a/b/c/d/step_1.npz")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "a/b/again").symlink_to(tmp_path / "a")
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4/self").symlink_to(tmp_path / "checkpoint-4")
    os.mkfifo(tmp_path / "step_5.pt")
    survey = await look(tmp_path)
    assert {c.step for s in survey.series for c in s.checkpoints} == {4, 1}
    assert survey.complete
    (tmp_path / "step_3.pt").symlink_to(tmp_path / "nowhere")
    npz(tmp_path / "a/b/c/d/e/f/step_2.npz")
    survey = await look(tmp_path)
    assert "too deep" in survey.problems[0]
    assert {c.step: c.whole for s in survey.series for c in s.checkpoints} == {4: NO, 3: UNKNOWN, 1: YES}


async def test_too_many_entries_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where the bound is reached that is said, and what lies near the root is found."""
    monkeypatch.setattr(checkpoint_survey.Tree, "__init__", _small)
    npz(tmp_path / "step_1.npz")
    for n in range(60):
        touch(tmp_path / "data" / str(n))
    survey = await look(tmp_path)
    assert [c.step for s in survey.series for c in s.checkpoints] == [1]
    assert "so much is there" in survey.problems[0]


_INIT = checkpoint_tree.Tree.__init__


def _small(tree: checkpoint_tree.Tree, files: Files, **more: int) -> None:
    _INIT(tree, files, most=50, **more)


async def test_an_unreadable_root_is_said(tmp_path: Path):
    """A root that is missing is a problem, not "no checkpoint"; an empty one is neither."""
    survey = await look(tmp_path / "none")
    assert (survey.series, survey.complete) == ((), False)
    assert "no such folder" in survey.problems[0]
    (tmp_path / "empty").mkdir()
    survey = await look(tmp_path / "empty")
    assert (survey.series, survey.complete) == ((), True)


async def test_time_is_up(tmp_path: Path):
    """With no time nothing is looked at, and that is said."""
    npz(tmp_path / "step_1.npz")
    survey = await look(tmp_path, within=timedelta(0))
    assert (survey.series, survey.complete) == ((), False)
    assert "time was up" in survey.problems[0]


async def test_other_users_files_are_left_out(tmp_path: Path):
    """With an owner given, checkpoints of others are not looked at, and no tracker of theirs is read."""
    npz(tmp_path / "step_1.npz")
    mine = os.getuid()
    assert (await look(tmp_path, owner=mine)).series
    survey = await look(tmp_path, owner=mine + 1)
    assert survey.series == ()
    assert "belongs to another user" in survey.problems[0]
    if mine == 0:
        theirs = npz(tmp_path / "theirs/iter_0000001/model_optim_rng.pt.npz")
        secret = touch(tmp_path / "secret", b"12345")
        os.chown(theirs, mine + 1, -1)
        (tmp_path / "theirs/latest_checkpointed_iteration.txt").symlink_to(secret)
        (series,) = (await look(tmp_path / "theirs", owner=mine + 1)).series
        assert series.tracker
        assert "another user" in series.tracker.problem
        assert series.tracker.says == ""


async def test_a_link_to_the_root_and_to_the_last(tmp_path: Path):
    """Checkpoint folders are often links to faster storage; a link called last marks what it leads to."""
    npz(tmp_path / "real/checkpoint-1/w.npz")
    npz(tmp_path / "real/checkpoint-2/w.npz")
    (tmp_path / "real/last").symlink_to("checkpoint-1")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (series,) = (await look(tmp_path / "link")).series
    assert series.folder == str(tmp_path / "link")
    assert [(c.name, c.last) for c in series.checkpoints] == [("checkpoint-2", False), ("checkpoint-1", True)]


async def test_what_is_of_unknown_trainers_is_not_refused(tmp_path: Path):
    """Sound files of another trainer under a known name, raw files beside them, odd extras: never *no*."""
    npz(tmp_path / "checkpoint-1/model.pt")
    (tmp_path / "checkpoint-1/model.pt.npz").rename(tmp_path / "checkpoint-1/model.pt")
    npz(tmp_path / "epoch_2/w.npz")
    touch(tmp_path / "epoch_2/vocab.pkl", pickle.dumps([1]))
    touch(tmp_path / "epoch_2/table.bin", bytes(100) + b"x")
    touch(tmp_path / "step_3/old.pt", pickle.dumps([1]))
    touch(tmp_path / "step=4/.metadata", b"\x80\x04N.")
    assert {name: each.whole for name, each in (await find(tmp_path)).items()} == dict.fromkeys(
        ("checkpoint-1", "epoch_2", "step_3", "step=4"), UNKNOWN
    )


async def test_a_link_called_latest_may_be_a_run(tmp_path: Path):
    """Its checkpoints are found, and it is none itself; beside checkpoints it is one of them."""
    npz(tmp_path / "latest/checkpoint-5/w.npz")
    assert [*await find(tmp_path)] == ["checkpoint-5"]
    npz(tmp_path / "run/checkpoint-5/w.npz")
    npz(tmp_path / "run/last/w.npz")
    assert {*await find(tmp_path / "run")} == {"checkpoint-5", "last"}


async def test_the_work_dir_comes_last(tmp_path: Path):
    """A work dir is looked through only where better roots hold nothing; what two roots hold counts once."""
    npz(tmp_path / "run/out/step_1.npz")
    npz(tmp_path / "run/other/step_2.npz")
    better, work = (
        Root(path=str(tmp_path / "run/out"), how=HowNamed.SCRIPT),
        Root(path=str(tmp_path / "run"), how=HowNamed.WORK_DIR),
    )
    looking = CheckpointFiles(files=files)
    assert [s.folder for s in (await looking.look([better, work])).series] == [better.path]
    assert len((await looking.look([work])).series) == 2
    again = await looking.look([better, work.model_copy(update={"how": HowNamed.PERSON})])
    assert [s.how for s in again.series] == [HowNamed.SCRIPT, HowNamed.PERSON]
