"""Monitor and approve: Relight looks and proposes; a person decides, or nobody."""

from collections.abc import Iterator

import pytest

from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode
from relight.lab import faults
from relight.lab.spec import Profile
from relight.lab.stack import Stack
from relight.lab.watching import ledger_of

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system

ASKS = '{"relight": {"mode": "approve"}}'


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """In auto as far as a job's comment and the evidence allow; a plan waits 25 s for a person.

    Silence counts as a hang after 8 s instead of 30 so that the test is short: the jobs here print ten steps a second.
    """
    with new_stack(nodes=6, approval_expires="PT25S", hang={"floor": "PT8S"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def observed(new_stack: NewStack) -> Iterator[Lab]:
    """A second cluster, in monitor."""
    with new_stack(nodes=2, profile=Profile.FAST, mode="monitor") as stack, ledger_of(stack.config) as view:
        yield Lab(stack, view)


def test_a_hang_that_nothing_but_silence_shows_waits_for_a_person(lab: Lab) -> None:
    """slurmd does not tell an Operator CPU times, so the log's silence stands alone: `relight approve` decides."""
    job = lab.train(nodes=2, tasks_per_node=2)
    # Past step 50, after which a first checkpoint might come that takes minutes, and before 100, the next such.
    lab.until_step(job, 60)
    lab.inject(job, faults.hang(rank=3))
    incident = lab.waiting(job)
    assert incident.mode is Mode.APPROVE
    assert lab.intents(job) == []
    assert lab.restarts(job) == 0
    assert lab.field(job, "JobState") == "RUNNING"
    done = lab.cli("approve", incident.id, "--yes", "--reason", "it hangs")
    assert done.returncode == 0, done.stderr
    assert "approved" in done.stdout
    incident = lab.outcome(job)
    check_recovered(lab, job, incident)
    [decision] = [row.body for row in lab.view.rows(kind=RowKind.DECISION, incident=incident.id)]
    assert decision["counts"]
    assert decision["decision"]["verified"]
    assert decision["decision"]["reason"] == "it hangs"
    assert lab.restarts(job) == 1


def test_a_signal_decides_for_the_plan_it_names_and_no_other(lab: Lab) -> None:
    """From Temporal's web UI: the wrong digest counts for nothing, the right one restarts the job."""
    job = lab.train(comment=ASKS)
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=1))
    incident = lab.waiting(job)
    assert incident.plan
    assert incident.mode is Mode.APPROVE
    lab.signal(incident, "approve", digest="0123456789ab", reason="another plan's")
    wrong = lab.until_row(job, RowKind.DECISION)
    assert not wrong.body["counts"]
    assert lab.intents(job) == []
    lab.signal(incident, "approve", digest=incident.plan.digest[:8], reason="go")
    incident = lab.outcome(job)
    check_recovered(lab, job, incident)
    decisions = lab.view.rows(kind=RowKind.DECISION, incident=incident.id)
    assert [row.body["counts"] for row in decisions] == [False, True]
    assert not decisions[1].body["decision"]["verified"]


def test_rejected_cancelled_and_undecided_plans_leave_the_job_as_it_ended(lab: Lab) -> None:
    """A no by signal, a no by the CLI, an end of the incident, and nobody's answer in time: nothing is touched."""
    refused, said_no, ended, forgotten = jobs = [
        lab.train(nodes=1, gpus_per_node=1, comment=ASKS, name=name) for name in ("a", "b", "c", "d")
    ]
    for job in jobs:
        lab.until_step(job)
    for job in jobs:
        lab.inject(job, faults.crash(rank=0))
    lab.signal(lab.waiting(refused), "reject", reason="not now")
    done = lab.cli("reject", lab.waiting(said_no).id, "--yes", "--reason", "nor now")
    assert done.returncode == 0, done.stderr
    lab.signal(lab.waiting(ended), "cancel", reason="mine")
    wanted = {
        refused: (Outcome.REJECTED, "not now"),
        said_no: (Outcome.REJECTED, "nor now"),
        ended: (Outcome.OVERRIDDEN, "mine"),
        forgotten: (Outcome.EXPIRED, "nobody decided"),
    }
    for job, (outcome, why) in wanted.items():
        incident = lab.outcome(job)
        assert incident.outcome is outcome, incident.outcome_reason
        assert why in incident.outcome_reason
        lab.untouched(job)
        assert lab.restarts(job) == 0
        lab.until_state(job, "FAILED")
    late = lab.cli("approve", lab.view.incidents(forgotten)[0].id, "--yes")
    assert late.returncode == 3
    assert "closed" in late.stderr


def test_a_broken_gpu_is_not_approved_by_an_unproven_sender(lab: Lab) -> None:
    """Draining a node needs a signed decision: the bare signal is recorded and does not count, the CLI's does."""
    job = lab.train(comment=ASKS)
    lab.until_step(job)
    broken = lab.inject(job, faults.gpu(rank=1)).node
    incident = lab.waiting(job)
    assert broken
    assert incident.plan
    assert incident.plan.drain == (broken,)
    lab.signal(incident, "approve", digest=incident.plan.digest[:12], reason="trust me")
    unproven = lab.until_row(job, RowKind.DECISION)
    assert not unproven.body["counts"]
    assert not lab.drained(broken)
    assert lab.intents(job) == []
    assert lab.cli("approve", incident.id, "--yes").returncode == 0
    check_recovered(lab, job, lab.outcome(job))
    assert lab.drained(broken)


def test_a_jobs_comment_lowers_its_mode_and_what_cannot_be_read_lowers_nothing(lab: Lab) -> None:
    """`monitor` in the comment: observed only. Text that is no JSON: handled as the site says, and remarked on."""
    watched = lab.train(nodes=1, comment='{"relight": {"mode": "monitor"}}')
    garbled = lab.train(nodes=1, comment='please use "relight" here')
    for job in (watched, garbled):
        lab.until_step(job)
        lab.inject(job, faults.crash(rank=0))
    incident = lab.outcome(watched)
    assert incident.outcome is Outcome.OBSERVED
    assert "would have" in incident.outcome_reason.lower()
    lab.until_state(watched, "FAILED")
    lab.untouched(watched)
    assert lab.restarts(watched) == 0
    check_recovered(lab, garbled, lab.outcome(garbled))
    planned = lab.until_row(garbled, RowKind.PLANNED)
    assert "comment" in planned.body["mode_reason"]
    assert planned.body["mode"] == Mode.AUTO


def test_monitor_changes_nothing(observed: Lab) -> None:
    """A crash, a broken GPU: decided and recorded as what would have been done; Slurm's state is as it was."""
    lab = observed
    crashed = lab.train(nodes=1, gpus_per_node=1)
    broken = lab.train(nodes=1, gpus_per_node=1)
    for job in (crashed, broken):
        lab.until_step(job)
    lab.inject(crashed, faults.crash(rank=0))
    node = lab.inject(broken, faults.gpu(rank=0)).node
    assert node
    for job in (crashed, broken):
        incident = lab.outcome(job)
        assert incident.outcome is Outcome.OBSERVED, incident.outcome_reason
        assert "would have" in incident.outcome_reason.lower()
        assert "requeue" in incident.outcome_reason
        lab.until_state(job, "FAILED")
        assert lab.restarts(job) == 0
        lab.untouched(job)
    assert not lab.drained(node)
    assert lab.node_reason(node) in {"", "none"}
    assert lab.view.rows(kind=RowKind.LEAVE) == ()
    assert lab.view.rows(kind=RowKind.OUTPUTS_KEPT) == ()
