"""Checkpoints under damage."""

from pathlib import Path

import pytest

from relight.lab import checkpoints


def save_steps(folder: Path, *steps: int) -> None:
    """Save a checkpoint for each step."""
    for step in steps:
        checkpoints.save(folder, step, f"weights of {step}".encode(), ".npz")


def newest(folder: Path) -> tuple[str | None, list[str]]:
    """The newest valid checkpoint's name, and the warnings."""
    warnings: list[str] = []
    found = checkpoints.newest_valid(folder, ".npz", warnings.append)
    return (found.name if found else None), warnings


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    """A run that has no checkpoint, or not even the folder, starts anew without a warning."""
    assert newest(tmp_path / "missing") == (None, [])


def test_the_newest_three_are_kept(tmp_path: Path) -> None:
    """Older ones are removed with their digests, by step and not by name."""
    save_steps(tmp_path, 20, 40, 999_980, 1_000_000)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        f"step_{step}.npz{suffix}" for step in ("000040", "999980", "1000000") for suffix in ("", ".sha256")
    )
    assert newest(tmp_path) == ("step_1000000.npz", [])


@pytest.mark.parametrize("damage", ["truncate", "flip", "no digest", "empty digest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    """The one before it is taken, and a warning names the damaged file."""
    save_steps(tmp_path, 20, 40)
    file, digest = tmp_path / "step_000040.npz", tmp_path / "step_000040.npz.sha256"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-3])
    elif damage == "flip":
        file.write_bytes(b"W" + file.read_bytes()[1:])
    elif damage == "no digest":
        digest.unlink()
    else:
        digest.write_text("")
    found, warnings = newest(tmp_path)
    assert found == "step_000020.npz"
    assert len(warnings) == 1
    assert str(file) in warnings[0]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A temporary file of a killed writer, or another engine's checkpoint, is no checkpoint."""
    save_steps(tmp_path, 20)
    for name in (".step_000040.npz.77", "step_000060.pt", "step_best.npz"):
        (tmp_path / name).write_text("x")
    assert newest(tmp_path) == ("step_000020.npz", [])
    save_steps(tmp_path, 40, 60, 80)
    assert (tmp_path / "step_best.npz").exists()
