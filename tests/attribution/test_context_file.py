"""What is known of an attempt besides its logs, read from a file."""

from pathlib import Path

import pytest

from relight.attribution.context_file import ContextFileError, read_context
from relight.attribution.sources import Context, PriorFailure, Seat
from relight.domain.slurm import JobState

WRITTEN = Context(
    nodes=("n1", "n2"),
    rank_map={0: Seat(node="n1", gpu="0"), 1: Seat(node="n2")},
    state=JobState.FAILED,
    history=(PriorFailure(signature="CUDA_ECC", nodes=("n2",)),),
)


def written(folder: Path, text: str, name: str = "context.yaml") -> Path:
    """A file with this text."""
    file = folder / name
    file.write_text(text)
    return file


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    """As models write themselves, and as a person writes."""
    as_json = written(tmp_path, WRITTEN.model_dump_json(), "context.json")
    by_hand = """
        nodes: [n1, n2]
        rank_map: {0: {node: n1, gpu: "0"}, 1: {node: n2}}
        state: FAILED
        history: [{signature: CUDA_ECC, nodes: [n2]}]
    """
    assert read_context(as_json) == read_context(written(tmp_path, by_hand)) == WRITTEN


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "found nothing, accepted is an object with nodes, rank_map"),
        ("[1]", "found a list, accepted is an object"),
        ("nodes: [n1", "not YAML: "),
        ("nods: [n1]", "(top): found the unknown field 'nods', accepted are nodes, rank_map"),
        ("rank_map: {0: {nod: n1}}", "rank_map.0: found the unknown field 'nod', accepted are node, gpu"),
        ("nodes: n1", "nodes: found 'n1', accepted: a list"),
        ("state: BROKEN", "state: found 'BROKEN', accepted: 'PENDING', 'RUNNING'"),
        ("rank_map: {0: {gpu: '1'}}", "rank_map.0.node: found nothing, accepted: a value"),
        ("interrupted_at: 2026-11-30T09:31:00", "interrupted_at: found 2026-11-30T09:31:00, accepted: a time with its"),
        ("nodes: " + "[" * 5000, "not YAML: "),
    ],
)
def test_bad_input_is_told_in_a_line(tmp_path: Path, text: str, told: str) -> None:
    """File, field, what was found, what is accepted."""
    file = written(tmp_path, text)
    with pytest.raises(ContextFileError) as error:
        read_context(file)
    assert str(error.value).startswith(f"{file}: ")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "told"), [("missing", "cannot be read: No such file"), (".", "cannot be read: Is a")])
def test_what_is_no_file_is_told(tmp_path: Path, name: str, told: str) -> None:
    """No traceback."""
    with pytest.raises(ContextFileError, match=told):
        read_context(tmp_path / name)


def test_binary_is_told(tmp_path: Path) -> None:
    """Where it stops being text."""
    file = tmp_path / "context.json"
    file.write_bytes(b'{"nodes": ["\xff"]}')
    with pytest.raises(ContextFileError, match=r"bytes that are not UTF-8 \(at 12\)"):
        read_context(file)
