"""The whole loop by the other ways to Slurm, in production: nothing mounted, or pyslurm in a process of its own."""

import importlib.util
from collections.abc import Iterator

import pytest

from relight.config.settings import Way
from relight.domain.ledger import RowKind
from relight.lab import faults
from relight.lab.stack import Stack

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system

HAS_PYSLURM = importlib.util.find_spec("pyslurm") is not None
NO_PYSLURM = pytest.mark.skipif(not HAS_PYSLURM, reason="pyslurm is not installed (deploy/build-pyslurm.sh)")


@pytest.fixture(scope="module", params=[Way.SSH, pytest.param(Way.PYSLURM, marks=NO_PYSLURM)])
def stack(request: pytest.FixtureRequest, new_stack: NewStack) -> Iterator[Stack]:
    """Four nodes in auto, reached by that way."""
    with new_stack(nodes=4, way=request.param, drains_per_hour=20) as stack:
        yield stack


def test_a_broken_gpu_is_recovered_from_and_its_node_drained(lab: Lab) -> None:
    """Reads, writes, relight-node, job logs, kernel logs and kept outputs all go along the way."""
    job = lab.train(nodes=2)
    lab.until_step(job)
    hit = lab.inject(job, faults.parse("gpu:rank=1"))
    assert hit.node
    incident = lab.outcome(job)
    check_recovered(lab, job, incident)
    assert lab.drained(hit.node)
    assert hit.node not in lab.view.attempts(job)[0].attempt.record.nodes
    [kept] = lab.view.rows(kind=RowKind.OUTPUTS_KEPT, incident=incident.id)
    assert kept.body["kept"]


def test_the_doctor_names_the_way_and_what_it_may_not_do(lab: Lab, stack: Stack) -> None:
    """Every check of Slurm is made along the way itself, as the principal that acts there."""
    job = lab.train(nodes=1, gpus_per_node=1)
    lab.until_step(job)
    told = " ".join(lab.cli("doctor").stdout.split())
    assert ("by pyslurm" if stack.spec.way is Way.PYSLURM else "by commands over SSH") in told
    assert f"slurm.way is {stack.spec.way}" in told
    if stack.spec.way is Way.SSH:  # run by root here, pyslurm has root's rights
        assert f"{stack.cluster.users.service}: Operator; may not: drain nodes" in told
        assert "relight-node answers over SSH" in told
        assert "1 of 1 running job readable" in told
