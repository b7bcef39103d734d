"""What node agents told, as evidence: it names the cause and the node, and may drain it, as a kernel log may."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.ingest import Ingest
from relight.domain.diagnosis import Action
from relight.domain.evidence import Evidence, Interruption, Source, Trust
from relight.domain.plan import Mode, Restart
from relight.domain.reports import FaultKind, NodeFault, Report

GPU = "0000:4e:00"
XID_79 = f"NVRM: Xid (PCI:{GPU}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SECOND = timedelta(seconds=1)


@pytest.fixture
def tell(world):
    """Lets a node's agent tell of a fault, now where not said: an Xid 79 in its kernel log."""
    ingest = Ingest(world.site, lambda: None)

    async def send(node="n2", kind=FaultKind.XID, text=XID_79, **fields):
        given = {"id": f"{node}/{kind}/{text}", "at": world.clock.now, "source": "kernel_log"}
        if kind in {FaultKind.XID, FaultKind.GPU_LOST}:
            given |= {"gpu": GPU}
        fault = NodeFault(**{**given, "kind": kind, "text": text, **fields})
        receipt = await ingest.report(Report(node=node, boot="b1", faults=(fault,)))
        assert receipt.faults == 1
        return fault

    return send


@pytest.fixture
def diagnose(world, ref, detection):
    """Diagnoses an attempt that was interrupted now, or so many seconds ago."""

    async def call(attempt, kind=Interruption.CRASH, *, ago=0, told=()):
        at = world.clock.now - ago * SECOND
        found = detection(attempt, world.clock.now, kind, occurred_at=at, evidence=told)
        return await world.run(world.investigate.diagnose, c.DiagnoseInput(incident=ref(attempt), detection=found))

    return call


@pytest.mark.parametrize(
    ("fields", "signature", "source"),
    [
        ({}, "XID_79", Source.KERNEL_LOG),
        ({"text": f"Xid (PCI:{GPU}): 79, told by NVML", "source": "nvml", "xid": 79}, "XID_79", Source.NVML),
        ({"kind": FaultKind.GPU_LOST, "text": "GPU is lost", "source": "nvml"}, "NVML_GPU_LOST", Source.NVML),
        (
            {
                "kind": FaultKind.RECOVERY_ACTION,
                "text": "GPU recovery action 0x1 (GPU Reset Required)",
                "source": "nvml",
            },
            "XID_154",
            Source.NVML,
        ),
        (
            {"kind": FaultKind.ECC, "text": "uncorrectable ECC errors (volatile) rose from 0 to 2", "source": "nvml"},
            "CUDA_ECC",
            Source.NVML,
        ),
        ({"kind": FaultKind.ROW_REMAP, "text": "row remapping failure: yes", "source": "nvml"}, "XID_64", Source.NVML),
        (
            {
                "kind": FaultKind.FABRIC,
                "text": "mlx5_core 0000:9a:00.0: device's health compromised - reached miss count",
            },
            "IB_LOCAL_CATASTROPHIC",
            Source.KERNEL_LOG,
        ),
    ],
    ids=lambda value: value.get("text", "Xid 79")[:24] if isinstance(value, dict) else None,
)
async def test_an_agents_fault_is_the_cause_and_drains_its_node(  # noqa: PLR0917 - fixtures and a row of the table
    world, diagnose, tell, fields, signature, source
):
    """A crash of which no log says anything: the agent alone names what failed, and where."""
    attempt = await world.failed()
    fault = await tell(**fields)
    verdict = (await diagnose(attempt)).verdict
    assert (verdict.signature, verdict.action) == (signature, Action.RESTART_EXCLUDING_NODE)
    assert verdict.drain_nodes == verdict.implicated.nodes == ("n2",)
    (evidence,) = verdict.evidence
    assert (evidence.source, evidence.node, evidence.text, evidence.at) == (source, "n2", fault.text, fault.at)
    assert evidence.trust is Trust.PLATFORM


