"""A fresh job in place of one that Slurm cannot queue again: submitted once whatever happens, then like any attempt."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.dependants import Dependants
from relight.activities.resubmit import SETTLES, NotShownError, Resubmit
from relight.clients import lineages
from relight.clients.slurm import AmbiguousWriteError, RefusedError, SlurmUnavailableError
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.permits import Permit
from relight.domain.plan import Mode, Restart
from relight.domain.policy import Policy
from relight.domain.resubmission import digest_of, submission
from relight.domain.slurm import JobState

from .test_crash_points import Death, Points, Through

TRES = "cpu=4,mem=4G,node=2,billing=4"
AUTO = Policy(mode=Mode.AUTO, resubmit=Permit.AUTO)
CAUSE = Diagnosis(
    hypotheses=(
        Hypothesis(
            signature="NCCL_TIMEOUT",
            category=Category.NETWORK,
            action=Action.RESTART,
            action_if_it_repeats=Action.RESTART,
            confidence=0.9,
        ),
    )
)


@pytest.fixture
def site(make_world):
    """A site that lets Relight submit as its users, with accounting that keeps environments."""
    world = make_world(policy=AUTO)
    facts = world.slurm.slurm_facts.model_copy(update={"accounting_store_flags": frozenset({"job_env"})})
    world.slurm.slurm_facts = facts
    object.__setattr__(world.site, "submitter", world.slurm)
    return world


@pytest.fixture
def anew(site):
    return Resubmit(site.site)


@pytest.fixture
def send(ref, detection, site):
    """What the submission is given, as planned for the attempt."""

    def make(attempt, **fields):
        plan = c.Plan(
            attempt=attempt.key,
            restart=Restart.SUBMIT,
            reason="why",
            submission=digest_of(submission(attempt, "", without=fields.get("allow", ()))),
        )
        return c.SubmitInput(incident=ref(attempt), plan=plan, detection=detection(attempt, site.clock()), **fields)

    return make


async def dead(site, **fields):
    """A job that says no to requeues, and has failed."""
    return await site.failed(**{"requeue": False, "tres": TRES, "script": "#!/bin/sh\ntrain\n", **fields})


async def submitted(site, anew, arg):
    """The fresh job, held; and what later activities are given."""
    done = await site.run(anew.submit, arg)
    assert done.outcome is None, done.text
    incident = arg.incident.model_copy(update={"fresh": done.fresh})
    return site.slurm.job_records[done.fresh.job_id], arg.model_copy(update={"incident": incident})


async def test_it_is_planned_where_slurm_cannot_requeue(site, ref, detection):
    """With all that people need to know, bound to what is submitted; an older incident plans as it did."""
    attempt = await dead(site)
    arg = c.PlanInput(
        incident=ref(attempt), detection=detection(attempt, site.clock()), diagnosis=CAUSE, fresh_job=True
    )
    verdict = await site.run(site.investigate.plan, arg)
    assert (verdict.plan.restart, verdict.mode) == (Restart.SUBMIT, Mode.AUTO)
    assert verdict.plan.submission == digest_of(submission(attempt, ""))
    assert "sbatch --job-name=train" in verdict.plan.fresh
    before = await site.run(site.investigate.plan, arg.model_copy(update={"fresh_job": False}))
    assert (before.plan.restart, before.outcome) == (Restart.NONE, Outcome.STOPPED)


async def test_of_a_job_that_slurm_has_forgotten_accounting_must_know_the_end(site, ref, detection):
    """And where accounting does not answer, nothing is submitted."""
    attempt = await dead(site)
    site.slurm.purge(attempt.key.job_id)
    arg = c.PlanInput(
        incident=ref(attempt), detection=detection(attempt, site.clock()), diagnosis=CAUSE, fresh_job=True
    )
    assert (await site.run(site.investigate.plan, arg)).plan.restart is Restart.SUBMIT
    site.slurm.fail_next("executions", SlurmUnavailableError("slurmdbd is down"))
    verdict = await site.run(site.investigate.plan, arg)
    assert (verdict.plan.restart, verdict.outcome) == (Restart.NONE, Outcome.EXPIRED)


async def test_where_relight_may_not_submit_the_plan_says_what_to_run(site, ref, detection):
    """A person is told the command, and that it is not Relight's to run."""
    object.__setattr__(site.site, "submitter", None)
    attempt = await dead(site)
    arg = c.PlanInput(
        incident=ref(attempt), detection=detection(attempt, site.clock()), diagnosis=CAUSE, fresh_job=True
    )
    plan = (await site.run(site.investigate.plan, arg)).plan
    assert not plan.acts
    assert "slurm.submit_wrapper" in plan.reason
    assert plan.fresh.startswith("relight show i1 --script > job.sh && sbatch")


