"""What node agents tell counts as the platform's word on their node, once, and only near the interruption."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.attribution.engine import diagnose
from relight.attribution.sources import Context, Told
from relight.domain.diagnosis import Action
from relight.domain.evidence import Source, Trust
from relight.domain.slurm import JobState

AT = datetime(2026, 11, 30, 9, 31, tzinfo=UTC)
CONTEXT = Context(nodes=("n1", "n2", "n3"), interrupted_at=AT, state=JobState.FAILED)
SECOND = timedelta(seconds=1)
GPU = "0000:1b:00"
TEXT = f"NVRM: Xid (PCI:{GPU}): 79, pid=7, GPU has fallen off the bus."


def told(**fields):
    """An Xid 79 on n2, 1 s before the interruption."""
    given = {"node": "n2", "kind": Source.NVML, "signature": "XID_79", "text": TEXT, "at": AT - SECOND, "gpu": GPU}
    return Told(**{**given, **fields})


def test_it_is_the_cause_beside_what_the_ranks_print(job_log):
    """The echoes of a lost GPU in the job's output do not hide it."""
    echo = "[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    verdict = diagnose([job_log(echo)], CONTEXT, told=[told()]).verdict
    assert (verdict.signature, verdict.action) == ("XID_79", Action.RESTART_EXCLUDING_NODE)
    assert (verdict.implicated.nodes, verdict.implicated.gpus, verdict.drain_nodes) == (("n2",), (GPU,), ("n2",))
    (evidence,) = verdict.evidence
    assert (evidence.trust, evidence.file, evidence.line, evidence.at) == (Trust.PLATFORM, None, None, AT - SECOND)


@pytest.mark.parametrize(
    ("fields", "witnesses"),
    [
        ({}, 1),
        ({"at": AT + 9 * SECOND}, 1),
        ({"gpu": ""}, 1),
        ({"gpu": "00000000:1B:00.0"}, 1),
        ({"at": AT - 12 * SECOND}, 2),
        ({"gpu": "0000:2b:00"}, 2),
        ({"node": "n3"}, 2),
    ],
)
def test_what_the_kernel_log_has_counts_once(kernel_log, fields, witnesses):
    """The same fault of the same GPU on the same node, within seconds; all else is a fault of its own."""
    line = f"{AT.isoformat()} n2 kernel: {TEXT}"
    found = diagnose([kernel_log("n2", line)], CONTEXT, told=[told(**fields)])
    assert len(found.verdict.evidence) == witnesses


def test_job_text_does_not_swallow_an_agents_word(job_log):
    """A program that prints the very line leaves the witness what it is."""
    printed = f"{(AT - SECOND).isoformat()} n2 kernel: {TEXT}"
    verdict = diagnose([job_log(printed)], CONTEXT, told=[told()]).verdict
    assert verdict.drain_nodes == ("n2",)
    assert {e.trust for e in verdict.evidence} == {Trust.PLATFORM, Trust.JOB}


@pytest.mark.parametrize("context", [Context(nodes=("n1", "n3"), interrupted_at=AT), Context(nodes=("n2",))])
def test_outside_of_allocation_or_time_nothing_is_drained(context):
    """A node that is not the job's; an interruption whose time is not known."""
    assert diagnose([], context, told=[told()]).verdict.drain_nodes == ()


def test_a_kind_that_isolates_no_node_does_not_do_so_by_an_agent():
    """Xid 31 is the program's."""
    verdict = diagnose([], CONTEXT, told=[told(signature="XID_13_31_43", text=TEXT.replace("79", "31"))]).verdict
    assert (verdict.signature, verdict.drain_nodes) == ("XID_13_31_43", ())
