"""`relight checkpoints`, for people and for programs."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from relight.console import parts
from relight.console.checkpoints import size
from relight.domain.attempts import AttemptKey
from relight.domain.checkpoint_look import CheckpointLook, FallBack, Why
from relight.domain.checkpoints import Checkpoint, Format, HowNamed, Series
from relight.domain.evidence import Answer, Interruption
from relight.domain.incidents import Incident, Phase
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Policy, Verdict
from relight.lab.checkpoints import save
from tests.console.conftest import Night, ago


def npz(path: Path) -> bytes:
    np.savez(path, w=np.arange(1000))
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints of the lab's trainer, the newest one cut short."""
    content = npz(tmp_path / "made.npz")
    for step in (100, 200, 300):
        newest = save(tmp_path / "run" / "checkpoints", step, content, ".npz")
    os.truncate(newest, 500)
    return tmp_path / "run"


def test_a_table_for_people(relight: Callable[..., Result], folder: Path):
    """Which is whole, which is not and why, and which one a restart takes."""
    done = relight("checkpoints", str(folder))
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[0] == [str(folder / "checkpoints"), "lab"]
    assert rows[1] == ["step", "age", "size", "files", "whole", "why"]
    assert rows[2][0] == "300"
    assert "no step_000300.npz is cut short" in " ".join(rows[2])
    assert rows[3][:2] == ["→", "200"]
    assert "A restart goes on from step 200, which is whole; step 300 is newer, and damaged." in done.output
    assert "Room for the next one: enough" in done.output


def test_json(relight: Callable[..., Result], folder: Path):
    """All that is known, for programs."""
    told = json.loads(relight("checkpoints", str(folder), "--deep", "-o", "json").output)
    (series,) = told["series"]
    assert [(c["step"], c["whole"], c["deep"]) for c in series["checkpoints"]] == [
        (300, "no", False),
        (200, "yes", True),
        (100, "yes", False),
    ]
    assert series["choice"]["taken"]["step"] == 200
    assert (series["room"], series["gaps"], told["problems"]) == ("yes", [], [])


def test_the_status_says_that_a_restart_is_not_safe(relight: Callable[..., Result], night: Night, tmp_path: Path):
    """1 when what a restart would take is damaged, 4 when there is nothing."""
    for step in (1, 2):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    done = relight("checkpoints", str(tmp_path / "run"))
    assert done.exit_code == 1
    assert "A restart would go on from step 2, which is damaged (it is empty); no whole one is known." in done.output
    done = relight("checkpoints", str(tmp_path / "none"))
    assert done.exit_code == 4
    assert "no such folder" in done.output
    done = relight("checkpoints", "123456")
    assert done.exit_code == 4
    assert "was ever seen" in done.output


def test_a_job_is_found_by_what_it_says(relight: Callable[..., Result], night: Night, folder: Path):
    """By its output, here; the work dir would hold others."""
    output = folder / "slurm-77.out"
    output.write_text(f"step 1\nsaved checkpoint step 200 ({folder}/checkpoints/step_000200.npz)\n")
    night.attempt(77, ago(hours=1), user="root" if os.getuid() == 0 else "", stdout=str(output), work_dir="/tmp")
    done = relight("checkpoints", "77")
    assert done.exit_code == 0, done.output
    assert "lab, named by the job's output" in done.output
    assert "A restart goes on from step 200" in done.output


def test_names_are_safe_on_a_terminal(relight: Callable[..., Result], tmp_path: Path):
    """A file's name may hold anything."""
    npz(tmp_path / "x\x1b[2Jx_step_5.npz")
    done = relight("checkpoints", str(tmp_path))
    assert "\x1b[2J" not in done.output


def test_sizes():
    """Three digits, and a unit."""
    assert [size(n) for n in (0, 999, 1000, 123_456_789, 1.2e12, 5e18)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "123 MB",
        "1.2 TB",
        "5000 PB",
    ]


def test_a_plan_is_shown_with_what_was_known_of_the_checkpoints():
    """`show` and `why` say what a restart would have gone on from, and where that lies; without a look, nothing."""
    at = datetime(2026, 12, 1, tzinfo=UTC)
    key = AttemptKey(cluster="c", job_id=7, submit_time=at)
    found = checkpoint("/run/checkpoint-40", 40, Answer.NO, at), checkpoint("/run/checkpoint-30", 30, Answer.YES, at)
    series = Series(folder="/run", format=Format.HUGGING_FACE, how=HowNamed.LOG, checkpoints=found)
    back = FallBack(why=Why.DAMAGED, folder="/run", target="checkpoint-30", step=30, aside=("checkpoint-40",))
    plan = Plan(attempt=key, restart=Restart.REQUEUE, fall_back=back, reason="killed")
    look = CheckpointLook(series=series, read_at=at)
    given = {"id": "i1", "workflow_id": "w", "run_id": "r", "attempt": key, "lineage": "j", "kind": Interruption.CRASH}
    given |= {"phase": Phase.PLANNING, "mode": Mode.AUTO, "opened_at": at, "detected_at": at}
    for known, shown in ((look, True), (None, False)):
        verdict = Verdict(plan=plan, mode=Mode.AUTO, mode_reason="", policy=Policy(), checkpoints=known)
        body = verdict.model_dump(mode="json")
        row = Row(id="p", kind=RowKind.PLANNED, at=at, cluster="c", body=body, seq=1, prev_hash="", hash="")
        told = {
            part.label: "\n".join(line.plain for line in part.lines) for part in parts.plan(Incident(**given), [row])
        }
        assert "go back to the checkpoint of step 30 (checkpoint-40 put aside)" in told["Plan"]
        assert ("step 40, which is damaged" in told.get("Checkpoint", "")) is shown


def checkpoint(path, step, whole, at):
    given = {"path": path, "step": step, "format": Format.HUGGING_FACE, "modified_at": at, "size": 1}
    return Checkpoint(**given, whole=whole)
