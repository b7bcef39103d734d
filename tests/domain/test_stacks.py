"""Stacks of ranks, taken twice: who stands still, and who stands elsewhere. Frames as the real py-spy prints them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.evidence import Trust
from relight.domain.reports import ProbeAnswer, ProcessStack
from relight.domain.stacks import (
    ODD_RANK,
    STACKS_AT_WORK,
    STACKS_IDENTICAL,
    STACKS_MOVE,
    Pair,
    RankStack,
    judge,
    odd_ranks,
    place,
)

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
MAIN = ("train (lab/trainer.py:46)", "main (lab/trainer.py:32)", "<module> (lab/trainer.py:169)")
INSIDE = (
    "_exactly (lab/collectives.py:112)",
    "receive (lab/collectives.py:105)",
    "Star._receive (lab/collectives.py:67)",
)
PEER = (
    *INSIDE,
    "Star._exchange (lab/collectives.py:52)",
    "Star.sum (lab/collectives.py:33)",
    *("step (engine.py:42)", *MAIN),
)
ROOT = (*INSIDE, "Star._exchange.<locals>.<genexpr> (lab/collectives.py:53)", *PEER[3:])
"""Of rank 0, which receives from all others: elsewhere within the same collective."""
BACKWARD = (
    "_engine_run_backward (torch/autograd/graph.py:979)",
    "backward (torch/autograd/__init__.py:395)",
    "TorchModel.step (lab/torch_engine.py:41)",
    *MAIN,
)
LOADING = ("spin (lab/trainer.py:152)", "load_batch (lab/trainer.py:133)", "train (lab/trainer.py:45)", *MAIN[1:])
STOPPED = ("train (lab/trainer.py:48)", *MAIN[1:])
SAVING = ("_save (torch/serialization.py:973)", "save (torch/serialization.py:651)", "save (ckpt.py:8)", *MAIN)
REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2510)", "wrapper (torch/distributed/c10d_logger.py:81)")


def ranks(*frames, per_node=2):
    """A rank for each, block by block on nodes."""
    return [RankStack(n, f"n{n // per_node + 1}", 100 + n, each) for n, each in enumerate(frames)]


def answers(stacks, at=NOW):
    """What the agents of their nodes answer."""
    by_node = {}
    for stack in stacks:
        each = ProcessStack(pid=stack.pid, rank=stack.rank, frames=stack.frames, state=stack.held)
        by_node.setdefault(stack.node, []).append(each)
    return {node: ProbeAnswer(id="p", at=at, stacks=tuple(each)) for node, each in by_node.items()}


def told(before, after=None, *, apart=6.0, asked=None, drop=()):
    """What two looks tell; of the nodes in `drop` there is no second answer."""
    first = answers(before)
    second = answers(after or before, NOW + timedelta(seconds=apart))
    pairs = [Pair(node, first[node], second[node]) for node in first if node not in drop]
    return judge(pairs, asked or len(first), NOW)


def signatures(*arguments, **options):
    return [each.signature for each in told(*arguments, **options)]


@pytest.mark.parametrize("odd", [LOADING, STOPPED])
@pytest.mark.parametrize("others", [(ROOT, PEER, PEER), (BACKWARD,) * 3], ids=["numpy", "torch"])
def test_a_hang_of_four_ranks(others, odd):
    """As seen on a real cluster with both engines: nobody moves, and the one who does not wait is named."""
    still, named = told(ranks(*others, odd))
    assert still.signature == STACKS_IDENTICAL
    assert "no Python stack of 4 ranks on 2 nodes changed within 6 s" in still.text
    assert (named.signature, named.rank, named.node) == (ODD_RANK, 3, "n2")
    assert named.text.startswith(f"rank 3 on n2 is in {odd[0]} < {odd[1]}")
    assert "while 3 others, such as rank 0, are in " in named.text


def test_what_a_program_shows_has_the_trust_of_a_job():
    """It can call its functions anything: no such evidence may drain a node."""
    assert {each.trust for each in told(ranks(PEER, PEER, PEER, LOADING))} == {Trust.JOB}


def test_who_moves_is_no_witness():
    """Although the others wait; and it is named as the odd one all the same."""
    moved = ("spin (lab/trainer.py:151)", *LOADING[1:])
    first, named = told(ranks(PEER, PEER, PEER, LOADING), ranks(PEER, PEER, PEER, moved))
    assert (first.signature, named.signature, named.rank) == (STACKS_MOVE, ODD_RANK, 3)
    assert first.text.endswith("of 1 changed within 6 s: rank 3")


def test_another_process_of_the_same_rank_has_moved():
    """It was started anew in between."""
    again = [stack._replace(pid=7) for stack in ranks(PEER)]
    assert signatures(ranks(PEER), again) == [STACKS_MOVE]


def test_a_rank_that_writes_may_be_at_work():
    """A large checkpoint stands at one line for long, and all others wait for it."""
    still, named = told(ranks(SAVING, *(((*REDUCE, *MAIN),) * 3)))
    assert still.signature == STACKS_AT_WORK
    assert "rank 0 may be at work: _save (torch/serialization.py:973)" in still.text
    assert (named.signature, named.rank) == (ODD_RANK, 0)


def test_who_writes_within_a_collective_of_the_checkpoint_is_at_work():
    """`torch.distributed.checkpoint` writes inside of a function that it calls `all_reduce`, as seen."""
    frames = json.loads(Path(__file__).with_name("recorded_stacks.json").read_text())["at_work"]
    writes = tuple(frames["torch.distributed.checkpoint.save"])
    assert place(writes).waits == 0
    assert signatures(ranks(writes, *((REDUCE,) * 3)))[0] == STACKS_AT_WORK


def test_ranks_that_all_wait_within_a_checkpoint_are_not_at_work():
    """A barrier in it that nobody leaves."""
    frames = ("barrier (torch/distributed/distributed_c10d.py:4700)", *SAVING[1:])
    assert signatures(ranks(*((frames,) * 4))) == [STACKS_IDENTICAL]


@pytest.mark.parametrize(("asked", "wanted"), [(2, STACKS_IDENTICAL), (3, STACKS_IDENTICAL), (4, None)])
def test_half_of_the_nodes_prove_nothing(asked, wanted):
    """The one that moves may be on the others."""
    assert signatures(ranks(*((PEER,) * 4)), asked=asked) == [wanted]


def test_looks_that_are_too_close_tell_nothing():
    """An agent that knows of no second look takes both at once."""
    assert told(ranks(PEER, PEER), apart=1.0) == ()


def test_what_was_not_seen_is_unknown():
    """No stack, no rank, a launcher that claims a rank: neither same nor different."""
    one = ProcessStack(pid=1, rank=0, frames=PEER)
    others = (
        ProcessStack(pid=2, rank=1, problem="py-spy took longer than 5 s"),
        ProcessStack(pid=3, rank=None, frames=("wait (subprocess.py:1264)",)),
        ProcessStack(pid=4, rank=2, frames=PEER),
        ProcessStack(pid=5, rank=2, frames=("wait (subprocess.py:1264)",)),
    )
    first = ProbeAnswer(id="p", at=NOW, stacks=(one, *others))
    second = first.model_copy(update={"at": NOW + timedelta(seconds=6)})
    (still,) = judge([Pair("n1", first, second)], 1, NOW)
    assert still.signature is None
    assert still.text == "no Python stack of 1 rank on 1 node changed within 6 s, but 2 ranks could not be looked at"
    assert judge([Pair("n1", first.model_copy(update={"stacks": others}), second)], 1, NOW) == ()


def test_the_crowd_names_who_is_elsewhere():
    """Whatever it is in: here all wait for their GPUs, in the user's own code, and one for its data."""
    item, data = ("loss_of (train.py:80)", *MAIN), ("_try_get_data (torch/utils/data/dataloader.py:1251)", *MAIN)
    assert [stack.rank for stack in odd_ranks(ranks(*((item,) * 5), data, item))] == [5]


