"""A fresh job in place of one that Slurm cannot queue again: only where that is known, allowed, and would help."""

import json
from datetime import timedelta

import pytest

from relight.domain.diagnosis import Action
from relight.domain.hands import Hand
from relight.domain.incidents import Outcome
from relight.domain.permits import Permit
from relight.domain.plan import Mode, Restart
from relight.domain.policy import NOT_ANEW, Policy, decide
from relight.domain.resubmission import (
    FreshJob,
    Link,
    differs,
    digest_of,
    mark_for,
    marked,
    stand_in,
    submission,
    why_not,
    with_mark,
)
from relight.domain.slurm import AccountingRow, JobFlag, JobState, SlurmFacts
from relight.domain.wishes import wishes

AUTO = Policy(mode=Mode.AUTO, resubmit=Permit.AUTO)
MARK = mark_for("recover/main/7/x/run/submit/done")
TRES = "cpu=4,mem=4G,node=2,billing=4"
FACTS = SlurmFacts(version="24.11.5", accounting_store_flags=frozenset({"job_env"}))


@pytest.fixture
def dead(situation, record):
    """The situation of a job that ended badly and says that it must not be queued again."""

    def make(*, comment="", attempt=None, **fields):
        ended = {"state": JobState.FAILED, "requeue": False, "comment": comment, **fields.pop("shown", {})}
        given = {"no_fresh_job": "", "record": record(**ended), **fields}
        return situation(**given, **({"attempt": attempt} if attempt else {}))

    return make


@pytest.fixture
def gone(situation, now):
    """The situation of a job that slurmctld has forgotten; accounting has its end."""
    end = now + timedelta(hours=1)
    row = AccountingRow(job_id=7, state=JobState.FAILED, exit_code=1, submit_time=now, end_time=end)

    def make(**fields):
        return situation(**{"record": None, "execution": row, "no_fresh_job": "", **fields})

    return make


def test_a_job_that_slurm_cannot_queue_again_is_submitted_anew(dead, gone, situation, diagnosis, now):
    """It says so itself, Slurm has forgotten it, or it may forget it at any time; without a deadline of its own."""
    late = situation(ended_at=now - timedelta(hours=1), no_fresh_job="")
    completing = dead(shown={"flags": frozenset({JobFlag.COMPLETING})})
    for where in (dead(), completing, gone(), late):
        verdict = decide(where, diagnosis(), AUTO)
        assert (verdict.plan.restart, verdict.mode, verdict.outcome) == (Restart.SUBMIT, Mode.AUTO, None)
        assert verdict.plan.requeue_until is None
        assert verdict.plan.describe() == "submit job 7 anew"


def test_where_slurm_can_queue_it_again_it_does(situation, diagnosis):
    """A requeue keeps the job's number, so it comes first."""
    assert decide(situation(no_fresh_job=""), diagnosis(), AUTO).plan.restart is Restart.REQUEUE


@pytest.mark.parametrize(
    "row",
    [
        None,
        AccountingRow(job_id=7, state=JobState.RUNNING),
        AccountingRow(job_id=7, state=JobState.FAILED),
        AccountingRow(job_id=7, state=JobState.CANCELLED),
        AccountingRow(job_id=7, state=JobState.UNKNOWN),
    ],
    ids=["no row", "runs", "no end", "cancelled", "unknown"],
)
def test_a_job_that_is_not_known_to_have_failed_is_not_submitted_anew(gone, diagnosis, row):
    """slurmctld not knowing it says nothing of its end."""
    verdict = decide(gone(execution=row), diagnosis(), AUTO)
    assert (verdict.plan.restart, verdict.outcome) == (Restart.NONE, Outcome.EXPIRED)


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"shown": {"state": JobState.CANCELLED}}, Outcome.OVERRIDDEN),
        ({"shown": {"state": JobState.COMPLETED}}, Outcome.OVERRIDDEN),
        ({"shown": {"state": JobState.RUNNING}}, Outcome.STOPPED),
        ({"shown": {"exit_code": 93}}, Outcome.STOPPED),
        ({"successors": ("8",)}, Outcome.SUCCEEDED_BY),
        ({"hand": Hand.UNKNOWN}, Outcome.OVERRIDDEN),
    ],
    ids=["cancelled", "completed", "runs", "exit code 93", "a successor", "somebody's requeue"],
)
def test_what_forbids_a_requeue_forbids_a_fresh_job(dead, diagnosis, fields, outcome):
    """Each rule counts for both."""
    verdict = decide(dead(**fields), diagnosis(), AUTO)
    assert verdict.plan.restart is Restart.NONE
    assert verdict.outcome is outcome


def test_what_would_fail_again_is_not_submitted_anew(dead, diagnosis):
    """Nor does it say that it could have been."""
    verdict = decide(dead(), diagnosis(action=Action.STOP), AUTO)
    assert (verdict.plan.restart, verdict.outcome) == (Restart.NONE, Outcome.STOPPED)
    assert NOT_ANEW not in verdict.plan.reason


