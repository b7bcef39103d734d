"""What a failure makes of the jobs that wait for success, and what can be done about it."""

import pytest

from relight.domain.dependants import dependants, terms
from relight.domain.slurm import JobFlag, JobState
from relight.domain.waiting import code, why

NEVER = "DependencyNeverSatisfied"


@pytest.fixture
def child(record):
    """Job 8 of the same owner, pending."""

    def make(dependency, **fields):
        given = {"job_id": 8, "name": "eval", "state": JobState.PENDING, "reason": NEVER, "dependency": dependency}
        return record(**{**given, **fields})

    return make


@pytest.mark.parametrize(
    ("dependency", "written"),
    [
        ("afterok:7(failed)", "afterok:7"),
        ("afterok:7(failed),afterany:9(unfulfilled)", "afterok:7,afterany:9"),
        ("afterok:7:6(failed)", None),
        ("after:9+10(unfulfilled),afterok:7(failed)", "after:9+10,afterok:7"),
        ("afterok:7(failed),singleton(unfulfilled)", "afterok:7,singleton"),
        ("afterok:7(failed)?afterok:9(failed)", None),
        ("afterok:7(failed)?afterany:9(unfulfilled)", None),
        ("afterok:7(failed)?afterok:7(failed)", "afterok:7?afterok:7"),
        ("afterok:7(failed),afterok:9(failed)", None),
        ("afterok:7(failed),something else", None),
        ("afterok:7(unfulfilled)", None),
        ("afterok:77(failed)", None),
        ("afternotok:7(failed)", None),
        ("", None),
    ],
)
def test_how_a_dependency_is_written_anew(attempt, child, dependency, written):
    """The same conditions without Slurm's judgement; none where it is not this job's failure alone that counts."""
    found = [each.dependency for each in dependants(attempt(), [child(dependency)]).waiting]
    assert found == ([written] if written else [])


@pytest.mark.parametrize(
    ("dependency", "fields", "said"),
    [
        ("afterok:7(failed)", {"user": "bob"}, "job 8 will not start: it is another user's"),
        ("afterok:7(failed),afterok:9(failed)", {}, "job 8 will not start: it also waits for afterok:9, which failed"),
        ("afterok:7(failed)", {"state": JobState.CANCELLED}, "job 8 was cancelled by Slurm"),
        ("afterok:7(failed),something else", {}, "job 8 will not start: its dependency cannot be read"),
    ],
)
def test_what_is_beyond_help_is_said(attempt, child, dependency, fields, said):
    """A person may do something about it."""
    waiting, beyond = dependants(attempt(), [child(dependency, **fields)])
    assert waiting == ()
    assert [text.startswith(said) for text in beyond] == [True]


@pytest.mark.parametrize(
    "fields", [{"state": JobState.RUNNING}, {"state": JobState.CANCELLED, "reason": "None"}, {"dependency": ""}]
)
def test_others_are_nothing_to_it(attempt, child, fields):
    """Those that run, that somebody cancelled, that wait for nothing."""
    assert dependants(attempt(), [child("afterok:7(failed)").model_copy(update=fields)]) == ((), ())


def test_children_of_one_task_of_an_array(attempt, child):
    """By the task, and task by task, they can wait again; for the whole array Slurm keeps the worst exit code."""
    task = attempt(array_job_id=5, array_task_id=1)
    jobs = [child("afterok:5_1(failed)", job_id=8), child("aftercorr:5_*(failed)", job_id=9)]
    whole = child("afterok:5_*(failed)", job_id=10)
    waiting, beyond = dependants(task, [*jobs, whole, child("afterok:5_2(failed)", job_id=11)])
    assert [(each.job.job_id, each.dependency) for each in waiting] == [(8, "afterok:5_1"), (9, "aftercorr:5_*")]
    assert [text for text in beyond if "`scontrol update JobId=10 Dependency=afterok:5_1`" in text] == list(beyond)


def test_several_jobs_behind_one_word():
    """As it is submitted; Slurm itself shows each with a word of its own."""
    assert [str(each) for each in terms("afterok:6:7_2(failed):8_*,singleton")] == [
        "afterok:6",
        "afterok:7_2",
        "afterok:8_*",
        "singleton",
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"reason": "QOSMaxJobsPerUserLimit"},
            "waits: a limit of its account or QOS is reached (QOSMaxJobsPerUserLimit)",
        ),
        ({"reason": "AssocGrpGRES"}, "waits: a limit of its account or QOS is reached (AssocGrpGRES)"),
        ({"reason": "Reservation"}, "waits: its reservation has ended, or has not begun (Reservation)"),
        ({"reason": "Resources"}, "waits: too few nodes are free (Resources)"),
        ({"reason": "SomethingNew"}, "waits: SomethingNew"),
        ({"reason": "JobHeldUser"}, "waits: it is held (JobHeldUser), and whoever held it releases it"),
        (
            {"flags": frozenset({JobFlag.RESV_DEL_HOLD}), "reason_text": "Reservation r was deleted"},
            "waits: its reservation has ended, and Slurm holds it (Reservation r was deleted)",
        ),
        ({"reason": "BeginTime"}, ""),
        ({"reason": "None"}, ""),
        ({"reason": "Resources", "flags": frozenset({JobFlag.COMPLETING})}, ""),
        ({"reason": "Resources", "state": JobState.RUNNING}, ""),
    ],
)
def test_why_a_job_waits(record, fields, said):
    """In words, with Slurm's own; nothing of one that is only about to begin."""
    job = record(**{"state": JobState.PENDING, **fields})
    assert why(job) == said
    assert bool(code(job)) is bool(said)
