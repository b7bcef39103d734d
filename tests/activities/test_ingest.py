"""Reports of node agents: beats are remembered, faults written once, and what they mean for jobs is told once."""

import asyncio
from datetime import timedelta

import pytest

from relight.activities.faults import Recogniser, ends_programs
from relight.activities.ingest import ATTEMPTS_LAST, Ingest, NodeSight
from relight.attribution.catalogue import load
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.evidence import Interruption, Source, Trust
from relight.domain.ledger import RowKind
from relight.domain.reports import (
    MAX_PROBES,
    Beat,
    FaultKind,
    NodeFault,
    ProbeAnswer,
    ProbeKind,
    ProbeRequest,
    Report,
)
from relight.domain.slurm import NodeRecord, NodeState

GPU = "0000:43:00"
SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=30)


@pytest.fixture
def nudges():
    """How often the watcher was asked to look."""
    return []


@pytest.fixture
def ingest(world, nudges):
    return Ingest(world.site, lambda: nudges.append(1))


@pytest.fixture
def fault(world):
    """A fault as an agent tells it: a GPU fallen off the bus, where nothing else is said."""

    def make(number=79, *, text=None, **fields):
        text = text or f"NVRM: Xid (PCI:{GPU}): {number}, pid='<unknown>', name=<unknown>, something"
        given = {"id": f"n1/boot/xid/{GPU}/{number}", "kind": FaultKind.XID, "at": world.clock.now, "text": text}
        return NodeFault(**{**given, "source": "kernel_log", "gpu": GPU, "xid": number, **fields})

    return make


@pytest.fixture
def report(world, ingest):
    """Sends a report of n1's agent."""

    async def send(*faults, node="n1", blind=(), **fields):
        beat = Beat(at=world.clock.now, blind=blind)
        return await ingest.report(Report(node=node, boot="b1", beat=beat, faults=faults, **fields))

    return send


async def detections(world):
    return await world.ledger.undelivered()


async def test_a_gpu_fault_under_a_running_job_is_detected(world, report, fault):
    """With the agent's word as platform witness, the catalogue's name, node and GPU; acknowledged when it is kept."""
    attempt = await world.train()
    receipt = await report(fault())
    assert receipt.faults == 1
    (found,) = await detections(world)
    assert (found.kind, found.attempt, found.occurred_at) == (
        Interruption.GPU_FAULT,
        attempt.key,
        world.clock.now,
    )
    (evidence,) = found.evidence
    assert (evidence.source, evidence.signature, evidence.node, evidence.gpu) == (
        Source.KERNEL_LOG,
        "XID_79",
        "n1",
        GPU,
    )
    assert evidence.trust is Trust.PLATFORM
    (row,) = await world.rows(RowKind.FAULT)
    assert (row.node, row.attempt, row.body["fault"]["xid"]) == ("n1", str(attempt.key), 79)


async def test_a_fault_told_again_adds_nothing(world, report, fault):
    """The agent did not hear that we have it. By then another job may run on that node: it is not its fault."""
    attempt = await world.train()
    told = fault()
    await report(told)
    before = await world.rows()
    assert (await report(told)).faults == 1
    world.slurm.fail(attempt.key.job_id)
    await world.look()
    next_one = await world.train()
    assert "n1" in next_one.record.nodes
    world.clock.on(10)
    await report(told)
    assert [row for row in await world.rows() if row.node == "n1"] == [row for row in before if row.node == "n1"]
    assert next_one.key not in {d.attempt for d in await detections(world)}


async def test_every_job_on_the_node_is_told_of(world, report, fault):
    """Nodes may be shared."""
    first = await world.train(nodes=1)
    world.slurm.node_records["n1"] = NodeRecord(name="n1", state=NodeState.IDLE)
    second = await world.train(nodes=1)
    elsewhere = await world.train(nodes=1)
    await report(fault())
    assert {d.attempt for d in await detections(world)} == {first.key, second.key}
    assert elsewhere.key not in {d.attempt for d in await detections(world)}


async def test_a_fault_where_nothing_runs_is_written_down(world, report, fault):
    """And no more."""
    await world.train(nodes=1)
    assert (await report(fault(), node="n4")).faults == 1
    assert await detections(world) == ()
    (row,) = await world.rows(RowKind.FAULT)
    assert (row.node, row.body["attempts"]) == ("n4", [])


