"""Other hands: users, their schedulers' tricks, and Slurm itself act on jobs too, and theirs wins."""

import time
from collections.abc import Iterator

import pytest

from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.slurm import JobState
from relight.lab import faults
from relight.lab.job import render
from relight.lab.stack import Stack

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system

ASKS = '{"relight": {"mode": "approve"}}'


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Eight nodes in auto."""
    with new_stack(nodes=8, drains_per_hour=20) as stack:
        yield stack


def test_cancelled_and_completed_jobs_are_no_incidents(lab: Lab) -> None:
    """A user's scancel and a training that is done."""
    cancelled = lab.train()
    completed = lab.train(steps=30)
    lab.until_step(cancelled)
    lab.by_owner("scancel", str(cancelled))
    lab.check_no_incident(cancelled, JobState.CANCELLED)
    lab.check_no_incident(completed, JobState.COMPLETED)
    lab.until_state(cancelled, "CANCELLED")
    assert lab.restarts(cancelled) == lab.restarts(completed) == 0


def test_preempted_jobs_are_left_to_slurm(lab: Lab) -> None:
    """Ended or requeued for a job of higher priority: no incident, and the begin time of the requeue stays."""
    ended = lab.train("--nodelist=n6", nodes=1, partition="scavenger")
    again = lab.train("--nodelist=n7", nodes=1, partition="scavenger-requeue")
    lab.until_step(ended)
    lab.until_step(again)
    first = lab.train("--nodelist=n6", nodes=1)
    second = lab.train("--nodelist=n7", nodes=1)
    lab.check_no_incident(ended, JobState.PREEMPTED)
    lab.check_no_incident(again, "unknown")
    lab.until_state(ended, "PREEMPTED")
    lab.until_state(again, "PENDING")
    lab.until_step(first)
    lab.until_step(second)
    assert lab.restarts(again) == 1
    assert lab.restarts(ended) == 0
    lab.untouched(again)


def test_a_job_that_another_goes_on_for_is_not_requeued(lab: Lab) -> None:
    """A singleton chain, an `afterany` dependant, the same name and folder again; `afterok` alone blocks nothing."""
    small = {"nodes": 1, "gpus_per_node": 1}
    chain = lab.spec(name="chain", **small)
    chained = lab.submit(render(chain), "--dependency=singleton")
    watched = lab.train(name="watched", **small)
    again = lab.spec(name="again", **small)
    resubmitted = lab.submit(render(again))
    awaited = lab.train(name="awaited", **small)
    jobs = (chained, watched, resubmitted, awaited)
    for job in jobs:
        lab.until_step(job)
    after = {
        chained: lab.submit(render(chain), "--dependency=singleton"),
        watched: lab.train(f"--dependency=afterany:{watched}", name="tail", **small),
        resubmitted: lab.submit(render(again), "--begin=now+1hour"),
        awaited: lab.train(f"--dependency=afterok:{awaited}", name="next", **small),
    }
    for job in jobs:
        lab.inject(job, faults.crash(rank=0))
    for job in (chained, watched, resubmitted):
        incident = lab.outcome(job)
        assert incident.outcome is Outcome.SUCCEEDED_BY, (job, incident.outcome_reason)
        assert str(after[job]) in incident.outcome_reason
        lab.untouched(job)
        assert lab.restarts(job) == 0
    check_recovered(lab, awaited, lab.outcome(awaited))
    for successor in (after[chained], after[watched]):
        lab.until_step(successor)
    for job in (chained, watched, resubmitted):
        lab.until_state(job, "FAILED")


def test_a_requeue_by_the_owner_is_his(lab: Lab) -> None:
    """No incident, no requeue of ours, and his job's begin time is not touched."""
    job = lab.train()
    lab.until_step(job)
    lab.by_owner("scontrol", "requeue", str(job))
    lab.check_no_incident(job, "unknown")
    lab.until_state(job, "PENDING")
    assert lab.restarts(job) == 1
    lab.untouched(job)


def test_a_cancellation_during_recovery_wins(lab: Lab) -> None:
    """Cancelled after our requeue, before the next attempt runs: overridden, and the job stays cancelled."""
    job = lab.train()
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=1))
    lab.until_row(job, RowKind.EFFECT, step="requeue")
    lab.by_owner("scancel", str(job))
    incident = lab.outcome(job)
    assert incident.outcome is Outcome.OVERRIDDEN
    lab.until_state(job, "CANCELLED")
    assert len(lab.view.attempts(job)) == 1


def test_what_the_owner_does_while_a_plan_waits_wins(lab: Lab) -> None:
    """He requeues, or cancels; an approval that comes then changes nothing."""
    requeued = lab.train(comment=ASKS)
    again = lab.train(comment=ASKS)
    for job in (requeued, again):
        lab.until_step(job)
        lab.inject(job, faults.crash(rank=1))
    for job in (requeued, again):
        incident = lab.waiting(job)
        lab.until_state(job, "FAILED")
        lab.by_owner("scontrol", "requeue", str(job))
        if job == again:
            # He wants it to begin at once, and it trains again before anybody decides.
            lab.until_state(job, "PENDING")
            time.sleep(2)  # in the same second as the requeue the job can FAIL (seen)
            lab.by_owner("scontrol", "update", f"JobId={job}", "StartTime=now")
            lab.until(lambda job=job: len(lab.view.attempts(job)) == 2, "the owner's attempt to run")
        assert incident.plan
        lab.signal(incident, "approve", digest=incident.plan.digest[:12], reason="go")
        incident = lab.outcome(job)
        assert incident.outcome is Outcome.OVERRIDDEN, incident.outcome_reason
        lab.nothing_written(job)
        assert lab.restarts(job) == 1


def test_a_job_submitted_anew_while_a_plan_waits_goes_on_instead(lab: Lab) -> None:
    """Successors are looked for again right before the requeue: two jobs never write one checkpoint folder."""
    spec = lab.spec(nodes=1, gpus_per_node=1, comment=ASKS)
    job = lab.submit(render(spec))
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=0))
    incident = lab.waiting(job)
    anew = lab.submit(render(spec))
    lab.until_step(anew)
    assert incident.plan
    lab.signal(incident, "approve", digest=incident.plan.digest[:12], reason="go")
    incident = lab.outcome(job)
    assert incident.outcome is Outcome.SUCCEEDED_BY, incident.outcome_reason
    assert str(anew) in incident.outcome_reason
    lab.nothing_written(job)
    assert lab.restarts(job) == 0
