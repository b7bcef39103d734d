"""Jobs that never ran, as printed lines: the follower's own way from a line to an alarm, over days of training."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.activities.follow_lines import Lines
from relight.activities.follow_state import Following
from relight.domain.attempts import Attempt, Progress, attempt_key
from relight.domain.progress import HangPolicy
from relight.domain.rhythm import Phase
from relight.domain.slurm import JobRecord, JobState
from relight.lab.replay_jobs import Fault, FaultKind, Seen, follow, healthy_job

START = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
POLICY = HangPolicy()
PHASE_LINES = {
    (Phase.CHECKPOINT, True): "saving checkpoint at iteration {step} to /ckpt in torch_dist format",
    (Phase.CHECKPOINT, False): "  successfully saved checkpoint from iteration {step} to /ckpt [ t 1/1, p 1/1 ]",
    (Phase.EVALUATION, True): "Starting evaluation",
    (Phase.EVALUATION, False): "evaluation took 12.5 s",
}


def text(sign, last):
    """A line as a trainer would print it."""
    if sign.phase:
        return PHASE_LINES[sign.phase, sign.begins].format(step=last)
    took = f" | step_time {sign.seconds:.3f} s" if sign.seconds is not None else ""
    return f"step {sign.step}/{sign.total or 10**9} | loss {sign.loss:.4f}{took}"


class Replayed:
    """A job that is followed without files, ledger or Slurm."""

    def __init__(self, lines: Lines) -> None:
        record = JobRecord(job_id=7, name="train", user="alice", state=JobState.RUNNING, submit_time=START)
        attempt = Attempt(key=attempt_key("test", record), lineage="j", record=record, seen_at=START)
        self.lines, self.last, self.alarms = lines, 0, []
        self.each = Following(attempt=attempt, progress=Progress(), stepping=False, arrival=START)

    def take(self, seen: Seen) -> None:
        now = START + timedelta(seconds=seen.at)
        self.look(now)
        printed = []
        for sign in seen.signs:
            self.last = sign.step if sign.step is not None else self.last
            printed.append(text(sign, self.last))
        said = self.lines.read(printed, "train.out", now)
        assert len(said.marks) == len(printed)
        assert said.fatal is None
        self.each.take("train.out", said, now, POLICY)
        self.alarms += [(str(found.kind), now - START) for found in self.each.found]
        self.each.found.clear()

    def look(self, now) -> None:
        if self.each.stepping and now - self.each.arrival >= self.each.limit(POLICY):
            self.alarms.append(("hang", now - START))


def replay(lines, job, seconds, fault=None):
    replayed = Replayed(lines)
    for seen in follow(job, seconds, fault):
        replayed.take(seen)
    return replayed


@pytest.fixture(scope="module")
def lines():
    return Lines()


@pytest.mark.slow
def test_healthy_jobs_raise_no_alarm(lines):
    """Forty jobs for two hours each, with their checkpoints, buffers, stalls and late file systems."""
    assert [(seed, a) for seed in range(40) for a in replay(lines, healthy_job(seed), 7200).alarms] == []


def test_a_slow_down_of_a_job_is_found_in_its_lines(lines):
    """As in the model's own replay, which knows no lines."""
    job = next(j for j in map(healthy_job, range(100)) if j.prints_seconds and j.stride == 1 and not j.counts_pauses)
    replayed = replay(lines, job, 300 * job.step_seconds + 3600, Fault(FaultKind.SLOW, 200, 1.5))
    assert [kind for kind, _ in replayed.alarms] == ["straggler"]
    assert replayed.each.learnt.pace.slowdown
    assert abs(replayed.each.learnt.pace.slowdown.since_step - 200) < 5
