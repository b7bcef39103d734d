"""Looking and judging: what is confirmed, what is found as the cause, and what a plan is made from."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.confirm import SLURM_DECIDES_WITHIN
from relight.activities.investigate import bounded, witness
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.attempts import AttemptKey, LogPosition, Progress, progress_cursor
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Answer, Evidence, Interruption, Source, Trust
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Mode, Restart
from relight.domain.policy import Policy
from relight.domain.progress import CPU_FELL
from relight.domain.slurm import JobFlag, JobState, NodeFlag, NodeState

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"


@pytest.fixture
def confirm(world, ref, detection):
    """Confirms a detection about an attempt."""

    async def call(attempt, kind=Interruption.CRASH, *, name="i1", at=None, **fields):
        found = detection(attempt, at or world.clock.now, kind, **fields)
        arg = c.ConfirmInput(incident=ref(attempt, kind, name=name), detection=found)
        return await world.run(world.confirm.confirm, arg)

    return call


# --- confirm ---


async def test_a_failed_attempt_is_confirmed(world, confirm):
    """And the incident is opened in the ledger, with what people look for."""
    attempt = await world.failed()
    found = await confirm(attempt)
    assert (found.outcome, found.lineage, found.open_incident) == (None, attempt.lineage, "")
    assert (found.job_name, found.user, found.partition, found.nodes) == ("train", "alice", "gpu", ("n1", "n2"))
    incident = await world.ledger.incident("i1")
    assert (incident.open, incident.phase, incident.lineage) == (True, Phase.CONFIRMING, attempt.lineage)
    assert [row.kind for row in await world.ledger.rows(incident="i1")] == [RowKind.OPENED, RowKind.CONFIRMED]


async def test_confirming_again_opens_nothing_twice(world, confirm):
    """A retried activity writes no second row and gives the same answer."""
    attempt = await world.failed()
    first = await confirm(attempt)
    assert await confirm(attempt) == first
    assert len(await world.ledger.rows(incident="i1")) == 2
    assert len(await world.ledger.incidents()) == 1


async def test_an_attempt_never_seen_is_not_confirmed(world, confirm):
    """But recorded."""
    attempt = await world.failed()
    key = AttemptKey(cluster="test", job_id=99, submit_time=attempt.key.submit_time)
    found = await confirm(attempt.model_copy(update={"key": key}))
    assert found.outcome is Outcome.NOT_CONFIRMED
    assert (await world.ledger.incident("i1")).attempt == key


async def test_a_false_alarm_is_not_confirmed(world, confirm):
    """The attempt runs."""
    assert (await confirm(await world.train())).outcome is Outcome.NOT_CONFIRMED


async def test_slurm_is_given_time_to_make_up_its_mind(world, confirm):
    """A lost node: the job still shows RUNNING, and ends NODE_FAIL a moment later."""
    attempt = await world.train()
    put(world, "n2", state=NodeState.DOWN)
    world.after(9, lambda: world.slurm.lose_node("n2"))
    began = world.clock.now
    assert (await confirm(attempt, Interruption.NODE_LOST)).outcome is None
    assert world.clock.now - began == timedelta(seconds=9)


async def test_a_node_that_comes_back_is_no_interruption(world, confirm):
    """The attempt runs on."""
    attempt = await world.train()
    put(world, "n2", state=NodeState.DOWN)
    world.after(9, lambda: put(world, "n2", state=NodeState.ALLOCATED))
    assert (await confirm(attempt, Interruption.NODE_LOST)).outcome is Outcome.NOT_CONFIRMED


@pytest.mark.parametrize(("signature", "outcome"), [("XID_79", None), ("XID_13", Outcome.NOT_CONFIRMED)])
async def test_a_gpu_fault_counts_once_training_has_stopped(world, confirm, signature, outcome):
    """Where the catalogue says that it ends programs, a minute of silence; of any other, only the attempt's end."""
    attempt = await world.train()
    await world.steps(attempt.key, 40, world.clock.now - timedelta(seconds=1))
    text = f"NVRM: Xid (PCI:0000:43:00): {signature[4:]}, told by NVML"
    fault = Evidence(source=Source.NVML, text=text, signature=signature, node="n1", at=world.clock.now)
    began = world.clock.now
    found = await confirm(attempt, Interruption.GPU_FAULT, evidence=(fault,))
    assert found.outcome is outcome
    assert world.clock.now - began >= timedelta(seconds=60)