def test_where_it_cannot_be_submitted_the_plan_says_why(dead, gone, diagnosis):
    """The outcome is as without; a person is told what stands in the way."""
    told = {"no_fresh_job": "Relight may not submit as users here"}
    for where, outcome in ((dead(**told), Outcome.STOPPED), (gone(**told), Outcome.EXPIRED)):
        verdict = decide(where, diagnosis(), AUTO)
        assert (verdict.plan.acts, verdict.outcome) == (False, outcome)
        assert f"{NOT_ANEW}Relight may not submit as users here" in verdict.plan.reason
    # An incident that cannot carry it out is as it was.
    assert decide(dead(no_fresh_job=None), diagnosis(), AUTO).plan.reason == "the job was submitted with --no-requeue"


@pytest.fixture
def of_comment(dead, attempt):
    """The situation of such a job with that comment."""
    return lambda comment: dead(attempt=attempt(comment=comment, requeue=False))


@pytest.mark.parametrize(
    ("policy", "comment", "mode"),
    [
        ({}, "", Mode.APPROVE),
        ({"resubmit": "auto"}, "", Mode.AUTO),
        ({"resubmit": "monitor"}, "", Mode.MONITOR),
        ({"resubmit": "off"}, "", None),
        ({"resubmit": "auto", "modes": {"restart": "approve"}}, "", Mode.APPROVE),
        ({"resubmit": "auto"}, '{"relight": {"resubmit": "approve"}}', Mode.APPROVE),
        ({"resubmit": "auto"}, '{"relight": {"resubmit": "off"}}', None),
        ({"resubmit": "auto"}, '{"relight": {"mode": "monitor"}}', Mode.MONITOR),
        ({"resubmit": "monitor"}, '{"relight": {"resubmit": "auto"}}', Mode.MONITOR),
    ],
)
def test_how_far_a_fresh_job_may_go(of_comment, diagnosis, policy, comment, mode):
    """The least of the policy's word on restarts, its word on fresh jobs, and the job's own; by default a person's."""
    verdict = decide(of_comment(comment), diagnosis(), Policy(mode=Mode.AUTO, **policy))
    if mode is None:
        assert (verdict.plan.restart, verdict.outcome) == (Restart.NONE, Outcome.STOPPED)
    else:
        assert (verdict.plan.restart, verdict.mode) == (Restart.SUBMIT, mode)


def test_what_a_comment_says_that_is_no_permit_is_told():
    """And ignored."""
    asked = wishes('{"relight": {"resubmit": "always"}}')
    assert asked.resubmit is None
    assert "relight.resubmit" in asked.remarks[0]


def test_a_plan_for_another_script_needs_another_approval(dead, diagnosis):
    """What is submitted is part of the digest."""
    plan = decide(dead(), diagnosis(), AUTO).plan
    digests = {plan.model_copy(update={"submission": sent}).digest for sent in ("", "a", "b")}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("fields", "facts", "why"),
    [
        ({}, FACTS, ""),
        ({"het_job_id": 7}, FACTS, "heterogeneous"),
        ({"array_job_id": 5, "array_task_id": 2}, FACTS, "array"),
        ({"script": None}, FACTS, "no batch script"),
        ({"tres": ""}, FACTS, "asked for is not on record"),
        ({}, SlurmFacts(version="24.11.5"), "AccountingStoreFlags=job_env"),
    ],
)
def test_what_is_not_on_record_is_not_guessed(attempt, fields, facts, why):
    """Another environment, or other resources, would make it another job."""
    script = fields.pop("script", "#!/bin/sh\n")
    kept = attempt(**{"tres": TRES, **fields}).model_copy(update={"script": script})
    said = why_not(kept, facts, may_submit=True)
    assert (why in said) if why else not said
    assert "slurm.submit_wrapper" in why_not(kept, facts, may_submit=False)


def test_what_is_submitted(attempt):
    """The record's own options, the user's exclusions less ours that are taken back, the comment with the mark."""
    given = {
        "command": "/home/alice/train.sh --seed 3",
        "excluded_nodes": ("n8", "n9"),
        "comment": '{"APS": {"auto_resume_mode": "requeue"}}',
        "stdout": "/home/alice/out-7.log",
        "stderr": "/home/alice/50%/e7.log",
        "time_limit": timedelta(hours=4),
        "requeue": False,
        "tres": TRES,
    }
    kept = attempt(**given).model_copy(update={"script": "#!/bin/sh\n"})
    sent = submission(kept, MARK, without=("n9",))
    assert (sent.user, sent.script, sent.name, sent.arguments) == ("alice", "#!/bin/sh\n", "train.sh", ("--seed", "3"))
    options = dict(option.removeprefix("--").partition("=")[::2] for option in sent.options)
    assert json.loads(options.pop("comment")) == {
        "APS": {"auto_resume_mode": "requeue"},
        "relight": {"fresh": MARK},
    }
    assert options == {
        "job-name": "train",
        "chdir": "/home/alice",
        "partition": "gpu",
        "nodes": "2",
        "time": "240",
        "output": "/home/alice/out-%j.log",
        "error": "/home/alice/50%%/e%j.log",
        "exclude": "n8",
        "no-requeue": "",
    }
    assert digest_of(sent) != digest_of(submission(kept, MARK))


