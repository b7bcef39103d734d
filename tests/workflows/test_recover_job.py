"""RecoverJob with scripted activities: the paths from a detection to a named outcome."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio import workflow
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.incidents import Outcome, Phase
from relight.domain.plan import Mode, Restart
from relight.workflows.options import MAX_EVIDENCE, MAX_EVIDENCE_SIGNALS
from relight.workflows.recover_job import RecoverJob

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)


def done(text="done", outcome=None):
    return c.Done(text=text, at=T0, outcome=outcome)


# --- ways to end ----------------------------------------------------------------------------------------------------


async def test_recovers_in_the_order_slurm_demands(incident, script):
    """Outputs, requeue, exclusions, the old attempt's end, start time, running, progress, close: in this order."""
    script.on(c.PLAN, script.verdict(exclude=("n2",)))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.RECOVERED, "step 41, past step 40")
    assert script.names == [
        c.CONFIRM.name,
        c.DIAGNOSE.name,
        c.LOOK_AT_CHECKPOINTS.name,
        c.PLAN.name,
        c.MAY_ACT.name,
        c.KEEP_OUTPUTS.name,
        c.REQUEUE.name,
        c.EXCLUDE.name,
        c.REPOINT.name,
        c.AWAIT_ENDED.name,
        c.START.name,
        c.AWAIT_RUNNING.name,
        c.AWAIT_PROGRESS.name,
        c.CLOSE.name,
    ]
    assert script.args(c.AWAIT_ENDED)[0].requeued_at == T0
    assert script.args(c.AWAIT_PROGRESS)[0].failed_step == 40
    assert script.args(c.CLOSE)[0].outcome is Outcome.RECOVERED


async def test_adopts_a_requeue_of_slurm_itself(incident, script):
    """A job that Slurm has queued again is not requeued once more; exclusions and start time are set."""
    script.on(c.PLAN, script.verdict(restart=Restart.ADOPT, exclude=("n2",)))
    assert (await incident.run()).outcome is Outcome.ADOPTED
    assert script.mutations == [c.KEEP_OUTPUTS.name, c.EXCLUDE.name, c.START.name]
    assert script.args(c.AWAIT_ENDED)[0].requeued_at is None


async def test_releases_what_slurm_itself_holds(incident, script):
    """Kept off the nodes that could not launch it first, told to start at once afterwards."""
    script.on(c.PLAN, script.verdict(restart=Restart.ADOPT, exclude=("n2",), release=True))
    assert (await incident.run()).outcome is Outcome.ADOPTED
    assert script.mutations == [c.KEEP_OUTPUTS.name, c.EXCLUDE.name, c.RELEASE.name, c.START.name]
    assert incident.steps()["released"] == "Slurm's hold is undone"


async def test_stops_without_touching_a_job_that_has_ended(incident, script):
    """An outcome of the policy ends the incident before anything is done."""
    script.on(c.PLAN, script.verdict(restart=Restart.NONE, outcome=Outcome.STOPPED, reason="a syntax error"))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.STOPPED, "a syntax error")
    assert script.mutations == []


async def test_stops_a_job_that_still_runs_by_cancelling_it(incident, script):
    """A hung attempt that a retry would not help is ended, so that it frees its nodes."""
    script.on(c.PLAN, script.verdict(restart=Restart.NONE, cancel=True))
    assert (await incident.run()).outcome is Outcome.STOPPED
    assert script.mutations == [c.CANCEL.name]


async def test_monitor_observes_and_touches_nothing(incident, script):
    """In mode `monitor` no activity that changes anything is called, and the reason says "would have"."""
    script.on(c.PLAN, script.verdict(Mode.MONITOR, exclude=("n2",), drain=("n2",)))
    result = await incident.run()
    assert result.outcome is Outcome.OBSERVED
    assert result.reason == f"would have: requeue job {incident.attempt.job_id} excluding n2; drain n2"
    assert script.names == [c.CONFIRM.name, c.DIAGNOSE.name, c.LOOK_AT_CHECKPOINTS.name, c.PLAN.name, c.CLOSE.name]


async def test_what_is_not_confirmed_is_not_diagnosed(incident, script):
    """A false alarm ends after the first look."""
    script.on(c.CONFIRM, c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="the attempt is running"))
    assert (await incident.run()).outcome is Outcome.NOT_CONFIRMED
    assert script.names == [c.CONFIRM.name, c.CLOSE.name]


