"""Real checkpoints, written by the real libraries, and then damaged: each damage is found, and no sound one refused.

Trainers that cannot be run here are written by their documented layout (`checkpoint_layouts`), with torch's own files.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from relight.clients.checkpoint_readers import CheckpointReaders
from relight.domain.checkpoints import HowNamed, Root, Series, Survey, choose, main_series
from relight.domain.evidence import Answer
from relight.lab.ports import claimed_ports
from tests.clients import checkpoint_layouts as layouts

pytestmark = pytest.mark.slow
YES, NO = Answer.YES, Answer.NO
REAL = {
    "dcp": "torchtitan",
    "fsdp": "torchtitan",
    "trainer": "hugging_face",
    "sharded": "hugging_face",
    "accelerate": "hugging_face",
    "lightning": "lightning",
    "files": "file",
    "safetensors": "file",
    "lab": "lab",
    "deepspeed": "deepspeed",
    "zero3": "deepspeed",
    "megatron": "megatron",
}
DOCUMENTED = {
    "megatron_legacy": "megatron",
    "megatron_dist": "megatron",
    "megatron_bridge": "megatron_bridge",
    "nemo": "nemo",
    "deepspeed_zero": "deepspeed",
    "lightning_fsdp": "lightning",
    "plain_folder": "dcp",
}
FORMATS = REAL | DOCUMENTED
"""What each writes, as we name it."""


@pytest.fixture(scope="module")
async def readers() -> AsyncIterator[CheckpointReaders]:
    """What looks at this machine's checkpoints."""
    async with CheckpointReaders() as readers:
        yield readers


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a tree of checkpoints once; its users damage copies."""
    made: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("made") / name
            if name in REAL or name == "nanogpt":
                _run(name, made[name])
            else:
                pytest.importorskip("torch")
                with _quiet():
                    getattr(layouts, name)(made[name])
        if not made[name].exists():
            pytest.skip(f"what writes {name} is not installed")
        return made[name]

    return write


class _quiet:  # noqa: N801 - reads like a function where it is used
    """torch warns that a single process saves, which is what is wanted."""

    def __enter__(self) -> None:
        import warnings

        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *error: object) -> None:
        self._caught.__exit__(*error)


def _run(name: str, folder: Path) -> None:
    program = Path(__file__).with_name("real_trainers.py")
    with claimed_ports(1) as port:
        done = subprocess.run(
            [sys.executable, str(program), name, str(folder)],
            env=os.environ | {"PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode not in (0, 77):
        pytest.fail(f"{name}: {done.stderr[-2000:]}")


@pytest.fixture
def copied(written: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of such a tree."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(written(name), tmp_path / name, symlinks=True))

    return copy


async def look(readers: CheckpointReaders, root: Path, *, deep: bool = False) -> Survey:
    return await readers.look([Root(path=str(root), how=HowNamed.PERSON)], deep=deep, every=True)


async def series_of(readers: CheckpointReaders, root: Path, *, deep: bool = False) -> Series:
    series = main_series(await look(readers, root, deep=deep))
    assert series is not None
    return series


@pytest.mark.parametrize("name", FORMATS)
async def test_sound_checkpoints_are_whole(readers: CheckpointReaders, written: Callable[[str], Path], name: str):
    """Of each format all are found with their steps, each is whole, also by the deep check, and the newest is taken."""
    survey = await look(readers, written(name), deep=True)
    assert survey.problems == ()
    series = main_series(survey)
    assert series is not None
    assert series.format == FORMATS[name]
    assert {c.whole for c in series.checkpoints} == {YES}, [c.reasons for c in series.checkpoints]
    steps = [0, 1, 2] if name == "accelerate" else [10, 20, 30]
    assert sorted({c.step for c in series.checkpoints}) == steps
    assert series.checkpoints[0].deep
    choice = choose(series)
    if choice.taken:  # else it is up to the script
        assert choice.taken.step == steps[-1]
        assert choice.safe is YES
    assert series.folder in survey.space


async def test_one_file_tells_its_step(readers: CheckpointReaders, written: Callable[[str], Path]):
    """nanoGPT's file has no step in its name: it is read out of it, as data."""
    (found,) = (await series_of(readers, written("nanogpt"))).checkpoints
    assert (found.step, found.whole) == (30, YES)


