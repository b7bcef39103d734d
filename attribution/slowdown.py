"""A fall of the training speed that the step lines tell by themselves, where no line says why."""

from collections.abc import Callable, Sequence

from relight.attribution.facts import Facts
from relight.attribution.progress import StepMark
from relight.domain.base import clip
from relight.domain.diagnosis import Action, Category, Hypothesis
from relight.domain.evidence import Evidence

SLOWER = 1.25
"""All newest steps take this many times the slowest step before them: single slow steps are ordinary."""
LEAST_SLOW = 2
"""So many newest steps are slow."""
WARM_UP = 5
"""Steps up to this one tell no speed."""
_SPEEDS: tuple[Callable[[StepMark], float | None], ...] = (
    lambda mark: mark.tflops,
    lambda mark: mark.tokens_per_second,
    lambda mark: mark.samples_per_second,
    lambda mark: 1 / mark.seconds if mark.seconds else None,
)
"""What is compared, the best first: throughput stays the same where batches or sequences grow."""


def slowed(facts: Facts) -> Hypothesis | None:
    """PERF_THROUGHPUT_DROP where training went on, but from some step on all steps were slower; else None.

    Only of a log by itself: where a watcher or Slurm has seen the end, that is what has to be explained.
    """
    if facts.ended_badly:
        return None
    for scan in facts.scans:
        marks = [line.mark for line in scan.steps if line.mark.step > WARM_UP]
        if fell := _fell(_speeds(marks)):
            before, after = fell
            text = clip(f"step {marks[-1].step}: {after:g}, before it {before:g}", 600)
            return Hypothesis(
                signature="PERF_THROUGHPUT_DROP",
                category=Category.STRAGGLER,
                action=Action.RESTART_EXCLUDING_NODE,
                action_if_it_repeats=Action.RESTART_EXCLUDING_NODE,
                confidence=0.3,
                summary=f"Training slowed down to {after / before:.0%} of its speed and stayed there: "
                "one slow GPU, node or link that the log does not name.",
                evidence=(Evidence(source=scan.source.kind, text=text, file=scan.source.name),),
            )
    return None


def _speeds(marks: Sequence[StepMark]) -> Sequence[float]:
    """The speed of each step, by the best measure that all of them have."""
    for speed in _SPEEDS:
        speeds = [number for mark in marks if (number := speed(mark))]
        if len(speeds) == len(marks):
            return speeds
    return ()


def _fell(speeds: Sequence[float]) -> tuple[float, float] | None:
    """The slowest speed before the fall and the fastest after it; None: it did not fall, or it came back."""
    for place in range(1, len(speeds) - LEAST_SLOW + 1):
        before, after = min(speeds[:place]), max(speeds[place:])
        if after * SLOWER <= before:
            return before, after
    return None