@pytest.mark.parametrize("outcome", [Outcome.OVERRIDDEN, Outcome.EXPIRED, Outcome.NOT_CONFIRMED])
async def test_a_requeue_found_moot_ends_the_incident_so(incident, script, outcome):
    """What the last look before the requeue finds is the outcome; nothing is excluded or started after it."""
    script.on(c.REQUEUE, done("the world has moved on", outcome))
    script.on(c.PLAN, script.verdict(exclude=("n2",)))
    result = await incident.run()
    assert (result.outcome, result.reason) == (outcome, "the world has moved on")
    assert script.mutations == [c.KEEP_OUTPUTS.name, c.REQUEUE.name]


@pytest.mark.parametrize(
    ("call", "answer", "outcome"),
    [
        (c.AWAIT_ENDED, c.Ended(completing=timedelta(0), text="x", outcome=Outcome.OVERRIDDEN), Outcome.OVERRIDDEN),
        (c.RELEASE, done("the job is held", Outcome.OVERRIDDEN), Outcome.OVERRIDDEN),
        (c.START, done("the job is held", Outcome.OVERRIDDEN), Outcome.OVERRIDDEN),
        (c.AWAIT_RUNNING, c.Running(at=T0, text="CANCELLED", outcome=Outcome.OVERRIDDEN), Outcome.OVERRIDDEN),
        (c.AWAIT_RUNNING, c.Running(at=T0, text="no longer known"), Outcome.FAILED),
        (c.AWAIT_PROGRESS, c.Proof(moved=False, at=T0, text="FAILED again"), Outcome.RESTARTED_NO_PROGRESS),
        (c.AWAIT_PROGRESS, c.Proof(moved=False, at=T0, text="x", outcome=Outcome.OVERRIDDEN), Outcome.OVERRIDDEN),
    ],
)
async def test_each_later_step_can_end_the_incident(incident, script, call, answer, outcome):
    """A person's act or a failure after the requeue gives the incident its name."""
    script.on(call, answer)
    script.on(c.PLAN, script.verdict(restart=Restart.ADOPT, release=True))
    assert (await incident.run()).outcome is outcome
    assert script.names[-2:] == [call.name, c.CLOSE.name]


async def test_an_error_that_no_retry_helps_fails_the_incident_with_its_reason(incident, script, gives_up):
    """The activity is tried once, and the reason names it."""
    script.on(c.REQUEUE, gives_up("Slurm says: Invalid job id"))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "requeue_job: Slurm says: Invalid job id")
    assert len(script.args(c.REQUEUE)) == 1
    assert script.args(c.CLOSE)[0].reason == result.reason


async def test_an_error_that_may_pass_is_tried_again(incident, script):
    """Slurm that does not answer for a while costs time, not the incident."""
    script.on(c.REQUEUE, *[ApplicationError("slurmctld is away", type="SlurmUnavailableError")] * 12, done())
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert len(script.args(c.REQUEUE)) == 13


async def test_outputs_that_cannot_be_kept_do_not_stop_the_recovery(incident, script):
    """Two tries, said in the steps, then on with it."""
    script.on(c.KEEP_OUTPUTS, RuntimeError("stale file handle"))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert len(script.args(c.KEEP_OUTPUTS)) == 2
    assert "stale file handle" in incident.steps()["outputs not kept"]


async def test_an_outcome_its_phase_does_not_allow_is_a_failure(incident, script):
    """The table of outcomes has the last word, and the reason keeps what was found."""
    script.on(c.AWAIT_PROGRESS, c.Proof(moved=False, at=T0, text="gone", outcome=Outcome.EXPIRED))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "gone (outcome expired from verifying)")


# --- too few nodes --------------------------------------------------------------------------------------------------


async def test_takes_back_the_least_proven_exclusions_first(incident, script):
    """While Slurm says BadConstraints the last of the exclusions is given up, one at a time."""
    script.on(c.PLAN, script.verdict(exclude=("n1", "n2", "n3")))
    few = c.Running(at=T0, too_few_nodes=True, text="BadConstraints")
    runs = c.Running(attempt=incident.attempt, nodes=("n2",), at=T0, text="running")
    script.on(c.AWAIT_RUNNING, few, few, runs)
    assert (await incident.run()).outcome is Outcome.RECOVERED
    set_first, *taken_back = script.args(c.EXCLUDE)
    assert (set_first.nodes, set_first.take_back) == (("n1", "n2", "n3"), False)
    assert [(arg.nodes, arg.take_back) for arg in taken_back] == [(("n3",), True), (("n2",), True)]
    assert [arg.exclude for arg in script.args(c.AWAIT_RUNNING)] == [("n1", "n2", "n3"), ("n1", "n2"), ("n1",)]


