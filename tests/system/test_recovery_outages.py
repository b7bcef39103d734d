"""Outages of Relight's own worker and of slurmctld: nothing is done twice, nothing is lost, nothing is imagined."""

import signal
from collections.abc import Iterator

import pytest

from relight.domain.incidents import Incident
from relight.domain.ledger import RowKind
from relight.lab import faults, state
from relight.lab.stack import Stack

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system

AFTER_OUTAGE_S = 240
"""An activity that died with its worker is tried again only when its time is up, after 30 to 120 s."""


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Four nodes in auto."""
    with new_stack(nodes=4) as stack:
        yield stack


def check_requeued_once(lab: Lab, job: int, incident: Incident) -> None:
    """One incident, one requeue, one restart, whatever was killed."""
    check_recovered(lab, job, incident)
    assert lab.restarts(job) == 1
    assert lab.intents(job).count("requeue") == 1
    assert lab.effects(job).count("requeue") == 1
    assert len(lab.view.incidents(job)) == 1
    assert len(lab.view.attempts(job)) == 2


def test_a_worker_killed_right_after_the_detection_requeues_once(lab: Lab) -> None:
    """The detection is in the ledger: the next worker goes on from there."""
    job = lab.train()
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=1))
    lab.until_row(job, RowKind.DETECTED)
    lab.stack.kill_worker()
    assert "requeue" not in lab.effects(job)
    lab.stack.start_worker()
    check_requeued_once(lab, job, lab.outcome(job, AFTER_OUTAGE_S))


def test_a_worker_killed_between_requeue_and_start_requeues_once(lab: Lab) -> None:
    """The effect is in the ledger: it is not repeated."""
    job = lab.train()
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=1))
    lab.until_row(job, RowKind.EFFECT, step="requeue")
    lab.stack.kill_worker()
    assert "start" not in lab.effects(job)
    lab.stack.start_worker()
    check_requeued_once(lab, job, lab.outcome(job, AFTER_OUTAGE_S))


def test_what_crashed_while_no_worker_ran_is_recovered_afterwards(lab: Lab) -> None:
    """A gap in the watching is no gap in the care."""
    job = lab.train()
    lab.until_step(job)
    lab.stack.kill_worker()
    lab.inject(job, faults.crash(rank=1))
    lab.until_state(job, "FAILED")
    lab.stack.start_worker()
    check_requeued_once(lab, job, lab.outcome(job, AFTER_OUTAGE_S))


def test_a_frozen_slurmctld_is_blindness_and_not_an_incident(lab: Lab) -> None:
    """No answer is not an answer: the watcher says that it is blind, and the job trains on untouched."""
    job = lab.train()
    lab.until_step(job)
    slurmctld = state.read(lab.cluster.folder).processes["slurmctld"]
    since = max((row.seq for row in lab.view.rows(kind=RowKind.BLIND)), default=0)
    slurmctld.signal(signal.SIGSTOP)

    def said() -> bool:
        return any("until" not in row.body for row in lab.view.rows(after=since, kind=RowKind.BLIND))

    try:
        lab.until(said, "Relight to say that it is blind")
    finally:
        slurmctld.signal(signal.SIGCONT)
    step = lab.view.step(job) or 0
    lab.until_step(job, step + 30)
    assert lab.detections(job) == ()
    assert lab.view.incidents(job) == ()
    assert lab.restarts(job) == 0
    # It sees again: a crash now is handled as ever.
    lab.inject(job, faults.crash(rank=1))
    check_recovered(lab, job, lab.outcome(job))
