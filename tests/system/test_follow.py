"""What the follower finds in the outputs of real jobs: slower than before, training for nothing, dead but standing."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from relight.domain.evidence import Answer, Interruption
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode
from relight.domain.progress import HangPolicy, witness
from relight.lab import faults
from relight.lab.stack import Stack

from .conftest import Lab, NewStack

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Six nodes in auto."""
    with new_stack(nodes=6) as stack:
        yield stack


def left_running(lab: Lab, job: int, kind: Interruption) -> Incident:
    """The job's incident: told once, confirmed, and nothing changed."""
    incident = lab.outcome(job)
    assert (incident.kind, incident.outcome, incident.mode) == (kind, Outcome.OBSERVED, Mode.APPROVE), incident
    step = lab.view.step(job) or 0
    lab.until_step(job, step + 20)
    lab.untouched(job)
    assert lab.restarts(job) == 0
    assert lab.field(job, "JobState") == "RUNNING"
    assert [d.kind for d in lab.detections(job)] == [kind]
    return incident


def test_a_job_that_slows_down_is_told_and_left_running(lab: Lab) -> None:
    """One rank takes half as long again for a step; then it crashes, and that is handled as ever."""
    job = lab.train(step_time=timedelta(seconds=0.2))
    lab.until_step(job, 80)
    began = lab.view.step(job) or 0
    lab.inject(job, faults.slow(rank=1))
    incident = left_running(lab, job, Interruption.STRAGGLER)
    since = int(lab.detections(job)[0].id.rpartition("/")[2])
    assert began - 5 <= since <= began + 15
    assert "longer since step" in (incident.outcome_reason or "")
    lab.inject(job, faults.crash(rank=1))
    assert lab.outcome(job, number=2).outcome is Outcome.RECOVERED


def test_a_loss_that_is_not_a_number_is_told_and_left_running(lab: Lab) -> None:
    """The text says since which step."""
    job = lab.train()
    lab.until_step(job, 20)
    lab.inject(job, faults.nan(rank=0))
    incident = left_running(lab, job, Interruption.NUMERICS)
    assert "nan" in (incident.outcome_reason or "")
    assert incident.diagnosis
    assert incident.diagnosis.verdict.category == "NUMERICS"


PER_RANK = """
srun --ntasks=2 --kill-on-bad-exit=1 --output=%x-%j-%t.out bash -c '
say() { for n in $(seq $1 $2); do echo "step $n/9999 | loss 1.0 | step_time 0.25 s"; sleep 0.25; done; }
say 1 30
if [ $SLURM_PROCID = 1 ] && ! [ -e again ]; then
  touch again; echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"; exit 1
fi
say 31 9999'
"""


def test_each_rank_may_write_a_file_of_its_own(lab: Lab) -> None:
    """Its steps are followed, the file of the rank that failed names the cause, and all are kept before the requeue."""
    job = lab.submit_raw(PER_RANK, "--nodes=1", "--ntasks=2", "--job-name=ranks", "--output=out")
    incident = lab.outcome(job)
    assert incident.outcome is Outcome.RECOVERED, incident
    assert incident.diagnosis
    verdict = incident.diagnosis.verdict
    assert verdict.signature == "CUDA_ECC"
    assert incident.diagnosis.failed_step in {30, 31}, "the other rank goes on until it is ended"
    assert f"ranks-{job}-1.out" in {each.file for each in verdict.evidence}
    (row,) = lab.rows(job, RowKind.OUTPUTS_KEPT)
    names = {Path(path).name.rsplit(".", 1)[0] for path in row.body["kept"]}
    assert names == {"out", f"ranks-{job}-0.out", f"ranks-{job}-1.out"}


WEDGED = """
for n in {1..60}; do echo "step $n/9999 | loss 1.0 | step_time 0.25 s"; sleep 0.25; done
echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"
[ -e again ] && for n in {61..9999}; do echo "step $n/9999 | loss 1.0 | step_time 0.25 s"; sleep 0.25; done
touch again
sleep 3600
"""


def test_a_job_that_printed_its_death_and_stands_is_restarted(lab: Lab) -> None:
    """The line and the silence after it are two witnesses: mode auto acts, and waits less than for silence alone.

    It stands at a step after which no first checkpoint is to be expected, however late the lines become visible.
    """
    job = lab.submit_raw(WEDGED, "--nodes=1", "--output=out")
    lab.until(lambda: bool(lab.detections(job)), "a detection", 90, about=job)
    [hang] = lab.detections(job)
    assert hang.kind is Interruption.HANG
    told = re.search(r"\(limit (\d+) s\)", hang.evidence[0].text)
    assert told
    assert int(told[1]) < HangPolicy().floor.total_seconds()
    assert witness(hang) is Answer.YES
    assert lab.outcome(job).outcome is Outcome.RECOVERED