async def test_the_fresh_job_is_held_until_it_is_released(site, anew, send):
    """Same user, script and options; nothing of the old job is touched."""
    attempt = await dead(site, comment='{"relight": {"mode": "auto"}}', excluded_nodes=("n4",))
    job, arg = await submitted(site, anew, send(attempt))
    assert (job.state, job.reason) == (JobState.PENDING, "JobHeldUser")
    assert (job.user, job.name, job.node_count, job.requeue) == ("alice", "train", 2, False)
    assert job.excluded_nodes == ("n4",)
    assert site.slurm.scripts[job.job_id] == attempt.script
    assert not site.slurm.start(job.job_id).running
    released = await site.run(anew.release, arg)
    assert released.outcome is None
    assert site.slurm.start(job.job_id).running
    assert site.writes == ["submit_anew", "release"]
    [meant, _] = [row.body for row in await site.rows(RowKind.INTENT)]
    assert (meant["what"], meant["job"]) == ("submit", attempt.key.job_id)


async def test_the_old_jobs_epilog_is_waited_for(make_world, ref, detection):
    """It still holds its nodes, and may still write."""
    world = make_world(policy=AUTO, epilog=timedelta(seconds=150))
    flags = {"accounting_store_flags": frozenset({"job_env"})}
    world.slurm.slurm_facts = world.slurm.slurm_facts.model_copy(update=flags)
    object.__setattr__(world.site, "submitter", world.slurm)
    attempt = await dead(world)
    plan = c.Plan(
        attempt=attempt.key, restart=Restart.SUBMIT, reason="why", submission=digest_of(submission(attempt, ""))
    )
    arg = c.SubmitInput(incident=ref(attempt), plan=plan, detection=detection(attempt, world.clock()))
    with pytest.raises(NotShownError):
        await world.run(Resubmit(world.site).submit, arg)
    assert world.writes == []
    assert (await world.run(Resubmit(world.site).submit, arg)).fresh
    assert not world.record(attempt).completing


@pytest.mark.parametrize("after", [False, True], ids=["not written", "written"])
async def test_an_answer_that_was_lost_is_looked_for(site, anew, send, after):
    """What was written is found by its mark; what was not is only written again once it would have shown."""
    attempt = await dead(site)
    site.slurm.fail_next("submit_anew", AmbiguousWriteError("no answer"), after=after)
    arg = send(attempt)
    if after:
        assert (await site.run(anew.submit, arg)).fresh
    else:
        with pytest.raises(NotShownError):
            await site.run(anew.submit, arg)
        began = site.clock()
        assert (await site.run(anew.submit, arg)).fresh
        assert site.clock() - began >= SETTLES
    mine = [job for job in site.slurm.job_records.values() if "relight-fresh:" in job.comment]
    assert len(mine) == 1
    assert (await site.run(anew.submit, arg)).fresh.job_id == mine[0].job_id


async def test_wherever_the_worker_dies_one_job_is_submitted(make_world, ref, detection):
    """Each call to the outside is a point at which it ends, right before its effect or right after."""
    points = None
    for last in [None, *range(60)]:
        for after in (False, True):
            world = make_world(policy=AUTO)
            flags = {"accounting_store_flags": frozenset({"job_env"})}
            world.slurm.slurm_facts = world.slurm.slurm_facts.model_copy(update=flags)
            attempt = await dead(world)
            plan = c.Plan(
                attempt=attempt.key, restart=Restart.SUBMIT, reason="why", submission=digest_of(submission(attempt, ""))
            )
            arg = c.SubmitInput(incident=ref(attempt), plan=plan, detection=detection(attempt, world.clock()))

            async def live(points, world=world, arg=arg):
                ledger, slurm = world.ledger, world.slurm
                for name, outside in (("ledger", ledger), ("slurm", slurm), ("submitter", slurm)):
                    object.__setattr__(world.site, name, Through(outside, points) if points else outside)
                anew = Resubmit(world.site)
                done = await world.run(anew.submit, arg)
                incident = arg.incident.model_copy(update={"fresh": done.fresh})
                return await world.run(anew.release, arg.model_copy(update={"incident": incident}))

            dying = Points(last, after=after)
            if last is None:
                await live(dying)
                points = dying.count
            elif last < points:
                with pytest.raises(Death):
                    await live(dying)
                await live(None)
            mine = [job for job in world.slurm.job_records.values() if "relight-fresh:" in job.comment]
            wanted = 1 if last is None or last < points else 0
            assert [job.reason for job in mine] == ["Priority"] * wanted, f"died at point {last}, after: {after}"
        if last is not None and last >= points:
            break
    assert points > 10


