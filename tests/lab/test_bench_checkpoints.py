"""The benchmark of looking at checkpoints: that it measures what it says. No time is asserted."""

import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from relight.lab.bench_checkpoints_command import checkpoints
from relight.lab.checkpoint_writers import LAYOUTS, step_of, whole
from relight.lab.dcp_metadata import PIECES, pickled_metadata


def test_a_small_one(tmp_path: Path):
    """All that is written is found, and whole."""
    options = ["--files", "1000", "--shards", "20", "--size", "1", "--repeat", "1", "--folder", str(tmp_path)]
    done = CliRunner().invoke(checkpoints, [*options, "--trials", "4", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["discovery"]["checkpoints"] == told["discovery"]["steps"] == 7
    assert (told["discovery"]["whole"], told["guard"]["whole"]) == ("yes", "yes")
    assert told["guard"]["bytes"] == 10**9
    assert told["discovery_s"] > 0
    assert told["guard_s"] > 0
    assert (told["trials"], told["restarts_from_damaged"], told["false_recovered"]) == (4, 0, 0)
    assert told["killed"]["layouts"] == dict.fromkeys(LAYOUTS, 1)
    assert [*tmp_path.iterdir()] == []
    assert "20 shards" in CliRunner().invoke(checkpoints, [*options, "--trials", "0"]).output


@pytest.mark.parametrize("name", [*LAYOUTS])
def test_its_loaders_notice_damage(tmp_path, name):
    """A trial that went on from something damaged would be counted: one byte, or one file, is enough."""
    layout = LAYOUTS[name]
    for step in (10, 20):
        layout.save(tmp_path, step)
    chosen = layout.choose(tmp_path)
    assert (step_of(chosen), whole(layout, chosen)) == (20, True)
    largest = max((p for p in (chosen, *chosen.rglob("*")) if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert not whole(layout, chosen)
    largest.unlink()
    assert not whole(layout, chosen)


def test_its_metadata_is_what_torch_reads():
    """Written operation by operation; torch's own classes come out."""
    pytest.importorskip("torch")
    metadata = pickle.loads(pickled_metadata(3, 1000))  # noqa: S301 - ours
    assert type(metadata).__name__ == "Metadata"
    assert len(metadata.storage_data) == 3 * PIECES
    assert {info.relative_path for info in metadata.storage_data.values()} == {f"__{n}_0.distcp" for n in range(3)}
    assert metadata.state_dict_metadata["layer.0.weight"].size == (3, 100)