async def test_too_few_nodes_without_an_exclusion_of_ours_is_a_failure(incident, script):
    """Once nothing is left to take back, the loop ends and says so."""
    script.on(c.PLAN, script.verdict(exclude=("n1",)))
    script.on(c.AWAIT_RUNNING, c.Running(at=T0, too_few_nodes=True, text="BadConstraints"))
    result = await incident.run()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "BadConstraints")
    assert len(script.args(c.AWAIT_RUNNING)) == 2


# --- evidence -------------------------------------------------------------------------------------------------------


async def test_a_detection_delivered_twice_counts_once(incident, script):
    """Delivery is at least once; the detection's id tells."""
    hold = script.hold(c.CONFIRM)
    handle = await incident.start()
    await hold.started.wait()
    for name in ("d1", "d2", "d1", "d2"):
        await handle.signal("evidence", incident.detection(name))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (asked,) = script.args(c.DIAGNOSE)
    assert asked.detection.id == "d1"
    assert [e.text for e in asked.evidence] == ["d2: JobState=FAILED"]


async def test_late_evidence_changes_nothing(incident, script):
    """Once a crash is diagnosed, further evidence neither disturbs the recovery nor opens another incident."""
    hold = script.hold(c.AWAIT_PROGRESS)
    handle = await incident.start()
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("d2", Interruption.GPU_FAULT))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert script.args(c.DIAGNOSE)[0].evidence == ()
    assert len(script.args(c.CLOSE)) == 1


async def test_evidence_is_bounded(incident, script):
    """Of hundreds of signals so many are taken; what goes to the diagnosis fits into one message of 2 MiB."""
    hold = script.hold(c.CONFIRM)
    handle = await incident.start()
    await hold.started.wait()
    wide = tuple(Evidence(source=Source.JOB_LOG, text="界" * 600) for _ in range(12))
    for n in range(MAX_EVIDENCE_SIGNALS + 20):
        await handle.signal("evidence", incident.detection(f"e{n}", evidence=wide))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (asked,) = script.args(c.DIAGNOSE)
    assert len(asked.evidence) == MAX_EVIDENCE
    assert len(asked.model_dump_json().encode()) < 1024 * 1024


# --- detections that need an incident of their own -------------------------------------------------------------------


async def test_a_crash_that_came_while_a_hang_was_looked_at_is_handled(incident, script):
    """The hang is not confirmed, the run continues as new with the crash: another run, another incident."""
    hung = c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="no longer running; its end is judged on its own")
    script.on(c.CONFIRM, hung, c.Confirmation(reason="Slurm shows FAILED", user="ada"))
    hold = script.hold(c.CLOSE)
    handle = await incident.start(incident.detection("hang", Interruption.HANG))
    await hold.started.wait()
    crash = incident.detection("crash")
    await handle.signal("evidence", crash)
    hold.release.set()
    result = await handle.result()
    assert result.outcome is Outcome.RECOVERED
    first, second = script.args(c.CONFIRM)
    assert (first.incident.kind, second.incident.kind) == (Interruption.HANG, Interruption.CRASH)
    assert second.detection == crash
    assert first.incident.id != second.incident.id == result.incident
    assert first.incident.run_id != second.incident.run_id
    assert [arg.outcome for arg in script.args(c.CLOSE)] == [Outcome.NOT_CONFIRMED, Outcome.RECOVERED]


@pytest.mark.parametrize("kind", [Interruption.STRAGGLER, Interruption.NUMERICS, Interruption.GPU_FAULT])
async def test_a_crash_of_an_attempt_that_was_left_running_is_handled(incident, script, kind):
    """It came while the incident of what was left alone was still open."""
    left = script.verdict(outcome=Outcome.OBSERVED, restart=Restart.NONE)
    script.on(c.PLAN, left, script.verdict())
    hold = script.hold(c.CLOSE)
    handle = await incident.start(incident.detection("slow", kind))
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("crash"))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert [arg.detection.id for arg in script.args(c.CONFIRM)] == ["slow", "crash"]


