"""Whether enough nodes are left for the next attempt, and how long it may wait: told, and never decided by."""

from datetime import timedelta

import pytest

from relight.domain.capacity import fitting, told
from relight.domain.slurm import JobState, NodeFlag, NodeState

BUSY = NodeState.ALLOCATED


@pytest.mark.parametrize(
    ("wanted", "left", "needed", "kept"),
    [
        ((), ("n1", "n2"), 2, ()),
        (("n1",), ("n1", "n2", "n3"), 2, ("n1",)),
        (("n1", "n2"), ("n1", "n2", "n3"), 2, ("n1",)),
        (("n1", "n2"), ("n1", "n2"), 2, ()),
        (("n1",), ("n1",), 2, ("n1",)),
        (("n9",), ("n1", "n2"), 2, ("n9",)),
    ],
)
def test_as_many_are_kept_out_as_leave_enough(wanted, left, needed, kept):
    """The best proven stay; where too few are left anyway, giving in would not help."""
    assert fitting(wanted, left, needed) == kept


def test_enough_free_nodes_need_no_word(record, node):
    """Also nodes on which nothing but the job itself runs."""
    job = record(state=JobState.FAILED)
    assert told(job, [node("n1", BUSY), node("n2", BUSY), node("n3")], [job], (), job.submit_time) == ""


def test_nodes_that_are_out_of_service_are_waited_for(record, node):
    """Drained, down, excluded, or of another partition: none of them counts."""
    nodes = [
        node("n1", partitions=("gpu",)),
        node("n2", partitions=("gpu",), flags={NodeFlag.DRAIN}),
        node("n3", NodeState.DOWN, partitions=("gpu",)),
        node("n4", partitions=("cpu",)),
        node("n5", partitions=("gpu",)),
    ]
    job = record(state=JobState.FAILED)
    assert "1 of the 2 that it needs are in service" in told(job, nodes, [], ("n5",), job.submit_time)


def test_running_jobs_tell_until_when_it_may_wait(record, node, now):
    """Each node is free once all on it have ended, by their time limits; enough of them, by the last that is needed."""
    job = record(state=JobState.FAILED, nodes=())
    nodes = [node("n1", BUSY), node("n2", BUSY), node("n3", BUSY)]

    def runs(job_id, hours, *on):
        limit = timedelta(hours=hours) if hours else None
        return record(job_id=job_id, nodes=on, start_time=now, time_limit=limit)

    jobs = [runs(20, 1, "n1"), runs(21, 3, "n1", "n2"), runs(22, 9, "n3")]
    assert told(job, nodes, jobs, (), now).endswith("running jobs, by their time limits until 2026-11-30 12:00 UTC")
    endless = [runs(20, 1, "n1"), runs(21, None, "n2", "n3")]
    assert "some without a time limit" in told(job, nodes, endless, (), now)
