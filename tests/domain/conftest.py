"""Fixtures of the domain's tests: makers of plain values, with ordinary fields where a test names none."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.domain.attempts import Attempt, AttemptKey
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.domain.evidence import Detection, Interruption
from relight.domain.incidents import Incident, Phase
from relight.domain.plan import Mode
from relight.domain.policy import Situation
from relight.domain.slurm import JobRecord, JobState, NodeRecord, NodeState, SlurmFacts

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def _record(**fields):
    given = {
        "job_id": 7,
        "name": "train",
        "user": "alice",
        "partition": "gpu",
        "state": JobState.RUNNING,
        "submit_time": NOW,
        "nodes": ("n1", "n2"),
        "node_count": 2,
        "work_dir": "/home/alice",
        "command": "/home/alice/train.sh",
    }
    return JobRecord(**{**given, **fields})


def _attempt(**fields):
    record = _record(**fields)
    key = AttemptKey(cluster="main", job_id=record.job_id, submit_time=record.submit_time)
    return Attempt(key=key, lineage="jlineage", record=record, seen_at=NOW)


def _node(name, state=NodeState.IDLE, **fields):
    return NodeRecord(name=name, state=state, **fields)


def _hypothesis(**fields):
    given = {
        "signature": "CUDA_ECC",
        "category": Category.GPU,
        "action": Action.RESTART,
        "action_if_it_repeats": Action.STOP,
        "confidence": 0.9,
        "summary": "A GPU reported an uncorrectable memory error.",
    }
    nodes = fields.pop("nodes", None)
    if nodes is not None:
        given["implicated"] = Implicated(nodes=nodes)
    return Hypothesis(**{**given, **fields})


def _diagnosis(**fields):
    return Diagnosis(hypotheses=(_hypothesis(**fields),))


def _situation(**fields):
    attempt = fields.pop("attempt", None) or _attempt()
    ended = {"state": JobState.FAILED, "exit_code": 1}
    given = {
        "attempt": attempt,
        "kind": Interruption.CRASH,
        "now": NOW + timedelta(minutes=10),
        "record": attempt.record.model_copy(update=ended),
        "facts": SlurmFacts(version="24.11.5"),
        "nodes": tuple(_node(f"n{i}") for i in range(1, 5)),
    }
    return Situation(**{**given, **fields})


def _incident(**fields):
    key = fields.pop("attempt", None) or _attempt().key
    given = {
        "id": "iolder",
        "workflow_id": key.workflow_id,
        "run_id": "r0",
        "attempt": key,
        "lineage": "jlineage",
        "kind": Interruption.CRASH,
        "phase": Phase.CLOSED,
        "mode": Mode.AUTO,
        "opened_at": NOW,
        "detected_at": NOW,
    }
    return Incident(**{**given, **fields})


def _detection(**fields):
    key = fields.pop("attempt", None) or _attempt().key
    given = {"id": f"{key}/ended", "attempt": key, "kind": Interruption.CRASH, "detected_at": NOW}
    return Detection(**{**given, **fields})


@pytest.fixture(scope="session")
def now():
    """The moment at which the attempts of these tests were submitted."""
    return NOW


@pytest.fixture(scope="session")
def record():
    """Makes a job record: job 7 of alice, running on n1 and n2."""
    return _record


@pytest.fixture(scope="session")
def attempt():
    """Makes an attempt from a record's fields."""
    return _attempt


@pytest.fixture(scope="session")
def node():
    """Makes a node record, idle where not said."""
    return _node


@pytest.fixture(scope="session")
def diagnosis():
    """Makes a diagnosis of one hypothesis; `nodes` are those it implicates."""
    return _diagnosis


@pytest.fixture(scope="session")
def situation():
    """Makes a situation: the attempt crashed, and all four nodes are idle."""
    return _situation


@pytest.fixture(scope="session")
def incident():
    """Makes an earlier incident of the same job."""
    return _incident


@pytest.fixture(scope="session")
def detection():
    """Makes a detection."""
    return _detection