async def test_carried_over_are_the_latest_of_each_kind_and_a_hang_last(incident, script):
    """A chain of false alarms ends, and what ended the attempt goes before its silence."""
    script.on(c.CONFIRM, c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="no"))
    hold = script.hold(c.CONFIRM)
    handle = await incident.start(incident.detection("d0", Interruption.NODE_LOST))
    await hold.started.wait()
    for name, kind in [("h1", Interruption.HANG), ("h2", Interruption.HANG), ("c1", Interruption.CRASH)]:
        await handle.signal("evidence", incident.detection(name, kind))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.NOT_CONFIRMED
    assert [arg.detection.id for arg in script.args(c.CONFIRM)] == ["d0", "c1", "h2"]


@pytest.mark.parametrize("late", [Interruption.HANG, Interruption.CRASH])
async def test_an_incident_that_answered_its_job_completes(incident, script, late):
    """A confirmed crash, whatever else was told, ends in one incident."""
    hold = script.hold(c.CLOSE)
    handle = await incident.start()
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("d2", late))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert len(script.args(c.CLOSE)) == 1


async def test_the_first_of_its_kind_is_taken_beyond_the_cap(incident, script):
    """Two hundred signals of one kind do not hide the one crash among them."""
    script.on(c.CONFIRM, c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="no"))
    hold = script.hold(c.CONFIRM)
    handle = await incident.start(incident.detection("h0", Interruption.HANG))
    await hold.started.wait()
    for n in range(1, MAX_EVIDENCE_SIGNALS + 5):
        await handle.signal("evidence", incident.detection(f"h{n}", Interruption.HANG))
    await handle.signal("evidence", incident.detection("crash"))
    hold.release.set()
    await handle.result()
    last = f"h{MAX_EVIDENCE_SIGNALS - 1}"
    assert [arg.detection.id for arg in script.args(c.CONFIRM)] == ["h0", "crash", last]


# --- cancel and superseded ------------------------------------------------------------------------------------------

_WAITING_STEPS = {
    Phase.CONFIRMING: c.CONFIRM,
    Phase.DIAGNOSING: c.DIAGNOSE,
    Phase.PLANNING: c.PLAN,
    Phase.ACTING: c.KEEP_OUTPUTS,
    Phase.VERIFYING: c.AWAIT_PROGRESS,
}


async def _held_in(incident, script, phase):
    """Start the incident and bring it to this phase."""
    if phase is Phase.WAITING:
        script.on(c.PLAN, script.verdict(Mode.APPROVE))
        handle = await incident.start()
        await incident.waiting(handle)
        return handle, None
    hold = script.hold(_WAITING_STEPS[phase])
    handle = await incident.start()
    await hold.started.wait()
    return handle, hold


@pytest.mark.parametrize(
    "phase",
    [
        Phase.CONFIRMING,
        Phase.DIAGNOSING,
        Phase.PLANNING,
        Phase.WAITING,
        Phase.ACTING,
        Phase.VERIFYING,
    ],
)
async def test_a_person_cancels_in_any_phase(incident, script, phase):
    """The signal `cancel` ends the incident as overridden, with the reason, and nothing more is done."""
    handle, hold = await _held_in(incident, script, phase)
    before = script.mutations
    await handle.signal("cancel", {"reason": "I do it myself"})
    if phase is Phase.ACTING:
        hold.release.set()
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.OVERRIDDEN, "cancelled by a person: I do it myself")
    assert script.mutations == before


async def test_a_cancel_ends_the_wait_for_an_attempt_that_will_not_end(incident, script):
    """COMPLETING may last for hours; a person need not."""
    hold = script.hold(c.AWAIT_ENDED)
    handle = await incident.start()
    await hold.started.wait()
    await handle.signal("cancel", {})
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.OVERRIDDEN, "cancelled by a person: no reason given")
    assert c.START.name not in script.names


async def test_a_cancel_before_any_detection_ends_a_run_started_by_hand(incident, script):
    """A workflow started from the web UI without evidence can be ended from there too."""
    handle = await incident.client.start_workflow(
        RecoverJob.run,
        c.RecoverInput(attempt=incident.attempt, kind=Interruption.CRASH),
        id=incident.workflow_id,
        task_queue=incident.task_queue,
    )
    await handle.signal("cancel", {"reason": "a mistake"})
    assert (await handle.result()).outcome is Outcome.OVERRIDDEN
    assert script.names == [c.CLOSE.name]


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [
        (Phase.CONFIRMING, Outcome.SUPERSEDED),
        (Phase.DIAGNOSING, Outcome.SUPERSEDED),
        (Phase.PLANNING, Outcome.SUPERSEDED),
        (Phase.WAITING, Outcome.SUPERSEDED),
        (Phase.VERIFYING, Outcome.RESTARTED_NO_PROGRESS),
    ],
)
async def test_a_newer_incident_takes_over(incident, script, phase, outcome):
    """Before acting: superseded, and nothing was done. Verifying: the restart brought no progress."""
    handle, _ = await _held_in(incident, script, phase)
    before = script.mutations
    await handle.signal("superseded", "i0123456789")
    result = await handle.result()
    assert result.outcome is outcome
    assert "i0123456789" in result.reason
    assert script.mutations == before