async def test_a_gpu_fault_under_a_job_that_trains_on_is_none(world, confirm):
    """However bad it sounds: a healthy job is not killed for it."""
    attempt = await world.train()
    at = world.clock.now - timedelta(seconds=30)
    await world.steps(attempt.key, 40)
    fault = Evidence(source=Source.NVML, text="Xid 79", signature="XID_79", node="n1", at=at)
    found = await confirm(attempt, Interruption.GPU_FAULT, at=at, evidence=(fault,))
    assert (found.outcome, found.reason) == (Outcome.NOT_CONFIRMED, "training goes on: step 40")


async def test_a_mind_that_is_never_made_up_is_a_no(world, confirm):
    """After a minute it counts as not confirmed; Slurm's own end of the job will be found then."""
    attempt = await world.train()
    put(world, "n2", state=NodeState.DOWN)
    began = world.clock.now
    found = await confirm(attempt, Interruption.NODE_LOST)
    assert found.outcome is Outcome.NOT_CONFIRMED
    assert world.clock.now - began == SLURM_DECIDES_WITHIN


async def test_a_hang_that_moved_is_not_confirmed(world, confirm):
    """By the follower's word."""
    attempt = await world.train()
    at = world.clock.now
    assert (await confirm(attempt, Interruption.HANG)).outcome is None
    world.clock.on(1)
    await world.steps(attempt.key, 8)
    assert (await confirm(attempt, Interruption.HANG, name="i2", at=at)).outcome is Outcome.NOT_CONFIRMED


async def test_the_jobs_other_open_incident_is_named(world, confirm):
    """One act lease per job: the older must close before the newer does anything."""
    first = await world.failed()
    await confirm(first, name="i1")
    await world.slurm.requeue(first.key.job_id)
    world.clock.on(125)
    await world.look()
    world.slurm.fail(first.key.job_id)
    await world.look()
    second = await world.attempt(first.key.job_id)
    assert (await confirm(second, name="i2")).open_incident == first.key.workflow_id
    closed = (await world.ledger.incident("i1")).model_copy(update={"outcome": Outcome.SUPERSEDED})
    await world.ledger.commit(Change(incidents=(closed,)))
    assert (await confirm(second, name="i3")).open_incident == ""


async def test_another_jobs_incident_is_no_lease(world, confirm):
    """Incidents of different jobs run side by side."""
    await confirm(await world.failed(), name="i1")
    assert (await confirm(await world.failed(), name="i2")).open_incident == ""


