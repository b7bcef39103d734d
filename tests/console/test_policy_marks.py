"""The policy in force as `relight status`, `why`, `show` and `doctor` tell it."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.console.doctor_checks import Health
from relight.console.doctor_policy import judge_policy
from relight.domain.detectors import WorkerReport, WorkerReports, sights_cursor
from relight.domain.plan import Mode

from .conftest import ago, verdict_for, waiting

AT = datetime(2026, 11, 30, 9, tzinfo=UTC)


def report(worker="ctl/1", *, at=AT, **fields):
    given = {"worker": worker, "version": "0.1.0", "mode": "auto", "started_at": at, "written_at": at}
    return WorkerReport(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"policy": "aaa"}, Health.OK, "aaa, in force"),
        ({"policy": "bbb"}, Health.WARN, "aaa here, bbb in force at ctl/1"),
        ({"policy": "aaa", "policy_problem": "x.yaml:3: no"}, Health.FAIL, "refuses its settings file: x.yaml:3: no"),
        ({}, Health.OK, "no worker tells"),
        ({"policy": "bbb", "at": AT - timedelta(hours=1)}, Health.OK, "no worker tells"),
    ],
)
def test_doctor_compares_the_policy_with_the_workers(fields, status, said):
    """Those that work: one may have another file, or refuse a newer one."""
    found = judge_policy("aaa", WorkerReports(workers=(report(**fields),)), AT)
    assert (found.status, said in found.found) == (status, True)


def written(night, *reports):
    body = WorkerReports(workers=reports).model_dump(mode="json")
    night.commit(cursors={sights_cursor("main"): body})


def test_status_shows_the_version(night, relight):
    """Of the workers, not of this shell's settings."""
    written(night, report(at=datetime.now(UTC), policy="899cdad3bea1"))
    assert "Policy 899cdad3bea1" in " ".join(relight("status").output.split())


def test_status_marks_a_policy_that_is_refused(night, relight):
    """Something to be put right: it ends with 1."""
    now = datetime.now(UTC)
    written(night, report(at=now, policy="aaa", policy_problem="/etc/relight.yaml:3: policy.mode: no such mode"))
    found = relight("status")
    assert found.exit_code == 1
    assert "the settings file is refused: /etc/relight.yaml:3: policy.mode: no such mode" in found.output
    assert "the newest settings are refused: relight config check" in found.output


def test_status_tells_how_things_stand_with_a_file_that_is_refused(night, relight, config):
    """Its policy alone is left out; what else is wrong is told as ever."""
    written(night, report(at=datetime.now(UTC), policy="aaa"))
    good = config.read_text()
    config.write_text(good + "\npolicy: {mode: full}\n")
    found = relight("status")
    assert found.exit_code == 1
    assert "ctl/1" in found.output
    assert "policy.mode: must be" in found.output
    config.write_text(good + "\npolcy: {}\n")
    assert "polcy: no such key" in relight("status").output


def test_status_marks_workers_that_decide_differently(night, relight):
    """Which of them decides is a matter of chance."""
    now = datetime.now(UTC)
    written(night, report(at=now, policy="aaa"), report("ctl/2", at=now, policy="bbb"))
    assert "aaa, bbb; workers differ" in relight("status").output


@pytest.fixture
def decided(night):
    """A verdict of a known policy, one of whose rules fits the job, which has a comment."""
    attempt = night.attempt(4800, ago(hours=2), comment='{"APS": {"max_requeue_times": 1, "auto_resume_mode": "x"}}')
    verdict = verdict_for(attempt, Mode.APPROVE)
    verdict = verdict.model_copy(update={"policy_version": "899cdad3bea1", "policy_rules": ("partition gpu",)})
    incident = night.incident("i4800", attempt, ago(minutes=5), plan=verdict.plan)
    night.opened(incident, attempt, verdict)
    return incident


@pytest.mark.parametrize("words", [("show", "i4800"), ("why", "4800")])
def test_the_policy_that_decided_is_told(decided, relight, words):
    """Its version, and the rules that fit the job."""
    lines = relight(*words).output.splitlines()
    (line,) = [each for each in lines if each.strip().startswith("Policy")]
    assert line.split() == ["Policy", "899cdad3bea1", "rule", "for", "partition", "gpu"]


def test_why_tells_what_the_jobs_comment_asks(decided, relight):
    """And what of it is ignored."""
    asked = 'Its comment asks: at most 1 requeue; the job\'s comment: APS.auto_resume_mode "x" is none of requeue'
    assert asked in relight("why", "4800").output
    assert "at most 1 requeue" in relight("why", "4800", "-o", "json").output


def test_a_verdict_of_version_0_1_names_no_policy(night, relight):
    """There was none."""
    waiting(night)
    assert "Policy" not in relight("show", "i3fa9c1d2e4").output
