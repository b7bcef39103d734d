"""The progress file that a job's comment names: below its working directory, or none."""

import pytest

from relight.domain.plan import Mode
from relight.domain.wishes import job_mode, progress_file


def wish(path):
    return f'{{"relight": {{"progress": "{path}"}}, "other": 1}}'


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("progress.jsonl", "/home/alice/progress.jsonl"),
        ("a/../b/p", "/home/alice/b/p"),
        ("/home/alice/p", "/home/alice/p"),
        ("../bob/p", None),
        ("/etc/shadow", None),
        ("/home/alice2/p", None),
        (".", None),
        ("", None),
    ],
)
def test_where_it_may_be(record, path, file):
    """Our account may be able to read more than the job's owner may."""
    assert progress_file(record(comment=wish(path))) == file


@pytest.mark.parametrize(
    "comment", ["", "hello", '{"relight": 3}', '{"relight": {"progress": 3}}', '"relight"', '{"relight": {}}']
)
def test_without_one_there_is_none(record, comment):
    """Whatever else the comment says."""
    assert progress_file(record(comment=comment)) is None


def test_without_a_working_directory_there_is_none(record):
    """A path is not guessed."""
    assert progress_file(record(comment=wish("p"), work_dir="")) is None


def test_to_name_a_file_is_not_to_name_a_mode():
    """Nothing is said about a mode that was not asked for."""
    assert job_mode(Mode.AUTO, wish("p")) == (Mode.AUTO, "cluster policy says auto")
    both = '{"relight": {"progress": "p", "mode": "monitor"}}'
    assert job_mode(Mode.AUTO, both)[0] is Mode.MONITOR