def newest(root: Path, name: str) -> Path:
    """The newest checkpoint of a tree."""
    if name == "accelerate":
        return root / "checkpoints" / "checkpoint_2"
    (found,) = [each for each in root.iterdir() if "30" in each.name and not each.name.endswith(".sha256")]
    return found


def parts(checkpoint: Path) -> list[Path]:
    """Its files that hold tensors, and the list of those."""
    endings = (".pt", ".pth", ".bin", ".safetensors", ".npz", ".ckpt", ".distcp", ".pkl", ".metadata", ".index.json")
    if checkpoint.is_file():
        return [checkpoint]
    # What the Trainer keeps of its own arguments is not needed to go on.
    found = sorted(f for f in checkpoint.rglob("*") if f.is_file() and f.name.endswith(endings))
    # One of each kind: shards differ in their numbers only.
    kinds = {re.sub(r"\d+", "#", str(f)): f for f in found if f.name != "training_args.bin"}
    return [*kinds.values()]


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


def cut_the_end(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 2)


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


DAMAGES = (empty, cut, cut_the_end, zero, Path.unlink)


@pytest.mark.parametrize("name", FORMATS)
async def test_each_damage_of_each_file_is_found(
    readers: CheckpointReaders, written: Callable[[str], Path], tmp_path: Path, name: str
):
    """Each file of the newest emptied, cut short, zeroed or removed: it is whole no longer, and the others are."""
    root = written(name)
    missed = []
    for number in range(len(parts(newest(root, name)))):
        for damage in DAMAGES:
            copy = Path(shutil.copytree(root, tmp_path / "copy", symlinks=True))
            part = parts(newest(copy, name))[number]
            damage(part)
            deep = damage is zero and part.name.endswith((".distcp",))  # its bytes are looked at in the deep check only
            survey = await look(readers, copy, deep=deep)
            whole = {c.path: c.whole for s in survey.series for c in s.checkpoints}
            damaged = str(newest_path(copy, name))
            if whole.get(damaged) is YES and not _spares(part, damage):
                missed.append(f"{damage.__name__} {part.relative_to(copy)}")
            # last.ckpt and the other steps are as they were.
            assert all(answer is YES for path, answer in whole.items() if path != damaged), (damage, part, survey)
            shutil.rmtree(copy)
    assert missed == []


def newest_path(root: Path, name: str) -> Path:
    """Where the newest one is, also when it is gone."""
    try:
        return newest(root, name)
    except ValueError:
        return root


def _spares(part: Path, damage: Callable[[Path], None]) -> bool:
    """What cannot be told: random states are missed by nobody but the generator; a plain pickle has no directory."""
    if damage is Path.unlink:
        return part.name == "rng_state.pth" or part.suffix in {".ckpt", ".npz"} or part.parent.name == "files"
    return False


@pytest.mark.parametrize(
    "name", ["dcp", "trainer", "deepspeed_zero", "megatron_dist", "nemo", "lightning", "lab", "files"]
)
async def test_half_renamed_ones_are_not_whole(readers: CheckpointReaders, copied: Callable[[str], Path], name: str):
    """A checkpoint whose name says that it is being written is found, is not whole, and no trainer takes it."""
    for rename in ("{}.tmp", "tmp-{}", ".{}.partial", "{}_tmp"):
        root = copied(name)
        checkpoint = newest(root, name)
        checkpoint.rename(checkpoint.with_name(rename.format(checkpoint.name)))
        (root / "last.ckpt").unlink(missing_ok=True)
        found = [c for s in (await look(readers, root)).series for c in s.checkpoints]
        assert {c.step: c.whole for c in found} == {30: NO, 20: YES, 10: YES}, rename
        (half,) = [c for c in found if c.step == 30]
        assert "being written" in half.reasons[0]
        shutil.rmtree(root)


