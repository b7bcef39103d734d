"""Evidence added up: which nodes are left out of the job's retry, and which are not."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.engine import diagnose
from relight.attribution.sources import Context, Neighbour, NodeFailure, PriorFailure, Recorded, Seat
from relight.attribution.weights import weights
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Interruption

AT = datetime(2026, 11, 30, 9, 31, tzinfo=UTC)
NODES = tuple(f"n{number}" for number in range(1, 9))
SEATS = {rank: Seat(node=f"n{rank // 2 + 1}", gpu=str(rank % 2)) for rank in range(16)}
CONTEXT = Context(nodes=NODES, rank_map=SEATS, interrupted_at=AT, interruption=Interruption.CRASH)
ECC = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "[rank5]: CUDA error: an illegal memory access was encountered"
EARLIER = {"node": "n3", "signature": "XID_79", "at": AT - timedelta(days=2)}


SICK = PriorFailure(signature="XID_79", nodes=("n3",))


def given_(**fields):
    """The context with more known."""
    return CONTEXT.model_copy(update=fields)


def named_by(count, peer="n3"):
    """Lines of so many nodes that a peer reset its connections."""
    line = "n{}:9:9 [0] NCCL WARN Call to recv from {}<41000> failed : Connection reset by peer"
    return [line.format(number, peer) for number in (1, 2, 4, 5, 6, 7, 8)[:count]]


def waiting(but):
    """What all ranks print that wait in vain, except some."""
    head = "[rank{0}]:[E1130 09:31:00.4 P.cpp:6] [PG ID 0 PG GUID 0(default_pg) Rank {0}]"
    line = f"{head} Watchdog caught collective operation timeout"
    return [line.format(rank) for rank in SEATS if rank not in but]


@pytest.mark.parametrize(
    ("lines", "context", "isolated"),
    [
        ([ECC], CONTEXT, ("n3",)),
        ([ILLEGAL], CONTEXT, ()),
        ([ILLEGAL], given_(node_history=(NodeFailure(**EARLIER, proven=True),)), ("n3",)),
        ([ILLEGAL], given_(node_history=(NodeFailure(**EARLIER, own=True),)), ("n3",)),
        ([ILLEGAL], given_(node_history=(NodeFailure(**EARLIER),)), ()),
        ([ILLEGAL], given_(history=(PriorFailure(signature="OTHER", nodes=("n3",)),)), ("n3",)),
        (
            ["CUDA out of memory. Tried to allocate 2 GiB"],
            given_(history=(PriorFailure(signature="XID_79", nodes=("n3",)),)),
            ("n3",),
        ),
        (named_by(1), CONTEXT, ()),
        (named_by(7), CONTEXT, ()),
        (named_by(4), given_(node_history=(NodeFailure(**EARLIER, proven=True),)), ("n3",)),
        ([*named_by(4), *waiting(but=(4, 5))], CONTEXT, ("n3",)),
        (waiting(but=(4, 5)), CONTEXT, ()),
    ],
)
def test_what_is_enough(job_log, lines, context, isolated):
    """One self-proving line, or two kinds of evidence from 0.8: a root line and a proven history, peers and silence."""
    diagnosis = diagnose([job_log(*lines)], context)
    excluded = diagnosis.verdict.action is Action.RESTART_EXCLUDING_NODE
    assert (diagnosis.verdict.implicated.nodes if excluded else ()) == isolated
    assert tuple(one.node for one in diagnosis.suspects if one.isolate) == isolated
    assert not any(one.drain_nodes for one in diagnosis.hypotheses)


def test_another_cause_does_not_leave_a_node_out(job_log):
    """What the job prints of a cause that is not the verdict is not enough; what the platform tells is."""
    watched = "n1:9:9 [0] NCCL WARN NET/IB : Got completion from peer n5<9> with status=12 opcode=0"
    weaker = "[rank5]: CUDA error: unspecified launch failure"
    verdict = diagnose([job_log(watched, weaker)], CONTEXT).verdict
    assert (verdict.signature, verdict.action) == ("IB_WC_RETRY_EXC", Action.RESTART)


def test_a_suspect_says_why(job_log):
    """Score and reasons, the heaviest first; the most suspect node first."""
    context = given_(node_history=(NodeFailure(**EARLIER, proven=True),))
    first, *_ = diagnose([job_log(*named_by(2), *waiting(but=(4,)))], context).suspects
    assert (first.node, first.score, first.isolate) == ("n3", 0.8, True)
    assert first.why == (
        "named by 2 others",
        "Rank 4 said nothing while the others waited.",
        "behind an earlier incident",
    )


def test_a_refused_connection_alone_leaves_nobody_out(job_log):
    """The node that refuses may be healthy and its process gone; without an allocation the words stand for a person."""
    line = "n2:9:9 [0] NCCL WARN Connect to n3<56821> failed : Connection refused"
    verdict = diagnose([job_log(line)], CONTEXT).verdict
    assert (verdict.action, verdict.implicated.nodes) == (Action.RESTART, ())
    assert "Not enough speaks against n3" in verdict.summary
    assert diagnose([job_log(line)]).verdict.action is Action.RESTART_EXCLUDING_NODE


OTHERS = [Neighbour(lineage=f"j{number}", user=f"u{number % 2}", nodes=(f"m{number}",)) for number in range(3)]


@pytest.mark.parametrize(
    ("spread", "action"),
    [
        (OTHERS, Action.RESTART),
        (OTHERS[:2], Action.RESTART_EXCLUDING_NODE),
        ([one.model_copy(update={"user": "u0"}) for one in OTHERS], Action.RESTART_EXCLUDING_NODE),
        ([one.model_copy(update={"nodes": ("n3",)}) for one in OTHERS], Action.RESTART_EXCLUDING_NODE),
    ],
)
def test_what_all_jobs_have_is_no_nodes_fault(job_log, spread, action):
    """Several users' jobs on other nodes, interrupted at the same time: nobody is left out for it."""
    line = "n3:9:9 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
    verdict = diagnose([job_log(line)], given_(spread=tuple(spread))).verdict
    assert (verdict.category, verdict.action) == (Category.NETWORK, action)