async def test_a_failed_look_is_no_answer(world, confirm):
    """Raised, and tried again by Temporal: unknown is neither yes nor no."""
    attempt = await world.failed()
    world.slurm.fail_next("job", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await confirm(attempt)
    assert await world.ledger.incident("i1") is None


def put(world, name, **fields):
    """Change a node."""
    world.slurm.node_records[name] = world.slurm.node_records[name].model_copy(update=fields)


# --- diagnose ---


@pytest.fixture
def diagnose(world, ref, detection):
    """Diagnoses a crash of an attempt."""

    async def call(attempt, *, told=(), signalled=()):
        found = detection(attempt, world.clock.now, occurred_at=world.clock.now, evidence=told)
        arg = c.DiagnoseInput(incident=ref(attempt), detection=found, evidence=signalled)
        return await world.run(world.investigate.diagnose, arg)

    return call


async def test_the_jobs_output_is_read(world, diagnose):
    """A cause that the job printed is found, and drains nothing."""
    (world.folder / "train.out").write_text(f"step 7/100 | loss 0.5 | step_time 1.0 s\n[rank0]: {OOM}\n")
    found = await diagnose(await world.failed())
    assert found.verdict.signature != "UNKNOWN"
    assert found.failed_step == 7
    assert not any(h.drain_nodes for h in found.hypotheses)
    assert any(e.trust is Trust.JOB for e in found.verdict.evidence)
    (row,) = await world.rows(RowKind.DIAGNOSED)
    assert Diagnosis.model_validate(row.body) == found


async def test_an_earlier_attempts_output_is_not_read(world, diagnose):
    """A job that appends: what stands before this attempt's beginning is another failure."""
    text = f"[rank0]: {OOM}\n"
    (world.folder / "train.out").write_text(text)
    attempt = await world.failed()
    before = await diagnose(attempt)
    position = LogPosition(offset=len(text), start=len(text))
    progress = Progress(files={str(world.folder / "train.out"): position})
    await world.ledger.commit(Change(cursors={progress_cursor(attempt.key): progress.model_dump(mode="json")}))
    after = await diagnose(attempt)
    assert before.verdict.signature not in {h.signature for h in after.hypotheses}


async def test_a_kernel_log_is_a_platform_witness(world, diagnose):
    """The platform's own word on a node of the attempt proposes it for draining."""
    attempt = await world.failed()
    at = world.clock.now
    line = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    (world.folder / "kern-n2.log").write_text(f"{at.isoformat()} n2 kernel: {line}\n")
    found = await diagnose(attempt)
    assert found.verdict.drain_nodes == ("n2",)
    assert {e.node for e in found.verdict.evidence if e.trust is Trust.PLATFORM} == {"n2"}


async def test_the_same_line_in_the_jobs_output_is_none(world, diagnose):
    """Whatever a program prints, it drains nothing."""
    at = "2026-11-30T09:01:00+00:00"
    line = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    (world.folder / "train.out").write_text(f"{at} n2 kernel: {line}\n" * 50)
    found = await diagnose(await world.failed())
    assert not any(h.drain_nodes for h in found.hypotheses)


async def test_what_could_not_be_read_is_said(world, diagnose):
    """Silence of a source that could not be read proves nothing."""
    found = await diagnose(await world.failed())
    assert any("train.out" in text for text in found.unreadable)
    assert any("kern-n1.log" in text for text in found.unreadable)


async def test_what_watchers_and_signals_told_stands_with_the_verdict(world, diagnose):
    """Evidence from the detection and from later signals is not lost."""
    seen = Evidence(source=Source.SLURMCTLD, text="node n2 is DOWN", node="n2")
    later = Evidence(source=Source.NVML, text="row remap pending", node="n1")
    found = await diagnose(await world.failed(), told=(seen,), signalled=(later,))
    assert {seen, later} <= set(found.verdict.evidence)


async def test_an_attempt_never_seen_cannot_be_diagnosed(world, diagnose):
    """An error for which another try cannot help."""
    attempt = await world.failed()
    key = AttemptKey(cluster="test", job_id=99, submit_time=attempt.key.submit_time)
    with pytest.raises(ValueError, match="never saw"):
        await diagnose(attempt.model_copy(update={"key": key}))


def test_a_diagnosis_is_small_enough_to_travel():
    """However much was found and told."""
    evidence = tuple(Evidence(source=Source.JOB_LOG, text="x" * 600) for _ in range(16))
    one = Hypothesis(
        signature="X",
        category=Category.GPU,
        action=Action.RESTART,
        action_if_it_repeats=Action.STOP,
        confidence=0.5,
        evidence=evidence,
    )
    found = Diagnosis(hypotheses=(one,) * 8, unreadable=("x",) * 5000)
    told = tuple(Evidence(source=Source.NVML, text=f"{number} {'x' * 500}") for number in range(300))
    small = bounded(found, (*evidence, *told))
    assert len(small.model_dump_json()) < 64 << 10
    assert len(small.verdict.evidence) == 16
    assert Diagnosis.model_validate_json(small.model_dump_json()) == small


# --- plan ---


@pytest.fixture
def cause():
    """Makes a diagnosis."""

    def make(**fields):
        given = {
            "signature": "CUDA_ECC",
            "category": Category.GPU,
            "action": Action.RESTART,
            "action_if_it_repeats": Action.STOP,
            "confidence": 0.9,
        }
        return Diagnosis(hypotheses=(Hypothesis(**{**given, **fields}),))

    return make


@pytest.fixture
def plan(world, ref, detection, cause):
    """Plans for a crash of an attempt."""

    async def call(attempt, kind=Interruption.CRASH, *, diagnosis=None, site=None, **fields):
        where = site or world
        found = detection(attempt, where.clock.now, kind, **fields)
        arg = c.PlanInput(incident=ref(attempt, kind), detection=found, diagnosis=diagnosis or cause())
        return await where.run(where.investigate.plan, arg)

    return call


async def test_a_plan(world, plan):
    """Made from fresh reads, with a deadline, written down with its digest; nothing is changed."""
    attempt = await world.failed()
    verdict = await plan(attempt)
    assert (verdict.plan.restart, verdict.mode, verdict.outcome) == (Restart.REQUEUE, Mode.AUTO, None)
    assert verdict.plan.requeue_until == world.clock.now - timedelta(seconds=1) + timedelta(seconds=240)
    (row,) = await world.rows(RowKind.PLANNED)
    assert row.body["digest"] == verdict.plan.digest
    assert world.writes == []


@pytest.mark.parametrize(("settles", "outcome"), [(7, None), (3600, Outcome.FAILED)])
async def test_a_state_that_slurm_hides_is_waited_for(make_world, plan, settles, outcome):
    """22.05 shows nothing but COMPLETING until the Epilog has ended; a plan waits for a while, not for ever."""
    world = make_world(accounting=False)
    attempt = await world.failed()
    world.change(attempt, state=JobState.UNKNOWN, flags=frozenset({JobFlag.COMPLETING}))
    world.after(settles, lambda: world.change(attempt, state=JobState.FAILED, flags=frozenset()))
    assert (await plan(attempt, site=world)).outcome is outcome


async def test_the_deadline_counts_from_the_real_end(world, plan):
    """Relight was away for 200 s when the job ended: Slurm's MinJobAge did not wait for it."""
    attempt = await world.train()
    world.slurm.fail(attempt.key.job_id)
    ended = world.clock.now
    world.clock.on(200)
    await world.look()
    assert (await plan(attempt)).plan.requeue_until == ended + timedelta(seconds=240)
    world.clock.on(41)
    assert (await plan(attempt)).outcome is Outcome.EXPIRED


async def test_an_attempt_that_runs_has_no_deadline(world, plan):
    """A hang may be decided on in peace."""
    verdict = await plan(await world.train(), Interruption.HANG)
    assert (verdict.plan.restart, verdict.plan.requeue_until) == (Restart.REQUEUE, None)


async def test_slurms_own_requeue_is_adopted(world, plan):
    """Whose hand it was is read from the ledger and the nodes."""
    attempt = await world.train()
    world.slurm.lose_node("n2")
    await world.look()
    assert (await plan(attempt, Interruption.NODE_LOST)).plan.restart is Restart.ADOPT


async def test_a_lost_node_that_is_back_already_is_told_by_accounting(world, plan):
    """While the plan waited for a person, say."""
    attempt = await world.train()
    world.slurm.lose_node("n2")
    await world.look()
    world.slurm.return_node("n2")
    assert (await plan(attempt, Interruption.NODE_LOST)).plan.restart is Restart.ADOPT
    world.slurm.fail_next("executions", SlurmUnavailableError("slurmdbd is away"))
    assert (await plan(attempt, Interruption.NODE_LOST)).outcome is Outcome.OVERRIDDEN


@pytest.mark.parametrize(("prolog_on", "node"), [("n2", "n2"), ("", "n1")])
async def test_what_could_not_be_launched_is_kept_off_that_node(world, plan, diagnose, prolog_on, node):
    """The node whose prolog failed, else the batch host; adopted, and Slurm's hold released. Nothing is drained."""
    attempt = await world.train(partition="")
    world.slurm.fail_launch(attempt.key.job_id, prolog_on=prolog_on)
    await world.look()
    found = await diagnose(attempt)
    assert (found.verdict.signature, found.verdict.implicated.nodes) == ("SLURM_LAUNCH_FAILED", (node,))
    made = (await plan(attempt, diagnosis=found)).plan
    assert (made.restart, made.release, made.exclude, made.drain) == (Restart.ADOPT, True, (node,), ())


async def test_the_missing_output_of_what_was_not_launched_blinds_nobody(world, plan, diagnose):
    """Of a job that ran it would: then the mode is at most `approve`."""
    ran, attempt = await world.failed(stdout=str(world.folder / "gone.out")), await world.train()
    world.slurm.fail_launch(attempt.key.job_id)
    await world.look()
    assert (await plan(ran, diagnosis=await diagnose(ran))).mode is Mode.APPROVE
    assert (await plan(attempt, diagnosis=await diagnose(attempt))).mode is Mode.AUTO


async def test_somebody_elses_requeue_is_left_alone(world, plan):
    """No intent of ours, no lost node."""
    attempt = await world.requeued()
    assert (await plan(attempt)).outcome is Outcome.OVERRIDDEN


async def test_a_successor_is_seen(world, plan):
    """Another job of the same name in the same folder waits already."""
    attempt = await world.failed()
    world.slurm.submit()
    assert (await plan(attempt)).outcome is Outcome.SUCCEEDED_BY


async def test_a_forgotten_job_has_expired(world, plan):
    """Read, not assumed."""
    attempt = await world.failed()
    world.slurm.purge(attempt.key.job_id)
    assert (await plan(attempt)).outcome is Outcome.EXPIRED


async def test_only_nodes_of_the_jobs_partition_replace_an_excluded_one(world, plan, cause):
    """n3 and n4 belong to another: without them n2 cannot be spared."""
    attempt = await world.failed()
    suspect = cause(action=Action.RESTART_EXCLUDING_NODE, implicated={"nodes": ("n2",)})
    for name in ("n1", "n2", "n3", "n4"):
        put(world, name, partitions=("gpu",))
    assert (await plan(attempt, diagnosis=suspect)).plan.exclude == ("n2",)
    for name in ("n3", "n4"):
        put(world, name, partitions=("debug",))
    assert (await plan(attempt, diagnosis=suspect)).plan.exclude == ()


async def test_a_node_drained_meanwhile_is_not_drained_again(world, plan, cause):
    """Fresh node state decides."""
    attempt = await world.failed()
    for name in ("n1", "n2", "n3", "n4"):
        put(world, name, partitions=("gpu",))
    broken = cause(drain_nodes=("n2",))
    assert (await plan(attempt, diagnosis=broken)).plan.drain == ("n2",)
    put(world, "n2", flags=frozenset({NodeFlag.DRAIN}), reason="bad fan")
    assert (await plan(attempt, diagnosis=broken)).plan.drain == ()


async def test_earlier_incidents_of_the_job_count(world, plan, ref, incident):
    """Three fruitless restarts of the same lineage stop it; others do not count."""
    attempt = await world.failed()
    other = await world.failed(name="other", work_dir="/other")
    before = attempt.key.model_copy(update={"submit_time": attempt.key.submit_time - timedelta(hours=1)})
    older = attempt.model_copy(update={"key": before})
    made = [
        incident(
            ref(whose, name=f"old{i}"),
            whose,
            world.clock.now - timedelta(hours=i),
            outcome=Outcome.RESTARTED_NO_PROGRESS,
            closed_at=world.clock.now,
        )
        for i, whose in enumerate([older, older, other, attempt], start=1)
    ]
    await world.ledger.commit(Change(incidents=tuple(made)))
    assert (await plan(attempt)).plan.restart is Restart.REQUEUE
    third = made[0].model_copy(update={"id": "old9"})
    await world.ledger.commit(Change(incidents=(third,)))
    assert (await plan(attempt)).outcome is Outcome.STOPPED


async def test_the_jobs_comment_lowers_the_mode(world, plan):
    """As it stood when the attempt was seen."""
    attempt = await world.failed(comment='{"relight": {"mode": "monitor"}}')
    world.change(attempt, comment='{"relight": {"mode": "auto"}}')
    assert (await plan(attempt)).mode is Mode.MONITOR


async def test_a_hang_needs_its_second_witness(world, plan):
    """CPU use that fell away is one; without it a person decides."""
    attempt = await world.train()
    seen = (Evidence(source=Source.SLURMCTLD, text="CPU use fell", signature=CPU_FELL),)
    assert (await plan(attempt, Interruption.HANG)).mode is Mode.APPROVE
    assert (await plan(attempt, Interruption.HANG, evidence=seen)).mode is Mode.AUTO


async def test_the_silence_itself_is_no_witness(world, detection):
    """Nor is it a sign that there is none."""
    silence = (Evidence(source=Source.PROGRESS, text="no step for 40 s"),)
    assert witness(detection(await world.train(), world.clock.now, evidence=silence)) is Answer.UNKNOWN


async def test_in_monitor_mode_the_plan_says_what_would_be_done(make_world, plan):
    """Decided like any other, and carried out by nobody."""
    world = make_world(policy=Policy(mode=Mode.MONITOR))
    attempt = await world.failed()
    verdict = await plan(attempt, site=world)
    assert (verdict.mode, verdict.plan.restart, world.writes) == (Mode.MONITOR, Restart.REQUEUE, [])


async def test_a_failed_read_makes_no_plan(world, plan):
    """Raised, and tried again."""
    attempt = await world.failed()
    for read in ("job", "nodes", "jobs", "facts"):
        world.slurm.fail_next(read, SlurmUnavailableError("timed out"))
        with pytest.raises(SlurmUnavailableError):
            await plan(attempt)
    assert await world.rows(RowKind.PLANNED) == ()
    assert (await world.slurm.job(attempt.key.job_id)).state is JobState.FAILED
