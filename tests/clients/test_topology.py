"""Failure domains from what real Slurm printed; no answer is told from no topology."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients.relight_gate import DEFAULTS, command
from relight.clients.slurm import SlurmUnavailableError
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_parse import GarbledError
from relight.clients.slurm_parse_topology import parse_topology
from relight.clients.slurm_process import LocalRunner
from relight.domain.topology import Topology

RECORDED = Path(__file__).parent / "recorded"
TREE = {"switch s1": ("n1", "n3"), "switch s2": ("n2", "n4")}
BLOCKS = {"block b1": ("n1", "n2"), "block b2": ("n3", "n4")}


def domains(topology: Topology) -> dict[str, tuple[str, ...]]:
    return {domain.name: domain.nodes for domain in topology.domains}


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("22.05/topology-tree.txt", TREE),
        ("24.11/topology-tree.txt", TREE),
        ("26.05/topology-tree.txt", TREE),
        ("24.11/topology-blocks.txt", BLOCKS),
        ("26.05/topology-blocks.txt", BLOCKS),
        ("26.05/topology-several-in-yaml.txt", {"switch s1": ("n1", "n2"), "switch s2": ("n3", "n4")}),
    ],
)
def test_recorded_topologies(file: str, found: dict[str, tuple[str, ...]]) -> None:
    """Leaf switches and blocks; what stands above them holds the whole cluster and limits nothing."""
    topology = parse_topology((RECORDED / file).read_text())
    assert domains(topology) == found
    assert topology.of("n1") == tuple(name for name, nodes in found.items() if "n1" in nodes)
    assert topology.of("n9") == ()


def test_blocks_of_blocks_and_switches_without_nodes() -> None:
    """As Slurm's manual has them; only the smallest counts."""
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n"
        "SwitchName=s9 Level=0 LinkSpeed=1 Nodes=(null)\n"
    )
    assert domains(parse_topology(text)) == {"block b1": ("n1", "n2"), "switch s9": ()}


@pytest.mark.parametrize(
    "text",
    ["RingName=r1 Nodes=n[1-4]", "SwitchName=s1 Level=0", "SwitchName=s1 Nodes=n1", "slurm_load_topo error: x", "{}"],
)
def test_what_is_of_no_known_kind_is_no_topology(text: str) -> None:
    """It may hold failure domains that we do not see: not known, instead of none."""
    with pytest.raises(GarbledError):
        parse_topology(text)


@given(st.text(max_size=200))
def test_any_text_is_a_topology_or_garbled(text: str) -> None:
    """Never another error, and never a domain from a line that names none."""
    try:
        topology = parse_topology(text)
    except GarbledError:
        return
    assert bool(topology.domains) <= ("Name=" in text)


@pytest.fixture
def scontrol(tmp_path: Path) -> Callable[[str], SlurmCommands]:
    """A client whose scontrol is this shell script."""

    def make(body: str) -> SlurmCommands:
        script = tmp_path / "scontrol"
        script.write_text(f'#!/bin/sh\n[ "$*" = "show topology" ] || exit 9\n{body}\n')
        script.chmod(0o755)
        return SlurmCommands(LocalRunner(bin_dir=str(tmp_path)), timeout=timedelta(seconds=5))

    return make


@pytest.mark.parametrize(
    "body", ["echo 'scontrol: error: No topology information available' >&2", ":"], ids=["22.05", "24.11"]
)
async def test_a_cluster_without_topology(scontrol: Callable[[str], SlurmCommands], body: str) -> None:
    """22.05 says so on stderr, newer ones say nothing; both exit with 0 (seen)."""
    assert await scontrol(body).topology() == Topology()


@pytest.mark.parametrize(
    "body",
    [
        "echo 'slurm_load_topo error: Unable to contact slurm controller (connect failure)' >&2",
        "echo 'SwitchName=s1 Level=0 Nodes=n1'; echo 'slurm_load_topo error: x' >&2",
        "echo nonsense",
        "exit 1",
        "kill -9 $$",
    ],
    ids=["down, exit 0 as seen", "half an answer", "garbled", "failed", "killed"],
)
async def test_no_answer_is_not_no_topology(scontrol: Callable[[str], SlurmCommands], body: str) -> None:
    """slurmctld that is away leaves stdout empty and exits with 0 (seen on all three versions)."""
    with pytest.raises(SlurmUnavailableError):
        await scontrol(body).topology()


def test_the_gate_lets_exactly_this_command_through() -> None:
    """Over SSH too."""
    assert command("scontrol show topology", DEFAULTS) == (["/usr/bin/scontrol", "show", "topology"], False)
    assert command("scontrol show topology", {**DEFAULTS, "write": "no"})[1] is False
