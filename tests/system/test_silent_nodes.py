"""A node that dies is found by the silence of its real agent, long before this Slurm, given time, declares it down."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from relight.domain.evidence import Detection, Interruption, Source
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import RowKind
from relight.lab import slurm_conf
from relight.lab.spec import Profile
from relight.lab.stack import Stack

from .conftest import Lab, NewStack

pytestmark = pytest.mark.system

SLURMD_TIMEOUT_S = 30


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Five nodes, each with an agent that beats every second; Slurm gives up a node after 30 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm_conf, "_slurmd_timeout", lambda _plan: SLURMD_TIMEOUT_S)
        with new_stack(nodes=5, profile=Profile.FAST, agents=True) as stack:
            yield stack


def first(lab: Lab, job: int) -> Detection:
    """The first finding about the job."""
    lab.until(lambda: bool(lab.detections(job)), f"a finding about job {job}", about=job)
    return lab.detections(job)[0]


def test_a_silent_agent_alone_is_called_blind(lab: Lab) -> None:
    """Its node lives, and so does the job: nothing is found, and the blindness is written down."""
    job = lab.train()
    lab.until_step(job, 20)
    node = lab.node_of(job, 1)
    agent = lab.stack.agents[node].process
    agent.kill()
    lab.until(
        lambda: any(row.body["what"] == f"agent of {node}" for row in lab.view.rows(kind=RowKind.BLIND)),
        f"the agent of {node} to be called blind",
        about=job,
    )
    assert lab.detections(job) == ()
    lab.untouched(job)


def test_a_dead_node_is_lost_by_silence_and_adopted_once_slurm_gives_it_up(lab: Lab) -> None:
    """Found within 10 s with two witnesses; the incident says what it waits for; the restart is Slurm's own."""
    job = lab.train(nodes=2)
    lab.until_step(job, 20)
    node = next(name for name in (lab.node_of(job, rank) for rank in (0, 1)) if lab.stack.agents[name].process.alive)
    died = datetime.now(UTC)
    lab.cluster.kill_node(node)
    found = first(lab, job)
    assert (found.kind, found.slurm_decides_within) == (Interruption.NODE_LOST, timedelta(seconds=SLURMD_TIMEOUT_S))
    assert [(e.source, e.node) for e in found.evidence] == [(Source.AGENT, node), (Source.SLURMD, node)]
    assert found.detected_at - died < timedelta(seconds=10), found
    assert not (lab.cluster.node_states() or {})[node].startswith("down")
    lab.until(lambda: bool(lab.view.incidents(job)), f"the incident of job {job}", about=job)
    waiting = lab.view.incidents(job)[0]
    assert (waiting.phase, waiting.steps[-1].name) == (Phase.CONFIRMING, "waiting")
    shown = lab.cli("show", waiting.id).stdout
    assert f"{node} is silent; waiting for Slurm to declare it down (up to 30 s)" in " ".join(shown.split())
    lab.untouched(job)
    incident = lab.outcome(job)
    assert incident.outcome is Outcome.ADOPTED, (incident.outcome_reason, lab.tail())
    assert incident.diagnosis is not None
    assert incident.diagnosis.verdict.implicated.nodes == (node,)
    assert incident.plan is not None
    assert incident.plan.drain == ()
    assert [d.id for d in lab.detections(job)].count(found.id) == 1
    assert len(lab.view.incidents(job)) == 1