def test_other_kinds_of_evidence_make_it_surer(job_log):
    """A verdict whose node has failed before, as the platform found, is more confident; never certain."""
    context = given_(node_history=(NodeFailure(**EARLIER, proven=True),))
    alone, backed = (diagnose([job_log(ECC)], each).verdict.confidence for each in (CONTEXT, context))
    assert alone < backed < 1


def test_dumps_know_most_of_a_stall(job_log):
    """Their ranks and words come before what logs say; a mismatch is the program's error."""
    context = given_(interruption=Interruption.HANG)
    told = Recorded((9,), "Rank 9 never began number 4.")
    quiet = diagnose([job_log("all quiet")], context, recorded=[told]).verdict
    assert (quiet.signature, quiet.implicated.ranks, quiet.implicated.nodes) == ("HANG_NO_LOG", (9,), ("n5",))
    assert "Rank 9 never began number 4." in quiet.summary
    watched = diagnose([job_log(*waiting(but=(4,)))], context, recorded=[told]).verdict
    assert (watched.signature, watched.implicated.ranks) == ("NCCL_WATCHDOG_TIMEOUT", (9,))
    odd = diagnose([job_log(*waiting(but=(4,)))], context, recorded=[told._replace(mismatch=True)]).verdict
    assert (odd.signature, odd.action, odd.implicated.ranks) == ("COLLECTIVE_MISMATCH", Action.STOP, (9,))


LINES = [
    ECC,
    ILLEGAL,
    *named_by(3),
    *waiting(but=(4, 5)),
    "Nov 30 09:30:59 n3 kernel: NVRM: Xid (PCI:0000:1b:00): 79, gone",
]
HISTORY = st.lists(
    st.builds(
        NodeFailure,
        node=st.sampled_from(NODES),
        signature=st.just("XID_79"),
        at=st.just(AT),
        own=st.booleans(),
        proven=st.booleans(),
    ),
    max_size=4,
)


@given(st.lists(st.sampled_from(LINES), max_size=20), HISTORY, st.lists(st.integers(0, 15), max_size=3))
def test_no_sum_drains(job_log, lines, history, ranks):
    """Whatever ranks print, dumps record and history holds: without a platform's word nothing is drained."""
    context = given_(node_history=tuple(history), history=(PriorFailure(signature="CUDA_ECC", nodes=("n3",)),))
    diagnosis = diagnose([job_log(*lines)], context, recorded=[Recorded(tuple(ranks), "said")])
    assert not any(one.drain_nodes for one in diagnosis.hypotheses)
    excluded = diagnosis.verdict.implicated.nodes if diagnosis.verdict.action is Action.RESTART_EXCLUDING_NODE else ()
    assert set(excluded) <= {one.node for one in diagnosis.suspects if one.isolate}


def test_the_weights_say_what_the_rules_need():
    """One earlier incident lifts a root line over the threshold; peers alone never reach it."""
    against, isolate = weights().against_a_node, weights().isolate
    assert against.root_line < isolate.from_score <= against.root_line + against.earlier_incident
    assert against.named_at_most < isolate.from_score <= against.same_again + against.earlier_incident
    assert against.silent_or_behind + against.earlier_incident < isolate.from_score <= against.self_proving
