"""Power that fell away is a witness of a hang; a utilisation of 100 % is none."""

from datetime import UTC, datetime

import pytest

from relight.domain.evidence import Source, Trust
from relight.domain.power import (
    LEAST_SAMPLES,
    ODD_GPU,
    POWER_FELL,
    SAMPLES,
    Levels,
    judge,
    still_work,
    watts_of,
    with_beat,
)
from relight.domain.reports import GpuNow

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def node(*watts, busy=1.0):
    """What its GPUs do; None: the driver does not say."""
    shares = busy if isinstance(busy, tuple) else (busy,) * len(watts)
    return [
        GpuNow(gpu=f"0000:{n:02x}:00", power_w=w, utilisation=share)
        for n, (w, share) in enumerate(zip(watts, shares, strict=True))
    ]


def trained(*watts, samples=LEAST_SAMPLES):
    """The baseline of a node that drew so much in each sample."""
    levels = Levels()
    for _ in range(samples):
        levels = levels.with_sample(watts_of("n1", node(*watts)))
    return levels


def told(levels, *beats):
    """What the beats since the suspicion tell."""
    held = {}
    for beat in beats:
        held = with_beat(held, "n1", beat)
    return judge(levels, held, NOW)


def test_a_spinning_collective_draws_little_at_full_utilisation():
    """As reported of H100: 100 W instead of 600, at 100 %."""
    spins = node(*((100,) * 8))
    (found,) = told(trained(*((600,) * 8)), spins, spins)
    assert (found.signature, found.source, found.node) == (POWER_FELL, Source.NVML, None)
    assert found.text == ("power of 8 of 8 GPUs fell: 100 W instead of 600 W (medians), at a utilisation of 100%")


@pytest.mark.parametrize(
    "now",
    [
        node(*((600,) * 4)),  # it works on: a longer step, or a line that came late
        node(*((300,) * 4)),  # a phase that needs less
        node(560, 100, 100, 100),  # rank 0 evaluates, the others wait for it
        node(100, 280, 280, 280),  # most have not fallen
        node(None, None, None, None),
    ],
)
def test_power_that_has_not_fallen_on_most_or_is_kept_by_one_is_no_witness(now):
    """Unknown stays unknown."""
    assert told(trained(*((600,) * 4)), now, now) == ()


def test_one_moment_is_not_enough():
    """A single beat may fall into a gap; and one high beat since the suspicion refutes the low ones."""
    levels, low, high = trained(600, 600), node(100, 100), node(590, 100)
    assert told(levels, low) == ()
    assert told(levels, low, high, low) == ()


def test_without_a_baseline_nothing_is_told():
    """After a minute of training."""
    low = node(100, 100)
    assert told(trained(600, 600, samples=LEAST_SAMPLES - 1), low, low) == ()


def test_gpus_that_the_attempt_does_not_use_say_nothing():
    """Idle all along, beside those that trained: they neither fell nor work."""
    spins = node(100, 100, 70, 70)
    (found,) = told(trained(600, 600, 70, 70), spins, spins)
    assert "2 of 2 GPUs" in found.text


def test_when_most_gpus_are_out_of_sight_nothing_is_told():
    """The agents of the other nodes are silent."""
    levels = Levels()
    for _ in range(LEAST_SAMPLES):
        levels = levels.with_sample(watts_of("n1", node(600, 600)) | watts_of("n2", node(600, 600)))
    low = node(100, 100)
    assert told(levels, low, low) == ()


def test_the_baseline_is_of_the_last_minutes_and_survives_checkpoints():
    """A median: dips do not lower it; and a job that draws less than it did is compared with that."""
    levels = trained(600, samples=SAMPLES)
    for n in range(SAMPLES):
        levels = levels.with_sample(watts_of("n1", node(80 if n % 4 == 0 else 300)))
    assert levels.baselines() == {("n1", "0000:00:00"): 300}
    assert len(levels.rows) == SAMPLES


def test_gpus_may_come_and_go():
    """A driver that says nothing for a while, a node whose agent starts late."""
    levels = trained(None, 600)
    for _ in range(LEAST_SAMPLES):
        levels = levels.with_sample(watts_of("n1", node(500, None)))
    assert levels.baselines() == {("n1", "0000:00:00"): 500, ("n1", "0000:01:00"): 600}


def test_the_gpu_that_does_nothing_while_the_others_spin_is_named():
    """With its node. What a GPU does is what its program lets it do: this condemns no node."""
    now = node(*((110,) * 7), 72, busy=((1.0,) * 7 + (0.0,)))
    fell, odd = told(trained(*((600,) * 8)), now, now)
    assert fell.signature == POWER_FELL
    assert (odd.signature, odd.node, odd.gpu, odd.trust) == (ODD_GPU, "n1", "0000:07:00", Trust.JOB)
    assert odd.text == "GPU 0000:07:00 of n1 does nothing (72 W) while 7 others spin"


def test_where_all_do_nothing_none_is_the_odd_one():
    """They wait for something outside of their GPUs."""
    now = node(*((72,) * 8), busy=0.0)
    assert [each.signature for each in told(trained(*((600,) * 8)), now, now)] == [POWER_FELL]


@pytest.mark.parametrize(
    ("beats", "works"),
    [
        ([node(600, 100)], True),  # one is enough: the others wait for it
        ([node(100, 100), node(500, 100)], True),  # at any time since the suspicion
        ([node(450, 100)], False),
        ([node(600, 600, busy=0.0)], False),  # not used at all, whatever it draws
        ([node(600, 600, busy=float("nan"))], True),  # how busy it is, is not known
        ([node(None, None)], False),
        ([], False),
    ],
)
def test_a_gpu_that_does_what_it_did_works(beats, works):
    """An evaluation may need less; a hang needs next to nothing."""
    held = {}
    for beat in beats:
        held = with_beat(held, "n1", beat)
    assert still_work(trained(600, 600), held) is works
    assert not still_work(Levels(), held)