def test_whom_the_kernel_holds_is_the_odd_one():
    """Stopped in the middle of a collective, it looks like the others: its state does not. Not where most are held."""
    stacks = ranks(ROOT, PEER, PEER, PEER)
    held = [stack._replace(held="stopped") for stack in stacks]
    assert odd_ranks([*stacks[:3], held[3]]) == (held[3],)
    assert odd_ranks(held) == ()
    _, named = told([*stacks[:3], held[3]])
    assert (named.rank, named.text[:36]) == (3, "rank 3 on n2 is stopped in _exactly ")


def test_who_waits_for_the_crowd_is_not_the_odd_one():
    """One got ahead of the others, who are late."""
    data = ("_try_get_data (torch/utils/data/dataloader.py:1251)", *MAIN)
    assert odd_ranks(ranks(*((data,) * 7), (*REDUCE, *MAIN))) == ()


def test_two_collectives_in_one_function_are_told_apart_by_line():
    """The classic mismatch: one rank took the other branch."""
    here, there = (*REDUCE, "step (train.py:42)"), (*REDUCE, "step (train.py:50)")
    assert [stack.rank for stack in odd_ranks(ranks(*((here,) * 9), there))] == [9]


def test_stages_of_a_pipeline_are_no_odd_ones():
    """Four places with a quarter of the ranks each."""
    stages = [(f"stage_{n % 4} (train.py:{n % 4})", *MAIN) for n in range(16)]
    assert odd_ranks(ranks(*stages)) == ()


def test_a_whole_node_is_told_as_one():
    """Its ranks wait for the same thing."""
    _, named = told(ranks(*((BACKWARD,) * 30), LOADING, LOADING))
    assert (named.rank, named.node) == (None, "n16")
    assert named.text.startswith("ranks 30, 31 on n16 are elsewhere, rank 30 in spin")


def test_evidence_has_room():
    """Names of any length, ranks by the hundred."""
    long = ("f" * 180 + " (x.py:1)",) * 64
    before = ranks(*((long,) * 200), per_node=8)
    for each in (*told(before), *told(before, ranks(*((PEER,) * 200), per_node=8))):
        assert len(each.text) <= 600


@given(st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=5), min_size=1, max_size=9))
def test_frames_may_be_anything(frames):
    """A program's names are not ours to trust; a crowd of equal ranks never has an odd one."""
    stacks = ranks(*(tuple(each) for each in frames))
    assert len(odd_ranks(stacks)) < max(2, len(stacks))
    assert odd_ranks(ranks(*([tuple(frames[0])] * len(frames)))) == ()
    place(tuple(frames[0]))