@pytest.mark.parametrize(
    ("stdout", "script", "option"),
    [
        ("/home/alice/slurm-7.out", "#!/bin/sh\n", None),
        ("/runs/7/out-7.log", "#!/bin/sh\n", "/runs/7/out-%j.log"),
        ("/home/alice/out-7", "#!/bin/sh\n#SBATCH -N2 --output=out-%j\n", None),
        ("/home/alice/out-7", "#!/bin/sh\n#SBATCH -o out-%j\n", None),
        ("/home/alice/all.log", "#!/bin/sh\necho --output\n", "/home/alice/all.log"),
    ],
)
def test_where_it_writes(attempt, stdout, script, option):
    """As the script says itself; else what was given by hand, with the new number where the old one stood."""
    kept = attempt(tres=TRES, stdout=stdout, stderr=stdout).model_copy(update={"script": script})
    options = dict(each.removeprefix("--").partition("=")[::2] for each in submission(kept, MARK).options)
    assert options.get("output") == option
    assert "error" not in options


def test_another_output_is_another_job(record):
    """Its number may stand in names of files and folders; a folder that happens to hold the same digits may not."""
    old = record(tres=TRES, stdout="/runs-7/7/out-7")
    assert differs(old, record(job_id=31, tres=TRES, stdout="/runs-7/7/out-31")) == ()
    assert differs(old, record(job_id=31, tres=TRES, stdout="/runs-31/31/out-31")) == ()
    assert differs(old, record(job_id=31, tres=TRES, stdout="/home/alice/slurm-31.out"))


@pytest.mark.parametrize(
    ("comment", "wanted"),
    [
        ("", MARK),
        ("my run", f"my run {MARK}"),
        ("my run relight-fresh:0123456789ab", f"my run {MARK}"),
        ('{"relight": {"mode": "auto", "fresh": "relight-fresh:0123456789ab"}}', None),
        ('{"relight": "odd"}', f'{{"relight": "odd"}} {MARK}'),
    ],
)
def test_the_mark_stands_in_the_comment(comment, wanted):
    """One mark, JSON stays JSON with all else that it says, and what it wishes stays."""
    found = marked(comment, MARK)
    assert found.count("relight-fresh:") == 1
    if wanted is None:
        assert json.loads(found) == {"relight": {"mode": "auto", "fresh": MARK}}
        assert wishes(found) == wishes('{"relight": {"mode": "auto"}}')
    else:
        assert found == wanted


def test_only_the_owners_job_with_the_mark_is_ours(record):
    """What lives first: a second one that was submitted for the same reason is told by it."""
    ours = marked("", MARK)
    jobs = (
        record(job_id=8, comment=ours, user="mallory"),
        record(job_id=9, comment="relight-fresh:0123456789ab"),
        record(job_id=10, comment=ours, state=JobState.CANCELLED),
        record(job_id=12, comment=ours, state=JobState.PENDING),
        record(job_id=11, comment=ours, state=JobState.PENDING),
    )
    assert [job.job_id for job in with_mark(jobs, "alice", MARK)] == [11, 12, 10]


def test_a_job_that_would_not_be_the_same_is_told_apart(record):
    """By all that an option given by hand could have changed and the record shows."""
    old, new = record(tres=TRES, time_limit=timedelta(hours=4)), record(job_id=8, tres=TRES)
    assert differs(old, old.model_copy(update={"job_id": 8, "comment": MARK, "state": JobState.PENDING})) == ()
    assert differs(old, new) == ("time_limit (None instead of 4:00:00)",)


def test_what_stands_for_the_fresh_job_is_followed_by_it(attempt, record, now):
    """Its first execution counts as the next one, though Slurm tells whole seconds."""
    fresh = FreshJob(job_id=9, submit_time=now + timedelta(hours=1), mark=MARK, command="/tmp/x/train.sh")
    before = stand_in(attempt(restarts=3), fresh)
    assert before.key.job_id == 9
    assert before.key.submit_time < fresh.submit_time
    assert (before.record.restarts, before.lineage) == (0, attempt().lineage)


def test_a_link_holds_for_the_marked_job_alone(record):
    """Job ids come back."""
    link = Link(lineage="j1", user="alice", mark=MARK, before=(7,))
    assert link.holds(record(comment=marked("", MARK)))
    assert not link.holds(record())
    assert not link.holds(record(comment=marked("", MARK), user="mallory"))