@pytest.mark.parametrize(("before", "told"), [(59, True), (61, False)])
async def test_a_fault_from_before_the_job_is_not_its_own(world, report, fault, before, told):
    """The agent could not reach us for a while. A minute's grace: clocks differ."""
    job = world.slurm.submit(nodes=1)
    started = world.slurm.start(job).start_time
    await world.look()
    world.clock.on(3600)
    await report(fault(at=started - before * SECOND))
    assert bool(await detections(world)) is told
    assert len(await world.rows(RowKind.FAULT)) == 1


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.PCIE,
        FaultKind.FABRIC,
        FaultKind.OOM_KILL,
        FaultKind.DISK_FULL,
        FaultKind.STALE_MOUNT,
        FaultKind.THROTTLED,
    ],
)
async def test_other_faults_are_written_down_only(world, report, fault, kind):
    """They explain an interruption, and are none by themselves."""
    attempt = await world.train()
    await report(fault(kind=kind, text="something is wrong", xid=None, source="host"))
    assert await detections(world) == ()
    (row,) = await world.rows(RowKind.FAULT)
    assert row.body["attempts"] == [str(attempt.key)]


async def test_without_the_ledger_nothing_is_acknowledged(world, report, fault):
    """The agent keeps it and tells it again; detection and row come together or not at all."""
    await world.train()
    world.ledger.refused = {RowKind.DETECTED}
    assert (await report(fault())).faults == 0
    assert await world.rows(RowKind.FAULT) == ()
    world.ledger.refused = set()
    assert (await report(fault())).faults == 1
    assert len(await detections(world)) == 1


async def test_a_storm_reads_the_running_attempts_once(world, report, fault, monkeypatch):
    """A fabric fault is told by a thousand nodes at once."""
    await world.train()
    reads = []
    real = world.ledger.real.running_attempts

    async def running_attempts(cluster):
        reads.append(cluster)
        return await real(cluster)

    monkeypatch.setattr(world.ledger.real, "running_attempts", running_attempts)
    for number in range(50):
        await report(fault(id=f"{number}"))
    assert len(reads) == 1
    world.clock.on(ATTEMPTS_LAST.total_seconds())
    await report(fault(id="later"))
    assert len(reads) == 2


# What the catalogue says.


@pytest.fixture(scope="session")
def recogniser():
    return Recogniser(load())


@pytest.mark.parametrize(
    ("number", "text", "signature", "interrupts"),
    [
        (79, None, "XID_79", True),
        (48, None, "XID_48", True),
        (31, None, "XID_13_31_43", True),
        (63, None, "XID_63", False),
        (45, None, "XID_45", False),
        (79, f"Xid (PCI:{GPU}): 79, told by NVML", "XID_79", True),
        (94, "something that is not the driver's line", "XID_94_95", True),
        (145, f"Xid (PCI:{GPU}): 145, RLW_REMAP Nonfatal XC1 i0", "XID_144_150_NONFATAL", False),
        (145, f"Xid (PCI:{GPU}): 145, RLW_REMAP Fatal XC1 i0", "XID_144_150", True),
        (4711, None, None, True),
    ],
)
def test_which_xids_interrupt(recogniser, fault, number, text, signature, *, interrupts):
    """Not those to be lived with, nor echoes; one that the catalogue does not know may."""
    told = fault(number, text=text)
    found = recogniser.signature(told)
    assert (found.id if found else None) == signature
    assert recogniser.interrupts(told) is interrupts


@pytest.mark.parametrize(
    ("fields", "signature", "interrupts"),
    [
        ({"kind": FaultKind.GPU_LOST, "text": "GPU is lost"}, "NVML_GPU_LOST", True),
        ({"kind": FaultKind.GPU_LOST, "text": f"NVRM: GPU {GPU}.0: GPU has fallen off the bus."}, "XID_79", True),
        ({"kind": FaultKind.RECOVERY_ACTION, "text": "GPU recovery action 0x1 (reset)"}, "XID_154", True),
        ({"kind": FaultKind.RECOVERY_ACTION, "text": "over", "cleared": True}, "XID_154", False),
        ({"kind": FaultKind.ROW_REMAP, "text": "row remapping failure: yes"}, "XID_64", True),
        ({"kind": FaultKind.ROW_REMAP, "text": "row remapping pending: yes"}, "XID_63", False),
        ({"kind": FaultKind.SXID, "text": f"SXid (PCI:{GPU}.0): 12028, Non-fatal, Link 32"}, "SXID_NONFATAL", False),
        ({"kind": FaultKind.SXID, "text": f"SXid (PCI:{GPU}.0): 20034, Fatal, Link 27"}, "SXID_FATAL", True),
        ({"kind": FaultKind.ECC, "text": "7 uncorrectable errors more"}, None, True),
    ],
)
def test_which_other_faults_interrupt(recogniser, fault, fields, signature, interrupts):
    """By what NVML or the kernel tells."""
    told = fault(xid=None, **fields)
    found = recogniser.signature(told)
    assert (found.id if found else None) == signature
    assert recogniser.interrupts(told) is interrupts


