"""The folder of kept outputs: what is a copy of ours is listed and removed, and nothing else, whatever lies there."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.clients.outputs import KeptOutputs
from relight.domain.kept_outputs import KeptOutput, expired

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two jobs' outputs, and much that is none of ours."""
    root, elsewhere = tmp_path / "outputs", tmp_path / "elsewhere"
    for path, text in {
        "7/i1a/out.log.0123456789ab": "step 1\nstep 2\n",
        "7/i1b/out.log.0123456789ac": "step 3\n",
        "8/i1c/err.log.0123456789ad": "",
        "7/i1b/.out.log.0123456789ae.part": "half a copy",
        "nodes/n1/c1/kern.log": "evidence",
        "7/README": "a person's",
        "007/i1a/x.0123456789ab": "no job's number",
    }.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (elsewhere / "i1a").mkdir(parents=True)
    (elsewhere / "i1a" / "precious").write_text("theirs")
    (root / "9").symlink_to(elsewhere)
    (root / "8/i1d").symlink_to(elsewhere / "i1a")
    (root / "8/i1c/link").symlink_to(elsewhere / "i1a" / "precious")
    os.mkfifo(root / "8/i1c/fifo")
    return root


def test_only_copies_are_listed(root: Path) -> None:
    """No link, no FIFO, no half a copy, no folder of another kind; of one job, or of all."""
    kept = KeptOutputs(root)
    assert [(k.job_id, k.incident, k.original, k.size) for k in kept.listing()] == [
        (7, "i1a", "out.log", 14),
        (7, "i1b", "out.log", 7),
        (8, "i1c", "err.log", 0),
    ]
    assert [k.incident for k in kept.listing(7)] == ["i1a", "i1b"]
    assert kept.listing(99) == ()
    assert KeptOutputs(root / "missing").listing() == ()


def test_what_is_removed_is_what_was_listed(root: Path, tmp_path: Path) -> None:
    """Folders that it leaves empty go too; a link that took a copy's place, or a folder's, is not followed."""
    kept = KeptOutputs(root)
    first, second, third = kept.listing()
    (root / "7/i1b").rename(tmp_path / "moved")
    (root / "7/i1b").symlink_to(tmp_path / "elsewhere" / "i1a")
    (tmp_path / "elsewhere" / "i1a" / second.name).write_text("theirs")
    with pytest.raises(OSError, match=r"[Nn]ot a directory|[Ss]ymbolic"):
        kept.remove((second,))
    Path(third.path).unlink()
    Path(third.path).symlink_to(tmp_path / "elsewhere" / "i1a" / "precious")
    assert kept.remove((third, first, first)) == (first,)
    assert not (root / "7/i1a").exists()
    assert sorted(p.name for p in (tmp_path / "elsewhere" / "i1a").iterdir()) == [second.name, "precious"]
    assert (root / "7/README").exists()


def test_one_copy_is_read_from_its_end(root: Path) -> None:
    """No more than is asked for."""
    kept = KeptOutputs(root)
    first = kept.listing(7)[0]
    assert kept.tail(first, 1 << 20) == b"step 1\nstep 2\n"
    assert kept.tail(first, 7) == b"step 2\n"


def copy(name: str, days: float, size: int = 10, incident: str = "i1a") -> KeptOutput:
    return KeptOutput(7, incident, name, size, NOW - timedelta(days=days), f"/kept/7/{incident}/{name}")


@pytest.mark.parametrize(
    ("keep_for", "at_most", "gone"),
    [
        (30, 1000, ()),
        (5, 1000, ("old",)),
        (30, 25, ("old",)),
        (30, 15, ("old", "mid")),
        (30, 5, ("old", "mid", "new")),
        (5, 15, ("old", "mid")),
    ],
)
def test_the_oldest_go_first(keep_for: int, at_most: int, gone: tuple[str, ...]) -> None:
    """What is too old goes; of what is left, the oldest until the rest fits."""
    kept = [copy("new", 1), copy("old", 9), copy("mid", 4)]
    found = expired(kept, NOW, keep_for=timedelta(days=keep_for), keep_at_most=at_most, open_incidents=())
    assert tuple(each.name for each in found) == gone


def test_nothing_of_an_open_incident_goes() -> None:
    """However old, and though it alone is too much; what else there is makes room."""
    kept = [copy("open", 99, 1000, "i1b"), copy("old", 9), copy("new", 1)]
    found = expired(kept, NOW, keep_for=timedelta(days=5), keep_at_most=100, open_incidents={"i1b"})
    assert [each.name for each in found] == ["old", "new"]
