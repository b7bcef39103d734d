"""Checkpoints: what was found, and what it means: which is the newest whole one, and what a restart would take.

*Whole* is yes, no or unknown, like every look at the outside. A checkpoint that is not known to be whole is never
taken for whole, and one that is not known to be damaged is never passed over.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from statistics import median_low

from relight.domain.base import Value, few
from relight.domain.checkpoint_formats import Format
from relight.domain.checkpoint_survey import Checkpoint, HowNamed, Root, Series, Space, Survey, Tracker
from relight.domain.evidence import Answer

__all__ = [
    "CLOCKS_APART",
    "RULES",
    "TRACKER_NAMES",
    "Checkpoint",
    "Choice",
    "Format",
    "HowNamed",
    "Root",
    "Rule",
    "Series",
    "Space",
    "Survey",
    "Tracker",
    "age",
    "choose",
    "gaps",
    "has_room",
    "is_new_durable",
    "main_series",
    "newest_whole",
]

CLOCKS_APART = timedelta(minutes=2)
"""How far the clock of a file server may be from ours before a time on it is no longer compared with one of ours."""
MOST_NAMED = 5
"""Checkpoints that a sentence names at most."""


class Rule(StrEnum):
    """By what a trainer chooses the checkpoint from which it goes on."""

    TRACKER = "tracker"
    """The one that its tracker file names."""
    HIGHEST = "highest"
    """The highest number among the names."""
    LAST = "last"
    """The one that is called the last."""
    CHECKED = "checked"
    """The newest that passes the trainer's own check."""
    SCRIPT = "script"
    """Whatever its script says: not known."""


RULES = {
    Format.DCP: Rule.SCRIPT,
    Format.TORCHTITAN: Rule.HIGHEST,
    Format.MEGATRON: Rule.TRACKER,
    Format.MEGATRON_BRIDGE: Rule.TRACKER,
    Format.NEMO: Rule.LAST,
    Format.LIGHTNING: Rule.LAST,
    Format.HUGGING_FACE: Rule.HIGHEST,
    Format.DEEPSPEED: Rule.TRACKER,
    Format.LAB: Rule.CHECKED,
    Format.FILE: Rule.SCRIPT,
    Format.FOLDER: Rule.SCRIPT,
}
"""Sources: transformers `trainer_utils.get_last_checkpoint`; torchtitan `components/checkpointer/dcp.py`; Megatron-LM
`training/checkpointing.py`; DeepSpeed `runtime/engine.py`; NeMo `lightning/resume.py`; Lightning `save_last`."""

TRACKER_NAMES = {
    Format.MEGATRON: "latest_checkpointed_iteration.txt",
    Format.MEGATRON_BRIDGE: "latest_train_state.pt",
    Format.DEEPSPEED: "latest",
}


class Choice(Value):
    """What the checkpoints of a series mean for a restart."""

    rule: Rule
    newest: Checkpoint | None = None
    whole: Checkpoint | None = None
    """The newest that is known to be whole."""
    taken: Checkpoint | None = None
    """The one from which a restart would go on by the trainer's own rule; None where that is not known."""
    tracker_agrees: Answer = Answer.UNKNOWN
    """Whether the tracker names the newest checkpoint; unknown also where there is none."""
    safe: Answer = Answer.UNKNOWN
    """Whether the checkpoint that a restart would take is whole."""
    fall_back: Checkpoint | None = None
    """The whole one to take instead; None where nothing is known to be wrong, or nothing else is whole."""
    sentence: str
    """For people."""


def choose(series: Series) -> Choice:
    """Which checkpoint a restart would take, whether it is whole, and what to take instead where it is not."""
    rule = RULES[series.format]
    newest = next(iter(series.checkpoints), None)
    whole = next((each for each in series.checkpoints if each.whole is Answer.YES), None)
    taken = _taken(series, rule)
    lost = rule is Rule.TRACKER and series.tracker is not None and bool(series.tracker.problem)
    safe = Answer.NO if lost else taken.whole if taken else Answer.UNKNOWN
    fall_back = whole if safe is Answer.NO and whole is not taken else None
    return Choice(
        rule=rule,
        newest=newest,
        whole=whole,
        taken=taken,
        tracker_agrees=_agrees(series, newest),
        safe=safe,
        fall_back=fall_back,
        sentence=_sentence(series, taken, safe, fall_back),
    )


def _taken(series: Series, rule: Rule) -> Checkpoint | None:
    if rule is Rule.TRACKER:
        target = series.tracker.target if series.tracker else None
        return next((each for each in series.checkpoints if each.path == target), None)
    found = [each for each in series.checkpoints if each.published]
    if rule is Rule.LAST:
        named = [each for each in found if each.last] or found
        return max(named, key=lambda each: each.modified_at, default=None)
    if rule is Rule.CHECKED:
        return next((each for each in found if each.whole is not Answer.NO), None)
    if rule is Rule.HIGHEST:
        return next(iter(found), None)
    # A script that keeps one file goes on from it; which of several it loads, nobody knows.
    return found[0] if len(found) == 1 else None


def _agrees(series: Series, newest: Checkpoint | None) -> Answer:
    if series.tracker is None or newest is None:
        return Answer.UNKNOWN
    if series.tracker.problem:
        return Answer.NO
    return Answer.YES if series.tracker.target == newest.path else Answer.NO


