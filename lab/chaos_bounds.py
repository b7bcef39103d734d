"""How rare a thing is that was seen so often in so many trials: the upper end of what the trials leave possible."""

from math import comb

SURE = 0.95
_HALVINGS = 60


def at_most(times: int, trials: int, rate: float) -> float:
    """Return the probability of no more than so many events in so many trials, each with that rate."""
    return sum(comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(times + 1))


def upper_bound(times: int, trials: int, sure: float = SURE) -> float:
    """Return the greatest rate that is not excluded with that certainty: Clopper and Pearson's exact one-sided bound.

    0 of 200 gives 1.49 %. Without any trials nothing is known: 1.

    Raises:
        ValueError: more events than trials, or fewer than none.
    """
    if not 0 <= times <= trials:
        raise ValueError(f"{times} of {trials} trials")
    if times == trials:
        return 1.0
    low, high = times / trials, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(times, trials, middle) > 1 - sure else (low, middle)
    return high
