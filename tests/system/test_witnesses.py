"""A hang on a real cluster, borne out by real agents: stacks of the real ranks, power of pretended GPUs."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.domain.evidence import Detection, Interruption
from relight.domain.incidents import Incident
from relight.domain.plan import Mode
from relight.domain.stacks import ODD_RANK, STACKS_IDENTICAL
from relight.domain.standstill import STANDS_STILL
from relight.lab import faults
from relight.lab.engines import torch_is_installed
from relight.lab.fault_rules import Deed
from relight.lab.job import render
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


def closed_hang(lab: Lab, job: int) -> list[Incident]:
    """The incident of it, once it is closed. On a busy machine a slow-down may be told, and left alone, before."""
    return [one for one in lab.view.incidents(job) if one.kind is Interruption.HANG and not one.open]


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


ROUND_STEP = 100
"""Nothing has taken long before it: a first checkpoint or evaluation may be due."""
HELD_S = 60
"""Three times the ordinary limit."""


def test_a_hang_at_a_round_step_is_told_at_the_ordinary_limit(lab: Lab) -> None:
    """A first checkpoint would have been given ten minutes; real agents see that no rank does anything."""
    job = lab.train(nodes=2, tasks_per_node=2)
    lab.rule(job, rank=3, do=Deed.HANG, step=ROUND_STEP + 1, attempts=(0,))
    lab.until(lambda: bool(closed_hang(lab, job)), "the hang to be recovered from", 240, about=job)
    (incident,) = closed_hang(lab, job)
    hang = hang_of(lab, job)
    assert [evidence.signature for evidence in hang.evidence[:2]] == [None, STANDS_STILL]
    assert f"since step {ROUND_STEP} (limit 20 s)" in hang.evidence[0].text
    assert "all 4 ranks did nothing" in hang.evidence[1].text
    check_recovered(lab, job, incident)


SLOW_TRAINER = """
import time
from pathlib import Path
from relight.lab import checkpoints, trainer

class Bucket:
    waits = {held}

    def write(self, data):
        self.waits = time.sleep(self.waits) or 0
        return len(data)

    def flush(self):
        pass

def sleeps_in_its_storage():
    import torch
    torch.save({{}}, Bucket())

def one_long_call():
    with open("pipe", "wb", 0) as file:
        file.write(bytes(1 << 20))

def keep(folder, step, content, suffix):
    if step == {step}:
        {how}()
    return real(folder, step, content, suffix)

real, checkpoints.save = checkpoints.save, keep
trainer.main()
"""


def slow_training(lab: Lab, how: str) -> tuple[int, Path]:
    """Submit the lab's trainer, of which rank 0 takes a minute for its first checkpoint; and its run folder."""
    spec = lab.spec(nodes=2, tasks_per_node=2, checkpoint_every=ROUND_STEP)
    script = spec.run / "slow.py"
    script.write_text(SLOW_TRAINER.format(how=how, step=ROUND_STEP, held=HELD_S))
    os.mkfifo(spec.run / "pipe")
    if lab.user:
        shutil.chown(spec.run / "pipe", lab.user)
    return lab.submit(render(spec).replace("-m relight.lab.trainer", str(script))), spec.run


@pytest.mark.skipif(not torch_is_installed(), reason="needs PyTorch")
def test_a_first_checkpoint_that_sleeps_in_its_storage_is_no_hang(lab: Lab) -> None:
    """In a real `torch.save`: no CPU time, no byte, no call on a file; only its stack tells that it saves."""
    job, _ = slow_training(lab, "sleeps_in_its_storage")
    lab.until_step(job, ROUND_STEP)
    lab.until_step(job, ROUND_STEP + 20)
    assert lab.detections(job) == ()
    lab.untouched(job)


def test_a_first_checkpoint_in_one_long_write_is_no_hang(lab: Lab) -> None:
    """In a real `write` of a function of any name: only the kernel tells that it waits for a file."""
    job, run = slow_training(lab, "one_long_call")
    reader = os.open(run / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        lab.until_step(job, ROUND_STEP)
        # What is tested is that time passes and nothing is told.
        time.sleep(HELD_S)
        assert lab.view.step(job) == ROUND_STEP
        os.set_blocking(reader, True)
        while os.read(reader, 1 << 16):
            pass
    finally:
        os.close(reader)
    lab.until_step(job, ROUND_STEP + 20)
    assert lab.detections(job) == ()
    lab.untouched(job)