@pytest.mark.parametrize(("source", "drained"), [("dcgm", ("n2",)), ("exporter", ())])
async def test_an_exporter_that_the_site_does_not_trust_drains_nothing(world, diagnose, tell, source, drained):
    """It names cause and node, and the job's own retry leaves that node out."""
    attempt = await world.failed()
    await tell(source=source, xid=79)
    verdict = (await diagnose(attempt)).verdict
    assert (verdict.signature, verdict.action) == ("XID_79", Action.RESTART_EXCLUDING_NODE)
    assert (verdict.implicated.nodes, verdict.drain_nodes) == (("n2",), drained)


async def test_the_policy_drains_it_in_auto(world, ref, detection, diagnose, tell):
    """From the agent's report to the plan: restart without n2, and n2 out of service."""
    for name, node in world.slurm.node_records.items():
        world.slurm.node_records[name] = node.model_copy(update={"partitions": ("gpu",)})
    (world.folder / "train.out").write_text("step 7/100 | loss 0.5\n")
    attempt = await world.failed()
    await tell()
    found = detection(attempt, world.clock.now, occurred_at=world.clock.now)
    arg = c.PlanInput(incident=ref(attempt), detection=found, diagnosis=await diagnose(attempt))
    verdict = await world.run(world.investigate.plan, arg)
    assert (verdict.mode, verdict.plan.restart) == (Mode.AUTO, Restart.REQUEUE)
    assert (verdict.plan.exclude, verdict.plan.drain) == (("n2",), ("n2",))


