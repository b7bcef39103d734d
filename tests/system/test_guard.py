"""The guard on a real cluster with switches: limits as on a site, a pause, the kill switch, the breaker."""

from collections.abc import Iterator
from itertools import combinations

import pytest

from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode
from relight.lab import faults
from relight.lab.errors import WayMissingError
from relight.lab.spec import Profile
from relight.lab.stack import Stack
from relight.lab.ways import Way, open_way

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system

POLICY = {
    "drains_per_hour": 20,
    "breaker": {"nodes": 4, "jobs": 1000, "within": "10m", "failed_restarts": 100, "reversals": 100},
}
SWITCHES = 2
"""s1 has n1, n3, n5, n7; s2 has n2, n4, n6, n8."""


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Eight nodes in auto; the fourth broken node opens the breaker."""
    with new_stack(nodes=8, profile=Profile.FAST, switches=SWITCHES, **POLICY) as stack:
        yield stack


def leave_rows(lab: Lab, incident: Incident) -> list[Row]:
    return list(lab.view.rows(kind=RowKind.LEAVE, incident=incident.id))


def trained(lab: Lab, count: int) -> dict[int, str]:
    """So many jobs of one whole node each, by their ids the nodes."""
    jobs = [lab.train("--exclusive", nodes=1, name=f"j{number}") for number in range(count)]
    for job in jobs:
        lab.until_step(job)
    return {job: lab.node_of(job, 0) for job in jobs}


def broken(lab: Lab, job: int) -> Incident:
    """The job's GPU breaks, with the kernel's word: its incident, closed."""
    lab.inject(job, faults.gpu(rank=0))
    return lab.outcome(job)


def crashed(lab: Lab) -> Incident:
    """A job of one node that trained and crashed: its incident, closed."""
    job = lab.train(nodes=1)
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=0))
    return lab.outcome(job)


@pytest.mark.parametrize("way", [Way.COMMANDS, Way.SSH, Way.PYSLURM], ids=str)
async def test_real_topology_by_each_way(stack: Stack, way: Way) -> None:
    """Leaf switches with their nodes, as the cluster's topology.conf has them."""
    try:
        async with open_way(way, stack.cluster) as slurm:
            topology = await slurm.topology()
    except WayMissingError as error:
        pytest.skip(str(error))
    assert {domain.name: set(domain.nodes) for domain in topology.domains} == {
        "switch s1": {"n1", "n3", "n5", "n7"},
        "switch s2": {"n2", "n4", "n6", "n8"},
    }


def test_a_second_node_below_the_switch_stays_in_service(lab: Lab) -> None:
    """One drain per switch and hour, though twenty are allowed: the other job is restarted without its bad node."""
    nodes = trained(lab, SWITCHES + 1)
    switches = {job: f"switch s{1 if int(node[1:]) % 2 else 2}" for job, node in nodes.items()}
    one, other = next(pair for pair in combinations(nodes, 2) if switches[pair[0]] == switches[pair[1]])
    first, second = broken(lab, one), broken(lab, other)
    check_recovered(lab, other, second)
    assert lab.drained(nodes[one])
    [granted] = leave_rows(lab, first)
    assert granted.body["grant"]["domains"] == [switches[one]]
    assert granted.body["grant"]["partitions"] == ["main"]
    [refused] = leave_rows(lab, second)
    assert refused.body["leave"]["reason"] == f"1 of 1 drains of this hour are used in {switches[one]}"
    assert not lab.drained(nodes[other])
    shown = lab.cli("breaker")
    assert shown.returncode == 0
    assert "1 of 20 drains this hour used" in shown.stdout
    assert "of 8 nodes of partition main unavailable" in shown.stdout


def test_a_pause_and_the_kill_switch_only_observe(lab: Lab) -> None:
    """From the CLI and by a file: the plan is told, and nothing is touched."""
    paused = lab.cli("pause", "--for", "1h", "--reason", "power work")
    assert paused.returncode == 0, paused.stderr
    incident = crashed(lab)
    assert (incident.outcome, incident.mode) == (Outcome.OBSERVED, Mode.MONITOR)
    lab.untouched(incident.attempt.job_id)
    assert "paused by root" in lab.cli("status").stdout
    assert lab.cli("resume").returncode == 0
    kill = lab.stack.data / "KILL"
    kill.write_text("fire drill")
    try:
        incident = crashed(lab)
        assert (incident.outcome, incident.mode) == (Outcome.OBSERVED, Mode.MONITOR)
        assert lab.cli("status").returncode == 1
    finally:
        kill.unlink()


def test_the_breaker_opens_and_is_reset_by_a_person(lab: Lab) -> None:
    """The fourth broken node within minutes: a person is called, the next crash is only observed until the reset."""
    for job in trained(lab, 4):
        broken(lab, job)
    lab.until(lambda: bool(lab.view.rows(kind=RowKind.GUARD)), "a row of the guard")
    told = "nodes found broken within 10m"  # over two lines where the terminal is narrow
    lab.until(lambda: told in " ".join(lab.cli("breaker").stdout.split()), "the breaker to be open")
    assert lab.cli("status").returncode == 1
    incident = crashed(lab)
    assert incident.outcome is Outcome.OBSERVED
    lab.untouched(incident.attempt.job_id)
    done = lab.cli("breaker", "reset", "--reason", "looked")
    assert done.returncode == 0, done.stderr
    incident = crashed(lab)
    check_recovered(lab, incident.attempt.job_id, incident)
