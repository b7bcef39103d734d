"""Jobs that Slurm could not launch: it queues them again and holds them, and Relight gets them going elsewhere."""

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from relight.domain.incidents import Incident, Outcome
from relight.domain.slurm import JobState
from relight.lab.stack import Stack

from .conftest import Lab, NewStack

pytestmark = pytest.mark.system

ASKS = '{"relight": {"mode": "approve"}}'
HELD = "launch_failed_requeued_held"
# The job is RUNNING meanwhile, so that the watcher can see it.
PROLOG = """\
#!/bin/bash
[ ! -e {folder}/bad-$SLURMD_NODENAME ] || { sleep 3; exit 1; }
"""


@pytest.fixture(scope="module")
def stack(new_stack: NewStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Four nodes in auto, with a prolog that runs on every node of a job before it starts, and can be made to fail."""
    # 22.05's slurmstepd dumps its core where it was started from when it finds no room for its job (seen).
    with chdir(tmp_path_factory.mktemp("core")), new_stack(drains_per_hour=20) as stack:
        prolog = stack.cluster.folder / "etc/prolog.sh"
        prolog.write_text(PROLOG.replace("{folder}", str(stack.cluster.folder)))
        prolog.chmod(0o755)
        with stack.cluster.slurm_conf.open("a") as conf:
            conf.write(f"Prolog={prolog}\nPrologFlags=Alloc\n")
        stack.cluster.run("scontrol", "reconfigure")
        yield stack


@pytest.fixture(autouse=True)
def idle(lab: Lab) -> None:
    """Nothing runs: Slurm gives a job the first nodes."""

    def every() -> bool:
        states = lab.cluster.node_states() or {}
        return {states.get(name) for name in lab.cluster.spec.node_names} == {"idle"}

    lab.until(every, "all nodes to be idle")


@pytest.fixture
def broken_prolog(lab: Lab) -> Iterator[Path]:
    """The prolog fails on n2."""
    mark = lab.cluster.folder / "bad-n2"
    mark.touch()
    yield mark
    mark.unlink(missing_ok=True)


def check_adopted(lab: Lab, job: int, incident: Incident, node: str) -> None:
    """Slurm's own requeue was taken over without that node, and trains; Relight has drained nothing."""
    assert incident.outcome is Outcome.ADOPTED, (incident.outcome_reason, lab.tail())
    assert incident.plan
    assert (incident.plan.release, incident.plan.exclude, incident.plan.drain) == (True, (node,), ())
    assert lab.effects(job) == [f"exclude-{node}", "release", "start"]
    assert lab.intents(job) == ["exclude", "release", "start"]
    assert lab.excluded(job) == {node}
    assert lab.restarts(job) == 1
    assert lab.field(job, "JobState") == "RUNNING"
    lab.until_step(job)
    newest = lab.view.attempts(job)[0].attempt
    assert node not in newest.record.nodes


def test_a_job_whose_prolog_failed_runs_on_other_nodes(lab: Lab, broken_prolog: Path) -> None:
    """Slurm drains the node and holds the job; it is kept off that node, released and started at once."""
    job = lab.train()
    incident = lab.outcome(job)
    assert broken_prolog.exists()
    check_adopted(lab, job, incident, "n2")
    assert lab.node_reason("n2") == "Prolog error"
    assert {e.node for d in lab.detections(job) for e in d.evidence} == {None, "n2"}


def test_a_job_that_its_batch_host_could_not_launch_runs_elsewhere(lab: Lab) -> None:
    """No room in slurmd's spool: no node is drained, so that without Relight it would be launched there again."""
    job = lab.train("--hold")
    room = lab.cluster.folder / f"nodes/n1/spool/job{job:05}"
    room.touch()
    try:
        lab.by_owner("scontrol", "release", str(job))
        incident = lab.outcome(job)
    finally:
        room.unlink(missing_ok=True)
    check_adopted(lab, job, incident, "n1")
    assert not lab.drained("n1")


def test_a_hold_of_the_owners_is_his(lab: Lab, broken_prolog: Path) -> None:
    """He releases Slurm's hold while the plan waits, and holds the job himself: the plan is not carried out on that."""
    job = lab.train(comment=ASKS)
    incident = lab.waiting(job)
    assert lab.field(job, "Reason") == HELD
    broken_prolog.unlink()
    lab.by_owner("scontrol", "release", str(job))
    lab.by_owner("scontrol", "hold", str(job))
    assert incident.plan
    assert incident.plan.release
    lab.signal(incident, "approve", digest=incident.plan.digest[:12], reason="go")
    incident = lab.outcome(job)
    assert incident.outcome is Outcome.OVERRIDDEN
    assert "JobHeldUser" in incident.outcome_reason
    assert "release" not in lab.intents(job)
    assert lab.field(job, "JobState") == JobState.PENDING