async def test_nemos_marker_says_that_it_is_not_finished(readers: CheckpointReaders, copied: Callable[[str], Path]):
    """NeMo's own marker beside a checkpoint: not whole, and the one before it is taken."""
    root = copied("nemo")
    checkpoint = newest(root, "nemo")
    checkpoint.with_name(checkpoint.name + "-unfinished").touch()
    choice = choose(await series_of(readers, root))
    assert choice.newest
    assert choice.newest.whole is NO
    assert choice.taken
    assert (choice.taken.step, choice.safe) == (20, YES)


async def test_a_nemo_archive(readers: CheckpointReaders, copied: Callable[[str], Path]):
    """A `.nemo` is a tar file: whole with its end, not without."""
    file = copied("nemo_tar") / "llama.nemo"
    (found,) = (await series_of(readers, file.parent)).checkpoints
    assert (found.whole, found.format) == (YES, "nemo")
    os.truncate(file, 2000)
    (found,) = (await series_of(readers, file.parent)).checkpoints
    assert found.whole is NO


TRACKERS = {
    "megatron_legacy": ("latest_checkpointed_iteration.txt", b"20"),
    "megatron_bridge": ("latest_train_state.pt", None),
    "deepspeed_zero": ("latest", b"global_step20"),
}


@pytest.mark.parametrize("name", TRACKERS)
async def test_the_tracker_decides(readers: CheckpointReaders, copied: Callable[[str], Path], name: str):
    """A tracker behind the newest is followed; half written, or leading nowhere, it makes a restart unsafe."""
    root = copied(name)
    file, behind = root / TRACKERS[name][0], TRACKERS[name][1]
    if behind is None:
        shutil.copy(root / "iter_0000020" / "train_state.pt", file)
    else:
        file.write_bytes(behind)
    choice = choose(await series_of(readers, root))
    assert choice.taken
    assert (choice.taken.step, choice.safe, choice.tracker_agrees) == (20, YES, NO)
    assert "step 30 is newer" in choice.sentence
    for broken in (b"", b"\0\0", b"iter", b"99999", b"global_st"):
        file.write_bytes(broken)
        choice = choose(await series_of(readers, root))
        assert (choice.taken, choice.safe) == (None, NO), broken
        assert choice.fall_back
        assert choice.fall_back.step == 30
        assert file.name in choice.sentence


async def test_a_flipped_byte_is_seen_by_the_deep_check_alone(
    readers: CheckpointReaders, copied: Callable[[str], Path]
):
    """Checksums are compared on request, and the one before it is read then."""
    for name in ("dcp", "files", "lab", "deepspeed_zero", "nemo"):
        root = copied(name)
        file = max(parts(newest(root, name)), key=lambda each: each.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2 if name in ("files", "lab") else _payload(data)] ^= 1
        file.write_bytes(data)
        assert (await series_of(readers, root)).checkpoints[0].whole is YES
        first, second, *_ = (await series_of(readers, root, deep=True)).checkpoints
        assert (first.whole, first.deep, second.whole, second.deep) == (NO, True, YES, True), name


def _payload(data: bytes) -> int:
    """Within the first pickle, behind its name and what fills up to it."""
    return data.index(b"\x80\x02", data.index(b"data.pkl")) + 2


async def test_only_so_many_are_judged_unless_asked(readers: CheckpointReaders, written: Callable[[str], Path]):
    """For a restart three whole ones are enough: older ones are not read, and stay unknown."""
    root = written("dcp")
    many = root.parent / "many"
    if not many.exists():
        for step in range(1, 7):
            shutil.copytree(root / "step-10", many / f"step-{step}")
    survey = await readers.look([Root(path=str(many), how=HowNamed.PERSON)])
    assert [c.whole for c in survey.series[0].checkpoints] == [YES, YES, YES, *[Answer.UNKNOWN] * 3]
    assert "newer ones are whole" in survey.series[0].checkpoints[-1].reasons[0]