@pytest.mark.parametrize(("number", "ends"), [(79, True), (4711, False)])
async def test_which_faults_end_programs(world, report, fault, number, ends):
    """By the catalogue; of one that it does not know nothing is said."""
    await world.train()
    await report(fault(number))
    (found,) = await detections(world)
    assert ends_programs(found, load()) is ends


# Nodes.


async def test_beats_are_remembered(world, ingest, report):
    """By our clock, whatever the node's; what the agent cannot see is kept with it."""
    await report()
    world.clock.on(3)
    await report(node="n2", blind=("nvml: driver not loaded",))
    world.clock.on(2)
    assert ingest.sights() == (
        NodeSight("n1", world.clock.now - 5 * SECOND, "b1"),
        NodeSight("n2", world.clock.now - 2 * SECOND, "b1", ("nvml: driver not loaded",)),
    )
    assert ingest.sight("n1").silent(world.clock.now) == 5 * SECOND
    assert ingest.sight("n3") is None
    assert await world.rows() == ()


async def test_only_slurms_nodes_are_known(world, ingest):
    """By the list as last read, which is read anew for a strange name, and not at every strange name."""
    assert await ingest.knows("n1")
    assert not await ingest.knows("n9")
    world.slurm.node_records["n9"] = NodeRecord(name="n9", state=NodeState.IDLE)
    assert not await ingest.knows("n9")
    world.clock.on(60)
    assert await ingest.knows("n9")


async def test_nodes_that_are_gone_are_forgotten(world, ingest, report):
    """So the table of beats is no longer than the list of nodes."""
    await ingest.knows("n1")
    await report()
    del world.slurm.node_records["n1"]
    world.clock.on(60)
    await ingest.knows("n9")
    assert ingest.sights() == ()


async def test_unknown_is_not_no(world, ingest):
    """Before the nodes were ever read; later a failed read leaves the list as it was."""
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await ingest.knows("n1")
    assert await ingest.knows("n1")
    world.clock.on(60)
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    assert not await ingest.knows("n9")
    assert await ingest.knows("n1")


def test_a_hook_only_makes_the_watcher_look(ingest, nudges):
    """Whatever it says."""
    ingest.job_ended(7)
    assert nudges == [1]


# Probes.


def stacks(number=1):
    return ProbeRequest(id=f"q{number}", kind=ProbeKind.STACKS, job_id=7)


async def asking(ingest, *questions, node="n1", within=SOON):
    """Ask, and let the questions be open."""
    tasks = [asyncio.create_task(ingest.ask(node, question, within)) for question in questions]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_a_question_is_fetched_and_answered(world, ingest, report):
    """With the next beat of that node, again until it is answered, and then no more."""
    (asked,) = await asking(ingest, stacks())
    assert (await report(node="n2")).probes == ()
    for _ in range(2):
        assert (await report()).probes == (stacks(),)
    answer = ProbeAnswer(id="q1", at=world.clock.now, problem="no such job")
    assert (await report(answers=(answer,))).probes == ()
    assert await asked == answer
    assert (await report()).probes == ()


async def test_another_nodes_answer_is_none(world, ingest, report):
    """An agent speaks for its own node."""
    (asked,) = await asking(ingest, stacks())
    await report(node="n2", answers=(ProbeAnswer(id="q1", at=world.clock.now, problem="forged"),))
    await report(answers=(ProbeAnswer(id="q1", at=world.clock.now, problem="mine"),))
    assert (await asked).problem == "mine"


async def test_no_answer_in_time_is_said(ingest, report):
    """And the question is withdrawn."""
    (asked,) = await asking(ingest, stacks(), within=timedelta(0))
    assert "no answer" in (await asked).problem
    assert (await report()).probes == ()


async def test_questions_are_bounded(ingest, report):
    """The next one is answered at once: not now."""
    open_ones = await asking(ingest, *(stacks(number) for number in range(MAX_PROBES)))
    answer = await ingest.ask("n1", stacks(99), SOON)
    assert "open already" in answer.problem
    assert len((await report()).probes) == MAX_PROBES
    for task in open_ones:
        task.cancel()


async def test_the_same_question_is_asked_once(world, ingest, report):
    """Both get the answer."""
    tasks = await asking(ingest, stacks(), stacks())
    assert (await report()).probes == (stacks(),)
    answer = ProbeAnswer(id="q1", at=world.clock.now)
    await report(answers=(answer,))
    assert await asyncio.gather(*tasks) == [answer, answer]
