"""A node's quarantine on a real cluster: emptied, checked by its real agent, returned, kept, or left to a person.

The driver is pretended (`nvml_stub`); Slurm, the agents and what they run are real.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.domain.care_history import Quarantine, quarantines
from relight.domain.ledger import Row, RowKind
from relight.lab import faults
from relight.lab.agents import start_agents, stop_agents
from relight.lab.stack import Stack
from relight.workers.ingest import open_key

from .conftest import Lab, NewStack

pytestmark = pytest.mark.system
CONTAINED = 94
"""A memory error that asks for no reset: what NVML and the exercise show afterwards may return the node."""


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Nodes for all four tests, with agents, in auto, also for returns and downs; more drains than a site allows."""
    with new_stack(
        nodes=8, agents=True, drains_per_hour=20, backoff=["0s"], modes={"return": "auto", "down": "auto"}
    ) as stack:
        yield stack


def rows(lab: Lab, node: str, kind: RowKind) -> tuple[Row, ...]:
    """The ledger's rows on a node, of this test alone."""
    found: tuple[Row, ...] = lab.ask(lab.view._ledger.rows(node=node, kind=kind))
    return tuple(row for row in found if row.seq > lab.began)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _from_here(lab: Lab) -> None:
    """Tests may break the same node one after the other."""
    lab.began = lab.ask(lab.view._ledger.verify()).rows  # type: ignore[attr-defined]


def quarantine(lab: Lab, node: str) -> Quarantine | None:
    """The node's newest."""
    return next(iter(quarantines(rows(lab, node, RowKind.CARE))), None)


def until_phase(lab: Lab, node: str, *phases: str, timeout_s: float = 120) -> Quarantine:
    """The node's newest quarantine, once it is in one of these phases, or has ended so."""

    def there() -> bool:
        known = quarantine(lab, node)
        return known is not None and (known.outcome or known.phase) in phases

    try:
        lab.until(there, f"the care of {node} to be {' or '.join(phases)}", timeout_s)
    except AssertionError as error:
        told = "\n".join(f"{row.at:%H:%M:%S} {row.body}"[:600] for row in rows(lab, node, RowKind.CARE))
        raise AssertionError(f"{error}\n{told}") from None
    known = quarantine(lab, node)
    assert known
    return known


def training(lab: Lab) -> tuple[int, str]:
    """A training that runs, and the node of its second rank, which is to be broken: another one in each test.

    The guard gives leave for a node once within five minutes.
    """
    had = {row.node for row in lab.view.rows(kind=RowKind.LEAVE)}
    job = lab.train(*([f"--exclude={','.join(sorted(had))}"] if had else []), nodes=2, tasks_per_node=1)
    lab.until_step(job)
    return job, lab.node_of(job, 1)


def beside(lab: Lab, node: str) -> int:
    """Another job that runs on the node."""
    job = lab.submit_raw("exec sleep 3600", f"--nodelist={node}", "--ntasks=1")
    lab.until_state(job, "RUNNING")
    return job