async def test_what_was_submitted_twice_all_the_same_is_ended_while_held(site, anew, send):
    """slurmctld took a submission after it had been looked for: the first stays."""
    attempt = await dead(site)
    job, arg = await submitted(site, anew, send(attempt))
    twin = site.slurm.submit(comment=job.comment, requeue=False, tres=TRES, task_count=job.task_count)
    # As a worker finds it that died before it wrote down the effect.
    again = arg.incident.model_copy(update={"fresh": None, "run_id": "other"})
    mark = job.comment
    assert "relight-fresh:" in mark
    found = (site.slurm.job_records[job.job_id], site.slurm.job_records[twin])
    from relight.activities.mutations import Mutation

    mutation = Mutation(site.site, again, "submit", lineage=attempt.lineage)
    done = await site.run(anew._taken, attempt, mutation, mark, found)
    assert done.fresh.job_id == job.job_id
    assert site.slurm.job_records[twin].state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"state": JobState.CANCELLED}, Outcome.OVERRIDDEN),
        ({"state": JobState.COMPLETED}, Outcome.OVERRIDDEN),
        ({"state": JobState.PENDING, "restarts": 1}, Outcome.OVERRIDDEN),
        ({"state": JobState.RUNNING}, Outcome.NOT_CONFIRMED),
    ],
    ids=["cancelled", "completed", "somebody's requeue", "runs"],
)
async def test_the_old_job_is_looked_at_right_before(site, anew, send, fields, outcome):
    """What has become of it since the plan was made wins."""
    attempt = await dead(site)
    arg = send(attempt)
    site.change(attempt, **fields)
    done = await site.run(anew.submit, arg)
    assert (done.outcome, site.writes) == (outcome, [])


async def test_a_successor_goes_on_instead(site, anew, send):
    """Submitted while the plan waited."""
    attempt = await dead(site)
    site.slurm.submit()
    done = await site.run(anew.submit, send(attempt))
    assert (done.outcome, site.writes) == (Outcome.SUCCEEDED_BY, [])


async def test_another_script_than_was_planned_is_not_submitted(site, anew, send):
    """People approved what they were shown."""
    attempt = await dead(site)
    arg = send(attempt)
    other = arg.plan.model_copy(update={"submission": "0123456789abcdef"})
    done = await site.run(anew.submit, arg.model_copy(update={"plan": other}))
    assert (done.outcome, site.writes) == (Outcome.FAILED, [])


async def test_a_refusal_ends_it(site, anew, send):
    """In sbatch's words; nothing is tried twice."""
    attempt = await dead(site)
    site.slurm.fail_next("submit_anew", RefusedError("Invalid account"))
    arg = send(attempt)
    done = await site.run(anew.submit, arg)
    assert (done.outcome, done.text) == (Outcome.FAILED, "it was not submitted: Invalid account")
    assert (await site.run(anew.submit, arg)).outcome is Outcome.FAILED
    assert site.writes == ["submit_anew"]


async def test_a_job_that_would_not_be_the_same_never_starts(site, anew, send):
    """An option that was given by hand and is not on record: it shows in what Slurm makes of the submission."""
    attempt = await dead(site)
    site.change(attempt, tres="cpu=1,mem=1G,node=2,billing=1")
    done = await site.run(anew.submit, send(attempt))
    assert done.outcome is Outcome.FAILED
    assert "tres (cpu=1" in done.text
    [fresh] = [job for job in site.slurm.job_records.values() if "relight-fresh:" in job.comment]
    assert fresh.state is JobState.CANCELLED


async def test_the_lineage_goes_on(site, anew, send):
    """Attempts, exclusions and the number of restarts are the job's, whatever its number."""
    attempt = await dead(site)
    job, arg = await submitted(site, anew, send(attempt))
    away = c.ExcludeInput(incident=arg.incident, nodes=("n1",))
    assert (await site.run(site.restart.exclude, away)).text == "ExcNodeList=n1"
    await site.run(anew.release, arg)
    assert site.slurm.start(job.job_id).nodes == ("n2", "n3")
    await site.look()
    next_one = await site.attempt(job.job_id)
    assert next_one.lineage == attempt.lineage
    assert [a.key.job_id for a in await lineages.attempts_of(site.ledger, next_one)] == [job.job_id, attempt.key.job_id]
    assert set(await lineages.own_exclusions(site.ledger, next_one)) == {"n1"}
    assert await site.site.requeues(next_one) == 1
    # And on, over a second fresh job.
    site.clock.on(60)
    site.slurm.fail(job.job_id)
    await site.look()
    site.clock.on(1)
    third, arg = await submitted(site, anew, send(next_one))
    await site.run(anew.release, arg)
    site.slurm.start(third.job_id)
    await site.look()
    newest = await site.attempt(third.job_id)
    ids = [a.key.job_id for a in await lineages.attempts_of(site.ledger, newest)]
    assert ids == [third.job_id, job.job_id, attempt.key.job_id]


