"""On a real cluster: a restart that waits is Slurm's to start, and exclusions go that keep a job from its nodes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.lab import faults
from relight.lab.fault_rules import Deed
from relight.lab.stack import Stack
from relight.lab.xids import XIDS

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system

WAIT = timedelta(seconds=25)
EXPIRE = timedelta(seconds=40)
ECC = {"do": Deed.ECC, "attempts": (0,), "text": XIDS[48].cuda_text}
"""The job's own word against a node: excluded, not drained."""


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Six nodes in auto; a second failure in a row waits, and exclusions expire soon."""
    waits = ["0s", f"{WAIT.seconds}s"]
    with new_stack(nodes=6, drains_per_hour=0, backoff=waits, exclusions_expire=f"{EXPIRE.seconds}s") as stack:
        yield stack


def now() -> datetime:
    return datetime.now(UTC)


def test_a_second_failure_waits_and_slurm_starts_the_job_though_relight_is_gone(lab: Lab) -> None:
    """Requeued at once, with StartTime put off; the worker is killed, and the job starts then all the same."""
    job = lab.train(checkpoint_every=1000)
    # At another step and on another node: what fails twice at the same place is not tried a third time.
    for attempt, (rank, step) in enumerate(((1, 30), (0, 15))):
        lab.rule(job, rank=rank, do=Deed.EXIT, step=step, code=7, attempts=(attempt,))
    first = lab.outcome(job)
    assert first.outcome is Outcome.RESTARTED_NO_PROGRESS, first.outcome_reason
    lab.until(lambda: lab.intents(job).count("start") == 2, "the second start to be set", about=job)
    lab.until(lambda: lab.effects(job).count("start") == 2, "it to be read back", about=job)
    lab.stack.kill_worker()
    [_, started] = [row for row in lab.rows(job, RowKind.INTENT) if row.body["what"] == "start"]
    not_before = datetime.fromisoformat(started.body["not_before"])
    requeued = [row for row in lab.rows(job, RowKind.INTENT) if row.body["what"] == "requeue"][-1]
    assert requeued.at < started.at < not_before
    shown = lab.field(job, "StartTime") or ""
    assert abs(datetime.fromisoformat(shown).astimezone(UTC) - not_before) < timedelta(seconds=5)
    assert lab.field(job, "JobState") == "PENDING"
    lab.until_state(job, "RUNNING")
    assert now() >= not_before - timedelta(seconds=5)
    assert lab.restarts(job) == 2
    lab.stack.start_worker()
    check_recovered(lab, job, lab.outcome(job, number=2))
    told = lab.view.rows(incident=lab.view.incidents(job)[0].id, kind=RowKind.PLANNED)[0].body["plan"]["reason"]
    assert f"starts again after {WAIT.seconds}s: second failure without progress" in told


def test_an_exclusion_of_ours_expires_and_the_users_own_stays(lab: Lab) -> None:
    """Kept over the requeue, taken back at the job's next restart."""
    job = lab.train("--exclude=n6", nodes=2)
    lab.until_step(job)
    blamed = lab.node_of(job, 1)
    lab.rule(job, rank=1, **ECC)
    check_recovered(lab, job, lab.outcome(job))
    assert lab.excluded(job) == {"n6", blamed}
    [row] = [row for row in lab.rows(job, RowKind.INTENT) if row.body["what"] == "exclude"]
    until = datetime.fromisoformat(row.body["until"][blamed])
    assert abs(until - row.at - EXPIRE) < timedelta(seconds=5)
    lab.until(lambda: now() > until, "the exclusion to expire")
    lab.inject(job, faults.crash(rank=1))
    check_recovered(lab, job, lab.outcome(job, number=2))
    assert lab.excluded(job) == {"n6"}
    assert "allow" in lab.intents(job)


@pytest.fixture
def fast(lab: Lab) -> Iterator[tuple[str, str]]:
    """Two nodes with a feature that no other node has."""
    lab.cluster.run("scontrol", "update", "NodeName=n1,n2", "AvailableFeatures=fast", "ActiveFeatures=fast")
    yield "n1", "n2"
    lab.cluster.run("scontrol", "update", "NodeName=n1,n2", "AvailableFeatures=", "ActiveFeatures=")


@pytest.fixture
def reserved(lab: Lab) -> Iterator[None]:
    """All other nodes are somebody else's for an hour."""
    options = ("ReservationName=theirs", "StartTime=now", "Duration=60", "Nodes=n3,n4,n5,n6", "Users=root")
    lab.cluster.run("scontrol", "create", "reservation", *options)
    yield
    lab.cluster.run("scontrol", "delete", "ReservationName=theirs")


def shut_out(lab: Lab, *options: str) -> tuple[int, str]:
    """A job that needs both n1 and n2, and blames one of them; and what Slurm said of it."""
    job = lab.train(*options, nodes=2)
    lab.until_step(job)
    blamed = lab.node_of(job, 1)
    lab.rule(job, rank=1, **ECC)
    lab.until(lambda: blamed in lab.excluded(job), f"{blamed} to be excluded", about=job)
    check_recovered(lab, job, lab.outcome(job))
    assert lab.excluded(job) == set()
    incident = lab.view.incidents(job)[0]
    assert incident.plan
    assert incident.plan.exclude == (blamed,)
    [text] = [step.text for step in incident.steps if step.name == "exclusion taken back"]
    assert text == "ExcNodeList="
    return job, " ".join(step.text for step in incident.steps)


def test_an_exclusion_that_a_feature_makes_impossible_is_taken_back(lab: Lab, fast: tuple[str, str]) -> None:
    """Six nodes are there for two, so it looked possible; only two have the feature: BadConstraints."""
    job, _ = shut_out(lab, "--constraint=fast")
    assert set(lab.view.attempts(job)[0].attempt.record.nodes) == set(fast)


@pytest.mark.usefixtures("reserved")
def test_an_exclusion_that_a_reservation_makes_impossible_is_taken_back(lab: Lab) -> None:
    """The reserved nodes look idle: ReqNodeNotAvail, for as long as the reservation lasts."""
    job, _ = shut_out(lab)
    assert set(lab.view.attempts(job)[0].attempt.record.nodes) == {"n1", "n2"}
