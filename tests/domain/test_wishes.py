"""What a job's comment asks: its mode, its progress file, Mission Control's keys; and what cannot be read is said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.plan import Mode
from relight.domain.wishes import Wishes, progress_file, wishes


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
def test_where_the_progress_file_may_be(record, path, file):
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
    assert wishes(wish("p")) == Wishes()
    assert wishes('{"relight": {"progress": "p", "mode": "monitor"}}') == Wishes(mode=Mode.MONITOR)


@pytest.mark.parametrize("asked", list(Mode))
def test_a_comment_names_a_mode(asked):
    """Beside what belongs to others."""
    comment = json.dumps({"other": {"mode": "auto"}, "APS": {"x": 1}, "relight": {"mode": asked}})
    assert wishes(comment) == Wishes(mode=asked)


@pytest.mark.parametrize(
    ("section", "asks"),
    [
        ({"auto_resume_mode": "requeue", "max_requeue_times": 1}, Wishes(most_requeues=1)),
        ({"auto_resume_mode": "singleton_dependency"}, Wishes(chained=True)),
        ({"max_requeue_times": 0}, Wishes(most_requeues=0)),
        ({"max_requeue_times": 10**9}, Wishes(most_requeues=10**9)),
        ({}, Wishes()),
    ],
)
def test_mission_controls_comment_is_understood(section, asks):
    """The two values of its documentation; the envelope alone asks nothing."""
    assert wishes(json.dumps({"APS": section, "someone": "else"})) == asks


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ('{"relight": {"mode": "off"}}', '"off" is none of monitor, approve, auto'),
        ('{"relight": {"mode": null}}', "null is none of monitor, approve, auto"),
        ('{"relight": {"mode": ["auto"]}}', "is none of monitor, approve, auto"),
        ('{"relight": {"mod": "auto"}}', "relight.mod is no key of ours"),
        ('{"relight": "monitor"}', "not as an object"),
        ('["relight"]', "not as an object"),
        ('{"relight"', "is not JSON"),
        ('{"APS": {"auto_resume_mode": "none"}}', '"none" is none of requeue, singleton_dependency'),
        ('{"APS": {"auto_resume_mode": ["requeue"]}}', "is none of requeue, singleton_dependency"),
        ('{"APS": {"max_requeue_times": -1}}', "-1 is no number from 0 on"),
        ('{"APS": {"max_requeue_times": "3"}}', '"3" is no number from 0 on'),
        ('{"APS": {"max_requeue_times": true}}', "true is no number from 0 on"),
        ('{"APS": {"max_requeue_times": 1.5}}', "1.5 is no number from 0 on"),
        ('{"APS": 3}', "not as an object"),
    ],
)
def test_what_cannot_be_read_is_ignored_and_said(comment, said):
    """Nothing is asked then, and the remark is short."""
    asked = wishes(comment)
    remarks = asked.remarks
    assert asked._replace(remarks=()) == Wishes()
    (remark,) = remarks
    assert said in remark
    assert len(remark) < 160


@pytest.mark.parametrize(
    "comment",
    [
        '{"relight": ' + "[" * 100_000,
        '{"APS": {"max_requeue_times": ' + "9" * 60_000 + "}}",
        '{"APS": {"auto_resume_mode": "' + "x" * 60_000 + '"}}',
        '{"relight": {"' + "k" * 60_000 + '": 1}}',
    ],
)
def test_a_comment_of_60_kb_is_survived(comment):
    """A user's comment cannot bring the decision down, and what is said of it stays short."""
    asked = wishes(comment)
    assert asked[:3] == (None, False, None)
    assert all(len(remark) < 160 for remark in asked.remarks)


@given(st.text(max_size=200))
def test_other_peoples_comments_ask_nothing(text):
    """Unless they name us or Mission Control."""
    if '"relight"' not in text and '"APS"' not in text:
        assert wishes(text) == Wishes()
