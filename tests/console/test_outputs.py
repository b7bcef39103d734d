"""`relight outputs`: what was kept of each attempt, also under the ids that the job had before; and one of these."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from relight.domain.incidents import Outcome, Phase
from relight.domain.resubmission import Link, link_cursor
from tests.console.conftest import Night, ago


@pytest.fixture
def kept(night: Night, data: Path) -> Path:
    """Job 4800 failed, and goes on as job 4801, which failed, too."""
    first = night.attempt(4800, ago(hours=5), lineage="j1")
    second = night.attempt(4801, ago(hours=3), lineage="j1", comment="relight-fresh:0123456789ab")
    link = Link(lineage="j1", user="alice", mark="relight-fresh:0123456789ab", before=(4800,))
    night.commit(cursors={link_cursor("main", 4801): link.model_dump(mode="json")})
    closed = {"phase": Phase.CLOSED, "outcome": Outcome.RECOVERED, "closed_at": ago(hours=1)}
    night.commit(
        incidents=(
            night.incident("i0000000a1", first, ago(hours=4), **closed),
            night.incident("i0000000b2", second, ago(hours=2), **closed),
        )
    )
    for path, text in {
        "4800/i0000000a1/train.log.0123456789ab": "step 1\nstep 2\n",
        "4801/i0000000b2/train.log.0123456789ac": "step 3\n\x1b[31mstep 4\n",
        "4801/i0000000b2/err.log.0123456789ad": "",
    }.items():
        file = data / "outputs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return data / "outputs"


def test_each_attempts_outputs_are_listed(relight: Callable[..., Result], kept: Path) -> None:
    """In the order of the attempts, of all ids; for programs, or of one attempt."""
    told = json.loads(relight("outputs", "4801", "-o", "json").output)
    assert [(each["attempt"], each["job_id"], each["file"], each["bytes"]) for each in told] == [
        (1, 4800, "train.log", 14),
        (2, 4801, "err.log", 0),
        (2, 4801, "train.log", 19),
    ]
    done = relight("outputs", "4801", "--attempt", "1")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[1].split()[:3] == ["1", "4800", "i0000000a1"]
    assert "i0000000b2" not in done.output


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("--path", "err.log"), ""),
        (("--attempt", "1", "--path", "train.log"), "step 1\nstep 2\n"),
        (("--attempt", "1", "--path", "train.log", "--tail", "1"), "step 2\n"),
    ],
)
def test_one_is_printed(relight: Callable[..., Result], kept: Path, words: tuple[str, ...], printed: str) -> None:
    """As it is, or only its last lines."""
    done = relight("outputs", "4801", *words)
    assert (done.exit_code, done.output) == (0, printed)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("4899",), 4, "nothing is kept of job 4899"),
        (("4801", "--attempt", "7"), 4, "nothing is kept of attempt 7; of these there is: 1, 2"),
        (("4801", "--path", "train.log"), 4, "2 kept outputs are called 'train.log'"),
        (("4801", "--path", "/etc/passwd"), 4, "no kept output is called '/etc/passwd'"),
        (("4801", "--tail", "3"), 2, "--tail needs --path"),
    ],
)
def test_what_is_not_there_is_said(
    relight: Callable[..., Result], kept: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """In one line, with what there is."""
    done = relight("outputs", *words)
    assert done.exit_code == code
    assert said in done.output