def break_gpu(lab: Lab, job: int, node: str) -> None:
    """Let the training lose a GPU there; the node is drained."""
    assert lab.inject(job, faults.gpu(rank=1, xid=CONTAINED)).node == node
    try:
        lab.until(lambda: lab.drained(node), f"{node} to be drained", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{[row.body['leave'] for row in rows(lab, node, RowKind.LEAVE)]}") from None


def test_a_node_comes_back_once_it_is_empty_checked_and_well(lab: Lab) -> None:
    """Another job runs on it: that is waited for. Then the real agent checks it, and it returns by itself."""
    job, node = training(lab)
    other = beside(lab, node)
    break_gpu(lab, job, node)
    lab.until(lambda: lab.restarts(job) == 1 and lab.field(job, "JobState") == "RUNNING", "the retry to run", about=job)
    until_phase(lab, node, "draining")
    assert lab.field(other, "JobState") == "RUNNING"
    assert lab.drained(node)
    lab.cluster.run("scancel", str(other))
    lab.until_state(other, "CANCELLED")
    known = until_phase(lab, node, "returned", "kept")
    assert known.outcome == "returned", known.text
    assert not lab.drained(node)
    assert lab.node_reason(node) in {"", "none"}
    steps = [row.body["step"].split("-", 1)[-1] for row in rows(lab, node, RowKind.CARE)]
    assert steps.index("drained") < steps.index("1") < steps.index("closed")
    judged = next(row for row in rows(lab, node, RowKind.CARE) if "checks" in row.body)
    results = {check["name"]: check["result"] for check in judged.body["checks"]}
    assert results == {
        "nvml": "passed",
        "exercise": "not possible",
        "disk": "passed",
        "network": "passed",
        "script": "not possible",
    }
    [undrained] = [row for row in rows(lab, node, RowKind.INTENT) if row.body["what"] == "undrain"]
    assert undrained.seq > judged.seq
    assert rows(lab, node, RowKind.REVERSED) == ()
    assert lab.ask(lab.view._ledger.verify()).ok


def test_a_persons_resume_in_the_middle_ends_it(lab: Lab) -> None:
    """While it is emptied an administrator puts it back: overridden, told to the guard, and never touched again."""
    job, node = training(lab)
    other = beside(lab, node)
    break_gpu(lab, job, node)
    until_phase(lab, node, "draining")
    lab.resume(node)
    known = until_phase(lab, node, "overridden", "returned")
    assert known.outcome == "overridden"
    [reversal] = rows(lab, node, RowKind.REVERSED)
    assert reversal.body["what"] == "drain"
    assert reversal.incident == known.incident
    assert [row for row in rows(lab, node, RowKind.INTENT) if row.body["what"] == "undrain"] == []
    assert lab.field(other, "JobState") == "RUNNING"


def test_a_node_that_the_sites_script_refuses_is_kept_until_it_is_repaired(lab: Lab) -> None:
    """With a ticket that says why; a person's word has it checked again, and what is well then returns."""
    job, node = training(lab)
    script = lab.cluster.folder / "agents" / node / "node-check"
    script.write_text('#!/bin/sh\necho "ERROR: nhc: check_hw_ib on $SLURMD_NODENAME: no port"\nexit 1\n')
    script.chmod(0o755)
    stack = lab.stack
    stop_agents({node: stack.agents[node]})
    url, key = f"http://{stack._listen()}", open_key(stack.data / "ingest.key")
    stack.agents |= start_agents(lab.cluster, url, key, nodes=[node], care={"check": str(script), "timeout": 20})
    break_gpu(lab, job, node)
    known = until_phase(lab, node, "kept", "returned")
    assert (known.outcome, known.next) == ("", "hand over")
    assert lab.drained(node)
    text = Path(known.ticket).read_text()
    assert f"check_hw_ib on {node}: no port" in text
    assert "serial 165000000000" in text

    told = lab.cli("nodes", node)
    assert told.returncode == 0, told.stderr
    assert "check_hw_ib" in told.stdout
    assert f"relight release {node}" in told.stdout
    listed = json.loads(lab.cli("nodes", "-o", "json").stdout)
    assert [each["node"] for each in listed] == [node]
    assert lab.cli("release", node, "--reason", " ").returncode == 2
    kept = lab.cli("keep", node, "--reason", "waiting for the part")
    assert kept.returncode == 0, kept.stderr

    script.write_text("#!/bin/sh\nexit 0\n")
    released = lab.cli("release", node, "--reason", "cable replaced")
    assert released.returncode == 0, released.stderr
    assert until_phase(lab, node, "returned").outcome == "returned"
    assert not lab.drained(node)
    assert lab.cli("release", node, "--reason", "again").returncode == 3
    assert lab.cli("release", "n77", "--reason", "which?").returncode == 4


def test_a_node_that_hangs_in_completing_is_set_down_and_comes_back(lab: Lab) -> None:
    """Its epilog never ends. slurmctld lets the job go, and not the node (seen on 22.05), which gets no job any more.

    Past KillWait and UnkillableStepTimeout it is set down, with leave; then it is checked like any other and returns.
    """
    job, node = training(lab)
    epilog = lab.cluster.folder / "etc/epilog.sh"
    usual = epilog.read_text()
    epilog.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {node} ] || exec sleep 900\n')
    try:
        lab.inject(job, faults.crash(rank=0))
        known = until_phase(lab, node, "completing", timeout_s=240)
        assert known.cls == "STUCK_COMPLETING"
        incident = lab.outcome(job, 180)
        assert "care" in lab.step_names(incident)
        assert lab.field(job, "JobState") == "RUNNING"
        assert until_phase(lab, node, "returned", "kept", "cleared", timeout_s=240).outcome == "returned"
    finally:
        epilog.write_text(usual)
    [down] = [row for row in rows(lab, node, RowKind.INTENT) if row.body["what"] == "down"]
    [leave] = [row for row in rows(lab, node, RowKind.LEAVE) if row.body["leave"]["granted"]]
    assert leave.seq < down.seq
    assert leave.body["leave"]["action"] == "down"
    assert rows(lab, node, RowKind.REVERSED) == ()
