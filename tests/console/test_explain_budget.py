"""`relight why` on a job's restarts: the ledger of its budget, its back-off, and what is kept out of its retries."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from relight.domain.attempts import LogPosition, Progress, progress_cursor
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.exclusions import shown
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode

from .conftest import GPUS, Night, ago, ecc, verdict_for

JOB = 4900
NODES = (*GPUS, "gpu-005", "gpu-006")


def unknown() -> Diagnosis:
    cause = Hypothesis(
        signature="UNKNOWN",
        category=Category.UNKNOWN,
        action=Action.RESTART,
        action_if_it_repeats=Action.STOP,
        confidence=0.1,
    )
    return Diagnosis(hypotheses=(cause,), failed_step=40)


def attempt(night: Night, number: int, hours: float, *, saved: int | None = None, excluded: tuple[str, ...] = ()):
    """Attempt of that number, begun so many hours ago."""
    own = night.attempt(
        JOB, ago(hours=hours), lineage="j00000b0d9e", name="nemotron", restarts=number, excluded_nodes=excluded
    )
    progress = Progress(last_step=40 * number + 40, saved_step=saved, files={"/out": LogPosition()})
    night.commit(cursors={progress_cursor(own.key): progress.model_dump(mode="json")})
    return own


def failed(night: Night, own, name: str, hours: float, *, outcome: Outcome, why: Diagnosis):
    """An incident of that attempt, closed."""
    night.ended(own, ago(hours=hours), "FAILED", "relight")
    decided = verdict_for(own, Mode.AUTO)
    given = {"mode": Mode.AUTO, "phase": Phase.CLOSED, "outcome": outcome, "closed_at": ago(hours=hours - 0.1)}
    incident = night.incident(name, own, ago(hours=hours), diagnosis=why, plan=decided.plan, **given)
    night.opened(incident, own, decided)
    return incident


def excludes(night: Night, incident, own, node: str, hours: float, *, listed: tuple[str, ...]) -> None:
    """What EXCLUDE writes down: an exclusion for a day."""
    body = {"what": "exclude", "job": JOB, "nodes": [node], "until": {node: ago(hours=hours - 24).isoformat()}}
    night.row(incident, own, f"exclude-{node}/intent", RowKind.INTENT, ago(hours=hours), body)
    effect = {"step": f"exclude-{node}", "done": {"text": shown(listed)}}
    night.row(incident, own, f"exclude-{node}/effect", RowKind.EFFECT, ago(hours=hours), effect)


@pytest.fixture
def long_night(night: Night) -> Night:
    """A node broke, a checkpoint was saved, then two failures of unknown cause in a row; the second waits."""
    first = attempt(night, 0, 60)
    second = attempt(night, 1, 50, saved=60, excluded=("gpu-006", "gpu-003"))
    third = attempt(night, 2, 2, saved=60, excluded=("gpu-006", "gpu-003", "gpu-002"))
    one = failed(night, first, "i0000000001", 51, outcome=Outcome.RECOVERED, why=ecc("ECC"))
    excludes(night, one, first, "gpu-003", 51, listed=("gpu-003", "gpu-006"))
    two = failed(night, second, "i0000000002", 2.2, outcome=Outcome.RESTARTED_NO_PROGRESS, why=unknown())
    excludes(night, two, second, "gpu-002", 2.1, listed=("gpu-002", "gpu-003", "gpu-006"))
    later = datetime.now(UTC) + timedelta(minutes=4)
    night.ended(third, ago(minutes=2), "FAILED", "relight")
    verdict = verdict_for(third, Mode.AUTO)
    three = night.incident("i0000000003", third, ago(minutes=2), diagnosis=unknown(), plan=verdict.plan, mode=Mode.AUTO)
    night.opened(three, third, verdict)
    body = {"what": "start", "job": JOB, "not_before": later.isoformat()}
    night.row(three, third, "start/intent", RowKind.INTENT, ago(minutes=1), body)
    return night


def test_why_shows_what_each_restart_was_for(long_night, relight):
    """Cause, whose budget, and what has been given back; then what is left of each."""
    out = " ".join(relight("why", str(JOB)).output.split())
    for told in (
        "i0000000001",
        "1 i0000000001 CUDA_ECC_UNCORRECTABLE platform, given back recovered",
        "2 i0000000002 UNKNOWN unknown no progress",
        "3 i0000000003 UNKNOWN not yet open",
        "Used unknown 1 of 3 Left gpu 5,",
        "by a new durable checkpoint; last since the checkpoint of step 60",
        "backs off: Slurm starts it by itself after",
        "It is left stopped after 2 more restarts without progress.",
    ):
        assert told in out


def test_why_shows_what_is_kept_out(long_night, relight):
    """Node, since when, until when, by which incident, on what proof; the user's own is none of ours."""
    out = relight("why", str(JOB)).output
    kept = out[out.index("Kept out of its retries") :]
    line = {node: next((row for row in kept.splitlines() if node in row), "") for node in NODES}
    assert "i0000000002" in line["gpu-002"]
    assert "job evidence alone" in line["gpu-002"]
    assert " expired " in line["gpu-003"]
    assert "platform witness" in line["gpu-003"]
    assert line["gpu-006"] == ""


def test_the_same_as_json(long_night, relight):
    """For other programs: every restart, every allowance, every exclusion."""
    told = json.loads(relight("why", str(JOB), "-o", "json").stdout)["budget"]
    assert [(each["incident"], each["charged_to"], each["counts"]) for each in told["restarts"]] == [
        ("i0000000001", "platform", False),
        ("i0000000002", "unknown", True),
        ("i0000000003", None, False),
    ]
    assert told["without_progress"] == {"used": 1, "allowed": 3}
    assert told["by_cause"]["unknown"] == {"used": 1, "allowed": 3, "left": 2}
    assert told["next_wait_seconds"] == 60
    assert told["begins"] is not None
    assert {each["node"] for each in told["exclusions"]} == {"gpu-002", "gpu-003"}


def test_a_cause_that_is_used_up_is_named(long_night, relight, config):
    """What would stop the job next."""
    config.write_text(
        config.read_text() + "policy: {retries: {unknown: 1, user_code: 0}, attempts_without_progress: 2}\n"
    )
    out = " ".join(relight("why", str(JOB)).output.split())
    assert (
        "left stopped after 1 more restart without progress, or at once by a failure for user_code or unknown." in out
    )


def test_a_job_without_incidents_has_no_ledger_of_restarts(night, relight):
    """Nothing was used, nothing is kept out."""
    night.attempt(JOB, ago(hours=1))
    out = relight("why", str(JOB)).output
    assert "Retries without progress: 0 of 3 used" in out
    assert "Restarts" not in out


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_a_terminal(long_night, relight, columns):
    """No line is wider than it."""
    out = relight("why", str(JOB), env={"COLUMNS": str(columns)}).output
    assert max(len(line) for line in out.splitlines()) <= columns
