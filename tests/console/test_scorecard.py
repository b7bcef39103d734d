"""`relight scorecard`: read from a real ledger whose rows were made by the public API."""

import json
from datetime import timedelta

import pytest

from relight.domain.attempts import LogPosition, Progress, progress_cursor
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode, Plan, Restart
from tests.console.conftest import ago, ecc, user_code

HOUR = timedelta(hours=1)


def ended(night, attempt, at, end, state):
    """As the watcher writes it, with the end told apart."""
    night.ended(attempt, at, state)
    body = {"how": state, "end": end, "record": {"state": state}}
    night.commit(entries=(night.entry(f"{attempt.key}/ended~1", RowKind.ATTEMPT_ENDED, at, body, attempt),))


def steps(night, attempt, last):
    progress = Progress(last_step=last, files={"train.out": LogPosition(offset=1)})
    night.commit(cursors={progress_cursor(attempt.key): progress.model_dump(mode="json")})


def observed(night, number, hours, *, drain=("gpu-003",), passed=True, diagnosis=None):
    """A crash that Relight only watched: it would have restarted the job; somebody did, and it moved, or not."""
    lineage = f"j{number:010d}"
    at = ago(hours=hours)
    first = night.attempt(number, at - HOUR, lineage=lineage)
    steps(night, first, 1840)
    ended(night, first, at, "failed", "FAILED")
    plan = Plan(attempt=first.key, restart=Restart.REQUEUE, exclude=drain, drain=drain, reason="bad GPU")
    given = {"mode": Mode.MONITOR, "phase": Phase.CLOSED, "outcome": Outcome.OBSERVED, "closed_at": at + HOUR / 60}
    cause = diagnosis or ecc()
    night.incident(f"i{number:010x}", first, at, diagnosis=cause, plan=plan, **given)
    second = night.attempt(number, at + HOUR / 2, lineage=lineage, restarts=1, nodes=("gpu-001", "gpu-002"))
    steps(night, second, 1900 if passed else 1840)
    if not passed:
        ended(night, second, at + HOUR, "failed", "FAILED")
        night.incident(f"i{number + 500:010x}", second, at + HOUR, diagnosis=cause, plan=plan, **given)
    return first


def set_aside(night, node, at, reason, *, ours=False):
    body = {"state": "drained", "reason": reason, "ours": ours, "text": f"drained: {reason}"}
    attempt = night.attempt(99_000 + len(reason), at, nodes=(), node_count=0)
    entry = night.entry(f"aside/{node}/{at}", RowKind.SET_ASIDE, at, body, attempt)
    night.commit(entries=(entry.model_copy(update={"node": node, "attempt": "", "lineage": ""}),))


@pytest.fixture(autouse=True)
def no_slurm(config):
    """Whatever Slurm this machine has is none of these tests' business."""
    config.write_text(config.read_text() + "slurm: {way: commands, bin: /nowhere}\n")


@pytest.fixture
def month(night):
    """Three crashes that would have been right to restart, one that would not, a drain, and one nobody saw."""
    for number, hours in ((4001, 400), (4002, 300), (4003, 200)):
        observed(night, number, hours)
    set_aside(night, "gpu-003", ago(hours=199), "uncorrectable ECC")
    observed(night, 4004, 100, drain=(), passed=False, diagnosis=user_code())
    lost = night.attempt(4005, ago(hours=60))
    ended(night, lost, ago(hours=50), "node failed", "NODE_FAIL")
    return night


def by_row(told):
    return {(row["kind"], row["action"]): row for row in told["rows"]}


def test_decisions_are_held_against_what_happened(month, relight):
    """By detector and action: right, wrong, missed, and how far `auto` is."""
    told = json.loads(relight("scorecard", "--json").stdout)
    rows = by_row(told)
    restart = rows["crash", "restart"]
    assert (restart["right"], restart["wrong"]) == (3, 1)
    assert restart["gate"]["why"] == "not yet: 4 of 20 decisions"
    assert restart["precision"]["value"] == 0.75
    assert (rows["crash", "drain"]["right"], rows["crash", "drain"]["wrong"]) == (3, 0)
    assert rows["node_lost", "restart"]["missed"] == 1
    (missed,) = [each for each in told["missed"] if each["kind"] == "node_lost"]
    assert missed["attempt"]["job_id"] == 4005
    assert told["policy"] == []
    why = {each["incident"]: each["why"] for each in told["judged"] if each["action"] == "restart"}
    assert why[f"i{4001:010x}"] == "the next attempt passed step 1840"
    assert why[f"i{4004:010x}"] == "the next attempt failed again: PYTHON_EXCEPTION"


def test_what_has_earned_it_may_go_to_auto(night, relight, config):
    """Twenty right restarts: the lines to write, which the settings accept."""
    for number in range(20):
        observed(night, 5000 + number, 700 - number, drain=())
    told = json.loads(relight("scorecard", "--json").stdout)
    assert by_row(told)["crash", "restart"]["gate"]["may"]
    assert told["policy"] == ["policy:", "  modes:", "    crash.restart: auto"]
    config.write_text(config.read_text() + "\n".join(told["policy"]) + "\n")
    again = json.loads(relight("scorecard", "--json").stdout)
    assert by_row(again)["crash", "restart"]["gate"]["now"] == "auto"
    assert again["policy"] == []


def test_a_node_that_a_person_set_aside_and_no_incident_named_was_missed(night, relight):
    """Within a day of an incident on it; for maintenance, or by our own mark, it says nothing."""
    observed(night, 4001, 10, drain=())
    set_aside(night, "gpu-002", ago(hours=9), "bad NVLink")
    set_aside(night, "gpu-001", ago(hours=8), "kernel upgrade")
    set_aside(night, "gpu-004", ago(hours=7), "relight:i1:X: y", ours=True)
    told = json.loads(relight("scorecard", "--json").stdout)
    assert {(each["action"], each["node"]) for each in told["missed"]} == {("exclude", "gpu-002"), ("drain", "gpu-002")}


@pytest.mark.parametrize("columns", ["100", "160"])
def test_it_is_told_for_people(month, relight, columns):
    """What may go to auto, what was wrong, what was missed."""
    result = relight("scorecard", env={"COLUMNS": columns})
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= int(columns) for line in result.output.splitlines())
    for word in ("Wrong", "Missed", "not yet:", "95 %", "node_lost", "crash"):
        assert word in result.output


def test_an_empty_month(night, relight):
    """Nothing decided is said, not praised."""
    result = relight("scorecard", "--since", "1h")
    assert result.exit_code == 0
    assert "Nothing was decided" in result.output
    wrong = relight("scorecard", "--since", "soon")
    assert wrong.exit_code == 2
    assert "'soon' is no length of time; accepted: 30s, 30m" in wrong.output


def test_what_was_just_interrupted_is_not_missed_yet(night, relight):
    """Its incident may be about to open."""
    young = night.attempt(4005, ago(hours=1))
    ended(night, young, ago(), "failed", "FAILED")
    assert json.loads(relight("scorecard", "--json").stdout)["missed"] == []
