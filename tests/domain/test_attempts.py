"""Attempts have one key each, and belong to a lineage that a reused job id does not continue."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import AttemptKey, NotRunningError, attempt_key, lineage_id, progress_cursor, same_lineage
from relight.domain.slurm import JobFlag, JobState

KEYS = st.builds(
    AttemptKey,
    cluster=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    job_id=st.integers(1, 1 << 30),
    submit_time=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
        lambda at: at.replace(microsecond=0)
    ),
)


@given(KEYS)
def test_a_key_survives_its_text(key):
    """The text form is read back to the same key, and keys are equal when their texts are."""
    assert AttemptKey.parse(str(key)) == key
    assert key.workflow_id == f"recover/{key}"
    assert progress_cursor(key) == f"progress/{key}"


def test_a_key_is_in_utc(now):
    """The same moment in another zone makes the same text."""
    there = now.astimezone(timezone(timedelta(hours=9)))
    assert str(AttemptKey(cluster="main", job_id=7, submit_time=there)) == "main/7/20261130T090000Z"


@pytest.mark.parametrize("text", ["", "main", "main/7", "main/x/20261130T090000Z", "main/7/yesterday"])
def test_other_text_is_no_key(text):
    """Text that is not a key is refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - what the docstring promises
        AttemptKey.parse(text)


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.RUNNING])
def test_no_key_is_made_of_a_record_that_does_not_run(record, state):
    """Only a RUNNING record tells the SubmitTime that names an attempt."""
    with pytest.raises(NotRunningError, match="job 7 is"):
        attempt_key("main", record(state=state))


@pytest.mark.parametrize("flag", [JobFlag.COMPLETING, JobFlag.CONFIGURING, JobFlag.REQUEUED])
def test_no_key_is_made_while_completing_or_being_set_up(record, flag):
    """While COMPLETING a requeued record shows the old SubmitTime."""
    with pytest.raises(NotRunningError):
        attempt_key("main", record(flags={flag}))


def test_the_key_of_a_running_record(record, now):
    """Cluster, job id and SubmitTime; the restart count is no part of it."""
    expected = AttemptKey(cluster="main", job_id=7, submit_time=now)
    assert attempt_key("main", record()) == attempt_key("main", record(restarts=3)) == expected


def test_a_requeue_goes_on_with_the_lineage(attempt, record, now):
    """The same job with more restarts and a later SubmitTime is the same job, also after a look that missed some."""
    old = attempt(restarts=1)
    later = now + timedelta(minutes=5)
    assert same_lineage(old, record(restarts=2, submit_time=later))
    assert same_lineage(old, record(restarts=5, submit_time=later))


@pytest.mark.parametrize(
    "changed",
    [{"user": "bob"}, {"name": "eval"}, {"command": "/home/alice/eval.sh"}, {"restarts": 0}, {"earlier": True}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_reused_id_is_another_job(attempt, record, now, changed):
    """Another owner, name or script, fewer restarts, or an earlier SubmitTime: not the same job."""
    fields = dict(changed)
    at = now - timedelta(days=1) if fields.pop("earlier", False) else now + timedelta(days=1)
    assert not same_lineage(attempt(restarts=1), record(**{"restarts": 1, "submit_time": at, **fields}))


def test_lineage_ids_tell_reused_ids_apart(record, now):
    """The id is the same each time it is made, and another one for another submission, owner or cluster."""
    first = lineage_id("main", record())
    assert first == lineage_id("main", record())
    others = {
        lineage_id("main", record(submit_time=now + timedelta(days=400))),
        lineage_id("main", record(user="bob")),
        lineage_id("east", record()),
        lineage_id("main", record(job_id=8)),
    }
    assert len(others | {first}) == 5


def test_outputs_are_named_once(attempt):
    """Standard error that goes to the same file is not another output; an empty path is none."""
    assert attempt(stdout="/a.out", stderr="/a.out").outputs == ("/a.out",)
    assert attempt(stdout="/a.out", stderr="/a.err").outputs == ("/a.out", "/a.err")
    assert attempt(stdout="", stderr="/a.err").outputs == ("/a.err",)