def _sentence(series: Series, taken: Checkpoint | None, safe: Answer, fall_back: Checkpoint | None) -> str:
    if not series.checkpoints:
        return f"no checkpoint in {series.folder}"
    instead = f"; {fall_back.label} before it is whole" if fall_back else "; no whole one is known"
    tracker = series.tracker
    if safe is Answer.NO and tracker is not None and tracker.problem:
        return f"{tracker.path.rpartition('/')[2]} {tracker.problem}{instead.replace(' before it', '')}"
    if taken is None:
        return f"which of {len(series.checkpoints)} checkpoints a restart takes is up to its script: {_state(series)}"
    why = f" ({few(taken.reasons, 2)})" if taken.reasons and safe is not Answer.YES else ""
    if safe is Answer.YES:
        return f"a restart goes on from {taken.label}, which is whole{_behind(series.checkpoints[0], taken)}"
    if safe is Answer.UNKNOWN:
        return f"a restart goes on from {taken.label}; whether that is whole is not known{why}"
    return f"a restart would go on from {taken.label}, which is damaged{why}{instead}"


def _behind(newest: Checkpoint, taken: Checkpoint) -> str:
    """What is said where a newer one is passed over."""
    if not _is_newer(newest, taken):
        return ""
    return f"; {newest.label} is newer, and {'damaged' if newest.whole is Answer.NO else 'not published'}"


def _state(series: Series) -> str:
    whole = [each.label for each in series.checkpoints if each.whole is Answer.YES]
    bad = [each.label for each in series.checkpoints if each.whole is Answer.NO]
    parts = [f"whole: {few(whole, MOST_NAMED)}" if whole else "none is known to be whole"]
    return "; ".join([*parts, f"damaged: {few(bad, MOST_NAMED)}"] if bad else parts)


def _is_newer(one: Checkpoint, other: Checkpoint) -> bool:
    return one.step is not None and other.step is not None and one.step > other.step


def main_series(survey: Survey) -> Series | None:
    """The series that the job goes on from: of the most trusted root, the one written last; None where none is."""
    return next(iter(survey.series), None)


def newest_whole(survey: Survey) -> Checkpoint | None:
    """The newest checkpoint that is known to be whole in the job's main series."""
    series = main_series(survey)
    return choose(series).whole if series else None


def is_new_durable(
    before: Checkpoint | None, now: Survey, *, known_before: bool = True, began_at: datetime | None = None
) -> Answer:
    """Whether there is a whole checkpoint with more training in it than the newest whole one of before.

    Steps decide where both have one: the same step written again is no progress. Otherwise times of the same file
    server are compared with each other. The retry budget starts anew only on *yes*.

    Args:
        before: the newest whole one when the attempt began; None: there was none.
        now: what is there now.
        known_before: False where nobody looked then: `before` says nothing.
        began_at: when the attempt began, by our clock; used where nobody looked. A time on a file server less than
            `CLOCKS_APART` away from it, or in the future, leaves the answer unknown.
    """
    newest = newest_whole(now)
    if newest is None:
        unsure = not now.complete or any(each.whole is Answer.UNKNOWN for s in now.series for each in s.checkpoints)
        return Answer.UNKNOWN if unsure else Answer.NO
    if not known_before:
        return _written_since(newest, began_at, now.read_at)
    if before is None:
        return Answer.YES
    if before.step is not None and newest.step is not None:
        further = newest.step > before.step
    else:
        further = newest.modified_at > before.modified_at
    if further:
        return Answer.YES
    # A newer one may lie in what could not be looked at.
    return Answer.NO if now.complete else Answer.UNKNOWN


def _written_since(newest: Checkpoint, began_at: datetime | None, read_at: datetime) -> Answer:
    if began_at is None or age(newest, read_at) is None:
        return Answer.UNKNOWN
    if newest.modified_at >= began_at + CLOCKS_APART:
        return Answer.YES
    return Answer.NO if newest.modified_at <= began_at - CLOCKS_APART else Answer.UNKNOWN


def age(checkpoint: Checkpoint, now: datetime) -> timedelta | None:
    """How old it is; None where the file server's clock is ahead of ours, so that nobody knows."""
    passed = now - checkpoint.modified_at
    return None if passed < -CLOCKS_APART else max(passed, timedelta(0))


def gaps(steps: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Where checkpoints are missing between others, as pairs of the steps around each gap.

    A gap is more than one and a half times the usual distance. Trainers delete old ones, so gaps are told, not judged.
    """
    there = sorted(set(steps))
    distances = [b - a for a, b in pairwise(there)]
    if len(distances) < 2:  # noqa: PLR2004 - one distance is the usual one
        return ()
    usual = median_low(distances)
    return tuple((a, b) for a, b in pairwise(there) if b - a > 1.5 * usual)


def has_room(series: Series, space: Space | None) -> Answer:
    """Whether the next checkpoint fits, taken to be as large as the largest of the newest three.

    *Yes* is by statvfs alone: that a quota may allow less is said by whoever shows this.
    """
    sizes = [each.size for each in series.checkpoints[:3] if each.whole is not Answer.NO]
    if space is None or not sizes:
        return Answer.UNKNOWN
    return Answer.YES if space.free > max(sizes) and space.free_files != 0 else Answer.NO