async def test_another_job_under_its_number_is_another_job(site, anew, send):
    """A slurmctld that was killed forgets a submission within 5 s, and gives the number to somebody else."""
    attempt = await dead(site)
    job, _ = await submitted(site, anew, send(attempt))
    other = site.slurm.job_records[job.job_id].model_copy(update={"comment": "", "user": "bob", "reason": "Priority"})
    site.slurm.job_records[job.job_id] = other
    site.slurm.start(job.job_id)
    await site.look()
    assert (await site.attempt(job.job_id)).lineage != attempt.lineage


async def awaited(site, arg, **fields):
    return await site.run(site.verify.await_running, c.AwaitRunningInput(incident=arg.incident, **fields))


async def test_the_next_attempt_is_waited_for(site, anew, send):
    """Until the watchers have seen it, so that its steps are followed."""
    attempt = await dead(site)
    job, arg = await submitted(site, anew, send(attempt))
    await site.run(anew.release, arg)
    site.after(5, lambda: site.slurm.start(job.job_id))
    site.after(8, site.look)
    running = await awaited(site, arg)
    assert running.attempt == (await site.attempt(job.job_id)).key


@pytest.mark.parametrize(
    ("rows", "ends"),
    [("none", (True, None)), ("started", (False, Outcome.FAILED)), ("unknown", (False, Outcome.FAILED))],
)
async def test_a_fresh_job_that_slurm_no_longer_shows(site, anew, send, rows, ends):
    """Only where accounting knows of no start it is submitted again; unknown is not no."""
    attempt = await dead(site)
    job, arg = await submitted(site, anew, send(attempt))
    await site.run(anew.release, arg)
    if rows == "started":
        site.slurm.start(job.job_id)
    if rows == "unknown":
        site.slurm.fail_next("executions", SlurmUnavailableError("slurmdbd is down"))
    site.slurm.purge(job.job_id)
    running = await awaited(site, arg)
    assert (running.forgotten, running.outcome) == ends


async def test_what_waited_for_its_success_waits_for_the_fresh_jobs(site, anew, send):
    """Its children's dependency is written anew, on the new number."""
    attempt = await dead(site)
    old = attempt.key.job_id
    child = site.slurm.submit(name="eval", work_dir="/home/alice/eval", dependency=f"afterok:{old}(failed),after:3")
    job, arg = await submitted(site, anew, send(attempt))
    done = await site.run(Dependants(site.site).repoint, arg)
    assert "wait again" in done.text
    assert f"afterok:{job.job_id}" in site.slurm.job_records[child].dependency
    assert "after:3" in site.slurm.job_records[child].dependency


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"state": JobState.CANCELLED}, Outcome.OVERRIDDEN),
        ({"reason": "JobHeldAdmin"}, Outcome.OVERRIDDEN),
        ({"reason": "Priority"}, None),
    ],
    ids=["cancelled", "held by an administrator", "released by its user"],
)
async def test_what_others_do_to_the_held_job_wins(site, anew, send, fields, outcome):
    """Nothing is released then."""
    attempt = await dead(site)
    job, arg = await submitted(site, anew, send(attempt))
    site.slurm.job_records[job.job_id] = job.model_copy(update=fields)
    done = await site.run(anew.release, arg)
    assert (done.outcome, site.writes) == (outcome, ["submit_anew"])


async def test_a_back_off_is_slurms_to_wait_for(site, anew, send):
    """The start time is set before the hold is undone: were Relight gone, Slurm would start it then."""
    attempt = await dead(site)
    job, arg = await submitted(site, anew, send(attempt))
    later = site.clock() + timedelta(minutes=5)
    await site.run(anew.release, arg.model_copy(update={"not_before": later}))
    assert site.writes == ["submit_anew", "start_after", "release"]
    shown = site.slurm.job_records[job.job_id]
    assert (shown.reason, shown.eligible_time) == ("BeginTime", later)
