"""Small trainings in shell: many of them run beside each other, and each does as its folder tells it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from relight.domain.incidents import Incident, Outcome

from .conftest import Lab

ASKS = '{"relight": {"mode": "approve"}}'
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name} --nodes=1 --gres=gpu:1 --requeue --chdir={run} --output={output}
{before}
n=$(cat step 2>/dev/null || echo 0)
while true; do
  n=$((n + 1))
  echo $n > step
  echo "step $n/9999 | loss 1.0"
  [ -e finish ] && exit 0
  [ -e fail ] && rm fail && break
  sleep 0.3
done
{after}
"""


class Small(NamedTuple):
    """A training of one process, whose checkpoint is the number of its step."""

    lab: Lab
    job: int
    run: Path

    def train(self, steps: int = 3) -> None:
        """Wait until so many steps of its first attempt have been seen."""
        self.lab.until_step(self.job, steps)

    def fail(self) -> None:
        """Let it end badly, once."""
        (self.run / "fail").touch()

    def finish(self) -> None:
        """Let it end well."""
        (self.run / "finish").touch()

    def field(self, name: str) -> str:
        """A field of `scontrol show job`."""
        return self.lab.field(self.job, name) or ""

    def recovered(self) -> Incident:
        """Its incident, closed as recovered after one restart."""
        incident = self.lab.outcome(self.job)
        assert incident.outcome is Outcome.RECOVERED, (incident.outcome_reason, self.lab.story(self.job))
        assert self.lab.restarts(self.job) == 1
        return incident

    def approve(self) -> Incident:
        """Let the plan be carried out that waits for a person."""
        incident = self.lab.waiting(self.job)
        assert incident.plan
        self.lab.signal(incident, "approve", digest=incident.plan.digest[:12], reason="go")
        return incident

    def until_told(self, text: str) -> None:
        """Wait until its incident's story says so, while it goes on."""
        incident = self.lab.view.incidents(self.job)[0]

        def told() -> bool:
            status = self.lab.workflow(incident, lambda handle: handle.query("status"))
            return any(step["name"] == "waiting" and text in step["text"] for step in status["steps"])

        self.lab.until(told, f"the incident of job {self.job} to tell: {text}", about=self.job)
        assert self.lab.view.incidents(self.job)[0].open


def small(
    lab: Lab, *options: str, name: str = "small", run: Path | None = None, before: str = "", after: str = "exit 9"
) -> Small:
    """Submit one; `options` are sbatch's, `before` and `after` shell before its first step and where it fails."""
    run = run or lab.run_folder(name)
    script = SCRIPT.format(name=name, run=run, output=f"{run}/out-%j", before=before, after=after)
    return Small(lab, lab.submit(script, *options), run)


@contextmanager
def standing_still(lab: Lab) -> Iterator[None]:
    """The worker does nothing meanwhile."""
    worker = lab.stack.worker()
    assert worker
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


def start_now(job: Small) -> None:
    """Let a requeued job begin, as its owner may: not in the second of the requeue, in which it can FAIL (seen)."""
    lab = job.lab
    lab.until_state(job.job, "PENDING")
    since = datetime.fromisoformat(job.field("SubmitTime")).astimezone()
    lab.until(lambda: datetime.now(UTC) - since > timedelta(seconds=2), "two seconds to pass")
    lab.by_owner("scontrol", "update", f"JobId={job.job}", "StartTime=now")
