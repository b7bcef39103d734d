"""Names of logs in a store: what stands for a job's outputs, and what is read out of that again."""

from datetime import UTC, datetime
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.log_labels import JOB_FIELDS, is_reference, named, reference, references
from relight.domain.slurm import JobRecord, JobState

START = datetime(2026, 11, 30, 9, tzinfo=UTC)


def job(**fields):
    given = {
        "job_id": 7,
        "name": "train",
        "user": "alice",
        "nodes": ("n1", "n2"),
        "batch_host": "n1",
        "submit_time": START,
        "start_time": START,
        "stdout": "/out/slurm-7.out",
    }
    return JobRecord(state=JobState.RUNNING, **{**given, **fields})


@given(st.dictionaries(st.sampled_from(JOB_FIELDS), st.text(min_size=1)), st.text(min_size=1), st.datetimes())
def test_a_reference_tells_what_was_put_in(fields, path, since):
    """Whatever users call their jobs and files, names that are no UTF-8 included."""
    since = since.replace(microsecond=0, year=2026, tzinfo=UTC)
    found = named(reference(since, **fields, path=f"/{path}"))
    folder, _, name = f"/{path}".rpartition("/")
    assert found.fields == {**fields, "path": f"/{path}", "name": name, "folder": folder or "/"}
    assert found.since == since


def test_a_reference_looks_like_a_path():
    """Its last part is the output's name; logs of a store lie in one folder, which no file system has."""
    name = reference(START, path="/out/slurm-7.out")
    assert is_reference(name)
    assert not is_reference("/out/slurm-7.out")
    assert PurePath(name).name == "slurm-7.out"
    assert PurePath(name).parts[:2] == PurePath(reference(job_id="8")).parts[:2]
    assert not PurePath(name).is_absolute()


@pytest.mark.parametrize(
    ("labels", "record", "told"),
    [
        ({"filename": "{path}"}, job(), [{"path": "/out/slurm-7.out"}]),
        ({"filename": "{path}"}, job(stderr="/out/7.err"), [{"path": "/out/slurm-7.out"}, {"path": "/out/7.err"}]),
        ({"filename": "{path}"}, job(stdout=""), []),
        ({"job": "{job_id}", "host": "{node}"}, job(stderr="/out/7.err"), [{"job_id": "7", "node": "n1"}]),
        ({"job": "{cluster}-{job_id}"}, job(stdout=""), [{"cluster": "main", "job_id": "7"}]),
        ({"job": "{job_id}", "file": "{name}"}, job(), [{"job_id": "7", "path": "/out/slurm-7.out"}]),
        ({"job": "{job_id}", "team": "{account}"}, job(), [{"job_id": "7"}]),
    ],
)
def test_an_attempts_logs(labels, record, told):
    """One for each output where the labels tell them apart, else one; what the record lacks is left out."""
    found = [named(name) for name in references(labels, "main", record)]
    assert [{k: v for k, v in each.fields.items() if k not in ("name", "folder")} for each in found] == told
    assert {each.since for each in found} <= {START}


def test_each_output_knows_the_other():
    """One of both may well be empty."""
    out, err = (named(name) for name in references({"f": "{path}"}, "main", job(stderr="/out/7.err")))
    assert out.beside == err.fields
    assert err.beside == out.fields
    assert named(*references({"f": "{path}"}, "main", job())).beside is None
