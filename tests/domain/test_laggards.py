"""Ranks that stand out are told by what they do without the others."""

import math
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.evidence import Source
from relight.domain.laggards import PEERS, SLOW_RANK, STEPS, Peers, Ranks, RankTime, with_times


def run(slow, *, ranks=16, steps=40, noise=0.03, seed=1, peers=None):
    """The peers after steps in which `slow` (rank to factor) take longer."""
    rng = Random(seed)  # noqa: S311
    peers = peers or Peers()
    for _ in range(steps):
        peers = with_times(peers, {str(n): slow.get(n, 1.0) * math.exp(rng.gauss(0, noise)) for n in range(ranks)})
    return peers


def names(peers):
    return [each.who for each in peers.laggards]


@pytest.mark.parametrize("factor", [1.15, 1.5, 4.0])
def test_a_slow_rank_is_named(factor):
    """With how much slower it is."""
    (found,) = run({5: factor}).laggards
    assert found.who == "5"
    assert found.ratio == pytest.approx(factor, rel=0.12 if factor < 2 else 0.6)


def test_the_slowest_comes_first():
    """Where two stand out."""
    assert names(run({3: 1.3, 9: 1.6})) == ["9", "3"]


@given(st.integers(0, 10**6))
def test_equal_ranks_have_no_laggard(seed):
    """Noise names nobody."""
    assert run({}, seed=seed).laggards == ()


def test_synchronous_step_times_name_nobody():
    """Everybody waits for the slowest: all are as slow as it is."""
    assert run(dict.fromkeys(range(16), 2.0), noise=0.0).laggards == ()


def test_among_uneven_peers_a_tenth_is_nothing():
    """Who is no further out than the others are apart does not stand out."""
    uneven = {n: 1 + 0.03 * n for n in range(16)}
    assert run(uneven, noise=0.0).laggards == ()


def test_one_slow_step_names_nobody():
    """It has to last."""
    peers = run({}, steps=10)
    assert run({5: 50.0}, steps=2, peers=peers).laggards == ()
    assert names(run({5: 1.5}, steps=STEPS + 5, peers=peers)) == ["5"]


def test_who_recovers_is_a_laggard_no_more():
    """And costs no memory any more."""
    peers = run({}, steps=60, noise=0.0, peers=run({5: 1.5}))
    assert (peers.laggards, peers.lags) == ((), {})


def test_few_peers_are_unknown():
    """With two or three ranks nobody can say who is the odd one."""
    assert run({1: 2.0}, ranks=PEERS - 1).laggards is None
    assert run({1: 2.0}, ranks=PEERS).laggards is not None


def test_two_kinds_of_ranks_are_unknown():
    """A third of all is not a crowd's laggard: pipeline stages do different work."""
    assert run(dict.fromkeys(range(5), 1.5)).laggards is None


def test_times_that_are_none_are_left_out():
    """A rank that reports nothing usable is not judged."""
    times = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 0.0, "f": math.nan, "g": math.inf}
    peers = Peers()
    for _ in range(50):
        peers = with_times(peers, times)
    assert (peers.laggards, peers.lags) == ((), {})


# --- lines of ranks ---

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def lines(steps, *, slow=(), nodes=None, order=None):
    """A line for each rank and step; those of `slow` compute half as long again."""
    told = [
        RankTime(step, rank, 1.5 if rank in slow else 1.0, nodes and nodes[rank]) for step in steps for rank in range(8)
    ]
    return sorted(told, key=order) if order else told


@pytest.mark.parametrize("order", [None, lambda t: (t.step + (t.rank == 5), t.rank), lambda t: (t.step, -t.rank)])
def test_lines_of_ranks_come_in_any_order(order):
    """A slow rank's line comes a step late: it is named all the same, with the node it says."""
    nodes = [f"n{rank // 4 + 1}" for rank in range(8)]
    ranks = Ranks()
    for line in lines(range(30), slow=(5,), nodes=nodes, order=order):
        ranks = ranks.with_times([line])
    (found,) = ranks.evidence(NOW)
    assert (found.source, found.signature, found.rank, found.node) == (Source.PROGRESS, SLOW_RANK, 5, "n2")
    assert found.text.startswith("rank 5 computes 5")
    assert "% longer than its peers, for 2" in found.text


def test_after_a_return_to_a_checkpoint_ranks_are_compared_again():
    """And no step is compared twice: a line that comes too late counts for nothing."""
    ranks = Ranks().with_times(lines(range(100, 120)))
    assert ranks.with_times(lines([110], slow=(5,))) == ranks
    assert [each.rank for each in ranks.with_times(lines(range(40, 70), slow=(5,))).evidence(NOW)] == [5]


def test_equal_ranks_tell_nothing_and_memory_is_bounded():
    """No more steps are open than ranks can be apart."""
    ranks = Ranks().with_times(lines(range(1000)))
    assert ranks.evidence(NOW) == ()
    assert len(ranks.steps) == 2
