"""What Relight is given to read may be missing, unreadable, endless or nonsense: it says so and stays right."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from relight.domain.diagnosis import Category
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode
from relight.lab import faults
from relight.lab.stack import Stack

from .conftest import Lab, NewStack, check_recovered, relight

pytestmark = pytest.mark.system

ASKS = '{"relight": {"mode": "approve"}}'
HUGE = 5 << 30


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Four nodes in auto."""
    with new_stack(nodes=4) as stack:
        yield stack


def output_of(lab: Lab, job: int) -> Path:
    """The job's output file."""
    return Path(lab.field(job, "StdOut") or "")


def seconds(incident: Incident, first: str, last: str) -> float:
    """From one step of an incident to another."""
    at = {step.name: step.at for step in incident.steps}
    return (at[last] - at[first]).total_seconds()


def test_an_output_that_cannot_be_read_is_said_and_the_job_decided_on_all_the_same(lab: Lab) -> None:
    """Its silence proves nothing; what Slurm says still does."""
    job = lab.train(nodes=1, gpus_per_node=1, comment=ASKS)
    lab.until_step(job)
    output = output_of(lab, job)
    output.chmod(0)
    lab.until_row(job, RowKind.BLIND, what="log")
    lab.inject(job, faults.crash(rank=0))
    incident = lab.waiting(job)
    assert incident.diagnosis
    assert incident.plan
    assert any(output.name in text for text in incident.diagnosis.unreadable)
    assert incident.plan.drain == ()
    output.chmod(0o644)
    lab.signal(incident, "approve", digest=incident.plan.digest[:12], reason="go")
    check_recovered(lab, job, lab.outcome(job))


def test_nonsense_in_the_output_neither_harms_nor_blames(lab: Lab) -> None:
    """Nothing at all, half a megabyte of noise, a device without end: all decided on, nobody's node blamed."""
    small = {"nodes": 1, "gpus_per_node": 1}
    empty = lab.submit_raw("sleep 6; exit 3", "--nodes=1", "--output=%j.out")
    endless = lab.submit_raw("sleep 6; exit 3", "--nodes=1", "--output=/dev/zero")
    noisy = lab.train(**small)
    lab.until_step(noisy)
    with output_of(lab, noisy).open("ab") as file:
        file.write(os.urandom(1 << 19))
        file.write(b"\x00\x1b[31m\xff\xfe" * 1000 + b"\n")
    lab.until_step(noisy, (lab.view.step(noisy) or 0) + 10)
    lab.inject(noisy, faults.crash(rank=0))
    check_recovered(lab, noisy, lab.outcome(noisy))
    # What an output that cannot be read would have said of the cause is not known: a person is asked.
    asked = lab.waiting(endless)
    assert asked.mode is Mode.APPROVE
    lab.signal(asked, "reject", reason="seen")
    for job in (empty, endless):
        incident = lab.outcome(job)
        assert incident.diagnosis
        assert incident.diagnosis.verdict.category is Category.UNKNOWN
        assert seconds(incident, "confirmed", "diagnosed") < 20
    assert any("zero" in text for text in incident.diagnosis.unreadable)
    for job in (empty, endless, noisy):
        [first] = lab.view.incidents(job)[-1:]
        assert first.plan
        assert first.plan.exclude == first.plan.drain == ()


def test_an_output_of_gigabytes_is_no_hang_and_keeps_no_diagnosis_waiting(lab: Lab) -> None:
    """Five sparse gigabytes amid the steps: what is not read yet is not silence, and a crash is diagnosed in time."""
    crashed, running = lab.train(nodes=1, gpus_per_node=1), lab.train(nodes=1, gpus_per_node=1)
    for job in (crashed, running):
        lab.until_step(job, 50)
    for job in (running, crashed):
        with output_of(lab, job).open("r+b") as file:
            file.truncate(HUGE)
    lab.inject(crashed, faults.crash(rank=0))
    incident = lab.outcome(crashed, 240)
    check_recovered(lab, crashed, incident)
    assert seconds(incident, "confirmed", "diagnosed") < 120
    [row] = lab.view.rows(kind=RowKind.OUTPUTS_KEPT, incident=incident.id)
    assert sum(Path(kept).stat().st_size for kept in row.body["kept"]) < 20 << 20
    # Ten steps a second: longer than the least silence that counts as a hang (30 s).
    lab.until_step(running, 50 + 350)
    assert lab.detections(running) == ()


def test_a_job_that_vanishes_while_its_plan_waits_is_expired(lab: Lab) -> None:
    """Purged by slurmctld meanwhile: an approval then does nothing, and says why."""
    job = lab.train(nodes=1, gpus_per_node=1, comment=ASKS)
    lab.until_step(job)
    lab.inject(job, faults.crash(rank=0))
    incident = lab.waiting(job)
    assert incident.plan
    conf = lab.cluster.slurm_conf
    before = conf.read_text()
    try:
        conf.write_text(before.replace("MinJobAge=300", "MinJobAge=2"))
        lab.cluster.run("scontrol", "reconfigure")
        lab.until(lambda: lab.field(job, "JobState") is None, "slurmctld to forget the job", 180)
    finally:
        conf.write_text(before)
        lab.cluster.run("scontrol", "reconfigure")
    lab.signal(incident, "approve", digest=incident.plan.digest[:12], reason="go")
    incident = lab.outcome(job)
    assert incident.outcome is Outcome.EXPIRED
    assert "no longer knows" in incident.outcome_reason
    assert lab.intents(job) == []


# --- settings


def controller(settings: Path) -> subprocess.CompletedProcess[str]:
    """Try to run a controller worker with that file."""
    return relight("worker", "controller", "--config", str(settings))


def test_a_temporal_that_does_not_answer_is_said_in_one_line(tmp_path: Path) -> None:
    """The worker ends with status 1, the address, and what to do."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    file = tmp_path / "relight.yaml"
    file.write_text(yaml.safe_dump({"data": str(tmp_path / "data"), "temporal": {"address": address}}))
    done = controller(file)
    assert done.returncode == 1
    assert f"Temporal at {address} cannot be reached" in done.stderr
    assert "temporal server start-dev" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("policy: {moode: auto}\n", "policy.moode: no such key; accepted here: "),
        ("policy: {mode: automatic}\n", "policy.mode: "),
        ("policy: [\n", ""),
        ("cluster: a/b\n", "cluster: "),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, settings: str, said: str) -> None:
    """With the file, the key, and no traceback; nothing is started."""
    file = tmp_path / "relight.yaml"
    file.write_text(f"data: {tmp_path}/data\n{settings}")
    done = controller(file)
    assert done.returncode == 1
    assert str(file) in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