@pytest.mark.parametrize(
    ("fields", "signature"),
    [
        ({"kind": FaultKind.OOM_KILL, "text": "Memory cgroup out of memory: Killed process 7 (python)"}, "SLURM_OOM"),
        (
            {"kind": FaultKind.DISK_FULL, "text": "/tmp: 0 of 1000 bytes and 9 files left", "source": "host"},
            "NODE_DISK_FULL",
        ),
        (
            {"kind": FaultKind.STALE_MOUNT, "text": "/data has not answered for 12 s", "source": "host"},
            "NODE_MOUNT_STALE",
        ),
        (
            {"kind": FaultKind.PCIE, "text": "pcieport 0000:3a:01.0: DPC: containment event, status:0x1f01"},
            "PCIE_AER_FATAL",
        ),
        ({"kind": FaultKind.FABRIC, "text": "port mlx5_0/1 is down", "source": "host"}, "IB_PORT_EVENT"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)
async def test_other_faults_explain_a_crash_and_drain_nothing(world, diagnose, tell, fields, signature):
    """They name node and cause; isolating the node for everybody would be too much."""
    attempt = await world.failed()
    await tell(**fields)
    verdict = (await diagnose(attempt)).verdict
    assert (verdict.signature, verdict.implicated.nodes) == (signature, ("n2",))
    assert verdict.drain_nodes == ()


async def test_a_full_disk_is_no_cause_beside_one_that_the_job_names(world, diagnose, tell):
    """The program may never have needed that disk."""
    (world.folder / "train.out").write_text("[rank0]: ValueError: bad batch\n")
    attempt = await world.failed()
    await tell(kind=FaultKind.DISK_FULL, text="/tmp: 0 of 1000 bytes and 9 files left", source="host")
    found = await diagnose(attempt)
    assert [h.signature for h in found.hypotheses] == ["PY_EXCEPTION", "NODE_DISK_FULL"]


async def test_one_fault_on_two_ways_is_one_witness(world, diagnose, tell):
    """The node's kernel log is collected as well: the agent's view of the same fault adds nothing."""
    attempt = await world.failed()
    await tell(text=f"Xid (PCI:{GPU}): 79, told by NVML", source="nvml", xid=79, at=world.clock.now + 2 * SECOND)
    (world.folder / "kern-n2.log").write_text(f"{world.clock.now.isoformat()} n2 kernel: {XID_79}\n")
    found = await diagnose(attempt)
    assert [e.source for e in found.verdict.evidence] == [Source.KERNEL_LOG]
    assert found.verdict.drain_nodes == ("n2",)
    assert found.echoes == 0


async def test_the_detections_own_fault_stands_there_once(world, ref, tell):
    """It started the incident, and is in the ledger."""
    attempt = await world.train()
    await tell(xid=79)
    (found,) = await world.ledger.undelivered()
    world.slurm.fail(attempt.key.job_id)
    arg = c.DiagnoseInput(incident=ref(attempt, Interruption.GPU_FAULT), detection=found)
    diagnosis = await world.run(world.investigate.diagnose, arg)
    assert diagnosis.verdict.evidence == found.evidence


async def test_two_gpus_are_two_faults(world, diagnose, tell):
    """And two nodes too."""
    attempt = await world.failed()
    await tell()
    await tell(text=XID_79.replace("4e", "5e"), gpu="0000:5e:00")
    await tell(node="n1")
    verdict = (await diagnose(attempt)).verdict
    assert len(verdict.evidence) == 3
    assert set(verdict.drain_nodes) == {"n1", "n2"}


@pytest.mark.parametrize(("seconds", "counts"), [(-61, False), (-59, True), (9, True), (11, False)])
async def test_only_faults_around_the_interruption_count(world, diagnose, tell, seconds, counts):
    """As for kernel lines: what is older was lived with, or is another job's."""
    attempt = await world.train()
    world.clock.on(600)
    world.slurm.fail(attempt.key.job_id)
    await world.look()
    await tell(at=world.clock.now - 20 * SECOND + seconds * SECOND)
    found = await diagnose(attempt, ago=20)
    assert (found.verdict.signature == "XID_79") is counts
    assert (found.verdict.drain_nodes == ("n2",)) is counts


async def test_what_is_no_fault_of_this_attempt_is_left_out(world, diagnose, tell):
    """A node of another job, a state that is over, another job that ran out of memory, an Xid that names nothing."""
    attempt = await world.failed()
    await tell(node="n4")
    await tell(kind=FaultKind.GPU_LOST, text="GPU answers again", source="nvml", cleared=True)
    oom = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/slurm/uid_1/job_{}/step_0,task=python,pid=7,uid=1"
    await tell(kind=FaultKind.OOM_KILL, text=oom.format(attempt.key.job_id + 1))
    await tell(kind=FaultKind.NVLINK, text="NVLink replay errors rose from 0 to 900 within 5 s", source="nvml")
    assert (await diagnose(attempt)).verdict.signature == "UNKNOWN"
    await tell(kind=FaultKind.OOM_KILL, text=oom.format(attempt.key.job_id))
    assert (await diagnose(attempt)).verdict.signature == "SLURM_OOM"


async def test_a_mounts_name_makes_no_other_fault_of_it(world, diagnose, tell):
    """Whoever may mount a file system names it: only its kind is read from such a fault."""
    attempt = await world.failed()
    await tell(kind=FaultKind.STALE_MOUNT, text=f"/home/eve/{XID_79}: Stale file handle", source="host")
    found = await diagnose(attempt)
    assert [h.signature for h in found.hypotheses] == ["NODE_MOUNT_STALE"]
    assert found.verdict.drain_nodes == ()


async def test_a_silent_node_is_the_cause_of_a_crash_that_came_first(world, diagnose):
    """The other ranks gave up before Slurm did: the retry keeps off the node, and nothing is drained."""
    (world.folder / "train.out").write_text("[rank0]: ncclRemoteError: A call failed possibly due to a network error\n")
    attempt = await world.failed()
    silent = Evidence(source=Source.AGENT, text="n2 is silent", signature="NODE_SILENT", node="n2")
    found = await diagnose(attempt, Interruption.NODE_LOST, told=(silent,))
    assert (found.verdict.signature, found.verdict.implicated.nodes) == ("SLURM_NODE_FAIL", ("n2",))
    assert silent in found.verdict.evidence