async def test_a_newer_incident_waits_for_a_restart_half_done(incident, script):
    """Superseded while acting: the restart is carried through, and then ends without waiting for progress."""
    handle, hold = await _held_in(incident, script, Phase.ACTING)
    await handle.signal("superseded", "i0123456789")
    hold.release.set()
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.RESTARTED_NO_PROGRESS, "failed again: incident i0123456789")
    assert script.mutations == [c.KEEP_OUTPUTS.name, c.REQUEUE.name, c.START.name]
    assert c.AWAIT_PROGRESS.name not in script.names


async def test_cancelling_the_workflow_from_outside_still_closes_the_incident(incident, script):
    """The web UI's own Cancel ends the incident as overridden, and the ledger is told."""
    hold = script.hold(c.AWAIT_PROGRESS)
    handle = await incident.start()
    await hold.started.wait()
    await handle.cancel()
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.OVERRIDDEN, "the workflow was cancelled by a person")
    assert script.args(c.CLOSE)[0].outcome is Outcome.OVERRIDDEN
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_cancelling_the_workflow_in_the_middle_of_an_act_goes_no_further(incident, script):
    """Nothing comes after the act that was under way but the close."""
    hold = script.hold(c.REQUEUE)
    handle = await incident.start()
    await hold.started.wait()
    await handle.cancel()
    assert (await handle.result()).outcome is Outcome.OVERRIDDEN
    assert script.names[-2:] == [c.REQUEUE.name, c.CLOSE.name]


async def test_cancelling_the_workflow_while_it_closes_does_not_lose_the_close(incident, script):
    """A close that the ledger keeps waiting is awaited all the same."""
    hold = script.hold(c.CLOSE)
    handle = await incident.start()
    await hold.started.wait()
    await handle.cancel()
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert len(script.args(c.CLOSE)) == 1


# --- the lease ------------------------------------------------------------------------------------------------------


@workflow.defn(name="OlderIncident", sandboxed=False)
class OlderIncident:
    """Stands for the job's other open incident: ends once it is superseded."""

    def __init__(self):
        self._by = ""

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: bool(self._by))
        return self._by

    @workflow.signal
    def superseded(self, by: str) -> None:
        self._by = by


async def test_one_act_lease_per_job(incident, script):
    """The job's older incident is told and its close awaited before anything is touched or even diagnosed."""
    older = f"{incident.workflow_id}/older"
    script.on(c.CONFIRM, c.Confirmation(reason="Slurm shows FAILED", user="ada", open_incident=older))
    hold = script.hold(c.AWAIT_CLOSED)
    queue = f"{incident.task_queue}-older"
    async with Worker(incident.client, task_queue=queue, workflows=[OlderIncident]):
        other = await incident.client.start_workflow(OlderIncident.run, id=older, task_queue=queue)
        handle = await incident.start()
        await hold.started.wait()
        assert await other.result() == script.args(c.CONFIRM)[0].incident.id
    assert script.names == [c.CONFIRM.name, c.AWAIT_CLOSED.name]
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert script.args(c.AWAIT_CLOSED)[0].workflow_id == older


async def test_a_lease_whose_workflow_is_gone_is_closed_by_the_wait(incident, script):
    """A terminated workflow never closes its incident in the ledger; the wait does (`activities/lease.py`)."""
    gone = f"{incident.workflow_id}/gone"
    script.on(c.CONFIRM, c.Confirmation(reason="Slurm shows FAILED", user="ada", open_incident=gone))
    assert (await incident.run()).outcome is Outcome.RECOVERED
    assert incident.steps()["lease"] == f"{gone} had ended already"
    assert script.args(c.AWAIT_CLOSED)[0].workflow_id == gone


async def test_a_second_interruption_of_the_attempt_is_another_incident(incident, script):
    """The same workflow id may run again: with the default or REJECT_DUPLICATE a second hang would be lost."""
    first = await incident.run()
    second = await incident.run(incident.detection("d2"))
    assert first.incident != second.incident
    assert [arg.detection.id for arg in script.args(c.CONFIRM)] == ["d1", "d2"]
