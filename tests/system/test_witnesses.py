"""A hang on a real cluster, borne out by real agents: stacks of the real ranks, power of pretended GPUs."""

from collections.abc import Iterator

import pytest

from relight.domain.evidence import Detection, Interruption
from relight.domain.plan import Mode
from relight.domain.stacks import ODD_RANK, STACKS_IDENTICAL
from relight.lab import faults
from relight.lab.fault_rules import Deed
from relight.lab.stack import Stack

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """With an agent on each node. Silence counts as a hang after 20 s; slurmd tells an Operator no CPU times."""
    with new_stack(nodes=2, agents=True, hang={"floor": "PT20S"}) as stack:
        yield stack


def hang_of(lab: Lab, job: int) -> Detection:
    """What the watcher told."""
    [hang] = [found for found in lab.detections(job) if found.kind is Interruption.HANG]
    return hang


@pytest.mark.parametrize("how", ["stopped", "spins"])
def test_stacks_bear_a_hang_out_and_name_the_odd_rank(lab: Lab, how: str) -> None:
    """Rank 3 stands still, or never comes back from its data; the other three wait for it in a collective.

    Nothing else shows the hang, and in auto it is acted on: the diagnosis names the rank and its node, and the job
    trains again.
    """
    job = lab.train(nodes=2, tasks_per_node=2)
    lab.until_step(job, 60)
    node = lab.node_of(job, 3)
    if how == "stopped":
        lab.inject(job, faults.hang(rank=3))
    else:
        lab.rule(job, rank=3, do=Deed.HANG, attempts=(0,))
    incident = lab.outcome(job)
    signatures = {evidence.signature: evidence for evidence in hang_of(lab, job).evidence}
    assert set(signatures) == {None, STACKS_IDENTICAL, ODD_RANK}
    assert (signatures[ODD_RANK].rank, signatures[ODD_RANK].node) == (3, node)
    assert incident.mode is Mode.AUTO
    check_recovered(lab, job, incident)
    assert incident.diagnosis
    assert incident.diagnosis.verdict.implicated.ranks == (3,)
    assert incident.diagnosis.verdict.implicated.nodes == (node,)
    assert not lab.drained(node)
