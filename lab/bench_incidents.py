"""Many incidents at once: small jobs on a real cluster that all fail within seconds, and how long each is decided on.

Real Slurm, a real Temporal server, the controller worker that ships. The jobs are shells that print steps, one core
each; the nodes pretend to have more cores than this machine. The breaker, which is there to stop just this, is off.
"""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table

from relight.domain.incidents import Incident, Outcome
from relight.lab.machine import slurm_version
from relight.lab.processes import WaitTimeoutError, wait_until
from relight.lab.stack import Stack, StackSpec
from relight.lab.watching import LedgerView, ledger_of

CORES_OF_A_NODE = 16
PATIENCE_S, TELL_EVERY_S = 1500.0, 10.0
POLICY: dict[str, Any] = {
    "breaker": {"nodes": 10_000, "jobs": 10_000, "failed_restarts": 100, "reversals": 100},
    "progress_within": "PT25M",
}
STEP_S = 2
# `read -t` on a pipe that nobody writes to waits without a process of its own.
JOB = """\
#!/bin/bash
#SBATCH --ntasks=1 --requeue --open-mode=append --output={folder}/%j.out
exec {{quiet}}<> <(:)
step=0
while true; do
  echo "step $((++step))/100000 | loss 1.0"
  [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && [ -e {folder}/fail ] && exit 1
  read -r -t {step_s} -u $quiet
done
"""


class Order(BaseModel):
    """What to measure."""

    model_config = ConfigDict(frozen=True)

    incidents: int = Field(default=200, ge=1, le=400)


def measure(order: Order, say: Callable[[str], None]) -> dict[str, Any]:
    """Let all jobs fail at once, wait until every incident has closed, and return the distributions."""
    with _stack(order, say) as stack, ledger_of(stack.config) as view:
        folder = stack.cluster.make_run_folder("small")
        script = JOB.format(folder=folder, step_s=STEP_S)
        # A job of the same name in the same folder would be taken for its successor.
        jobs = [stack.cluster.submit(script, f"--job-name=small-{number}") for number in range(order.incidents)]
        _until(lambda: all(view.step(job) for job in jobs), f"{len(jobs)} jobs to be seen running")
        say(f"{len(jobs)} jobs run and are seen")
        at = datetime.now(UTC)
        (folder / "fail").touch()
        incidents = _until_closed(view, len(jobs), say)
        return _result(order, at, incidents, set(jobs))


@contextmanager
def _stack(order: Order, say: Callable[[str], None]) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="relight-bench-", dir="/tmp"))
    folder.chmod(0o755)
    nodes = -(-order.incidents // CORES_OF_A_NODE)
    stack = Stack(StackSpec(folder=folder, nodes=nodes, policy=POLICY))
    try:
        stack.start(say)
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _until_closed(view: LedgerView, number: int, say: Callable[[str], None]) -> tuple[Incident, ...]:
    told = time.monotonic()

    def closed() -> bool:
        nonlocal told
        known = view.incidents()
        done = sum(not incident.open for incident in known)
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            say(f"{len(known)} incidents, {done} closed")
        return done >= number

    _until(closed, f"{number} incidents to close")
    return view.incidents()


def _until(condition: Callable[[], bool], what: str) -> None:
    try:
        wait_until(condition, PATIENCE_S, what, 0.5)
    except WaitTimeoutError as error:
        raise WaitTimeoutError(f"{error}: Relight is too slow for so many, or has lost some") from None


def _result(order: Order, at: datetime, incidents: Sequence[Incident], jobs: set[int]) -> dict[str, Any]:
    right = [i for i in incidents if i.outcome is Outcome.RECOVERED]
    once = Counter(i.attempt.job_id for i in incidents)
    return {
        "incidents": len(incidents),
        "jobs": len(jobs),
        "recovered": len(right),
        "outcomes": dict(Counter(str(i.outcome) for i in incidents)),
        "not_exactly_once": sorted(job for job in jobs if once[job] != 1),
        "detected_s": _spread([(i.detected_at - at).total_seconds() for i in incidents]),
        "decided_s": _spread(_between(incidents, "detected", "planned")),
        "restarted_s": _spread(_between(incidents, "detected", "running")),
        "recovered_s": _spread(_between(incidents, "detected", "recovered")),
        "conditions": {
            "cores": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 2),
            "slurm": ".".join(f"{part:02}" for part in slurm_version()),
            "breaker": "off",
            "all_failed_within_s": STEP_S,
            "all_on_one_machine": True,
            "order": order.model_dump(),
        },
    }


def _between(incidents: Sequence[Incident], first: str, last: str) -> list[float]:
    times = [{step.name: step.at for step in incident.steps} for incident in incidents]
    return [(each[last] - each[first]).total_seconds() for each in times if first in each and last in each]


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95 and the most; nothing of nothing."""
    if not seconds:
        return {}
    cuts = quantiles([*seconds, *seconds], n=20, method="inclusive")
    return {"p50": round(cuts[9], 2), "p95": round(cuts[18], 2), "max": round(max(seconds), 2)}


def good(told: dict[str, Any]) -> bool:
    """Whether every job had one incident, and it ended right."""
    return told["recovered"] == told["jobs"] == told["incidents"] and not told["not_exactly_once"]


def report(told: dict[str, Any]) -> Table:
    """The distributions as a table."""
    table = Table("seconds", "p50", "p95", "most", title=f"{told['incidents']} incidents at once (the breaker is off)")
    names = {
        "detected_s": "failed to detected",
        "decided_s": "detected to decided",
        "restarted_s": "detected to running again",
        "recovered_s": "detected to recovered",
    }
    for key, name in names.items():
        table.add_row(name, *(str(told[key].get(part, "")) for part in ("p50", "p95", "max")))
    table.caption = ", ".join(f"{outcome} {times}" for outcome, times in told["outcomes"].items())
    return table
