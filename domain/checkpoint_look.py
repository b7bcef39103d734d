"""What a plan knows of a job's checkpoints, and the change by which the next attempt goes on from an older one."""

from datetime import datetime
from enum import StrEnum

from relight.domain.base import Value, clip
from relight.domain.checkpoints import (
    CLOCKS_APART,
    Checkpoint,
    Choice,
    HowNamed,
    Series,
    Survey,
    choose,
    main_series,
)
from relight.domain.evidence import Answer

MOST_CHECKPOINTS = 12
"""Of a series, newest first, that travel with a plan."""
MOST_PROBLEMS, MOST_PROBLEM = 5, 200


class CheckpointLook(Value):
    """What one look told, as far as a plan depends on it; small enough to travel."""

    series: Series | None = None
    """What the job goes on from; None where nothing was found."""
    problems: tuple[str, ...] = ()
    """What could not be looked at, and why."""
    doubt: str = ""
    """Why nothing may be concluded from what was found; empty: what it says is so."""
    writable: Answer = Answer.UNKNOWN
    """Whether Relight can change what stands in the folder, with the rights of the job's own user."""
    why_not: str = ""
    """Why it cannot, or why nobody knows."""
    read_at: datetime
    stride: int = 1
    """Steps from one step line of the failed attempt to the next."""
    wrong_since: int | None = None
    """The step since which its numbers have been wrong; None while they are not, or nobody knows."""

    @property
    def choice(self) -> Choice | None:
        """What the series means for a restart."""
        return choose(self.series) if self.series else None

    @property
    def sentence(self) -> str:
        """For people, in one line."""
        choice = self.choice
        if choice is None:
            told = "no checkpoint found" if not self.problems else "checkpoints: not known"
        else:
            told = choice.sentence
        beside = self.doubt or (self.problems[0] if self.problems and choice is None else "")
        return clip(f"{told} ({beside})" if beside else told, 300)


class Why(StrEnum):
    """Why the next attempt should not go on from where it would."""

    DAMAGED = "damaged"
    """That checkpoint is known to be damaged."""
    UNLOADABLE = "unloadable"
    """The attempt could not load it, whatever a look at it says."""
    REPEATS = "repeats"
    """The restart before failed the same way, at the same step."""
    NUMERICS = "numerics"
    """The numbers were wrong when it was written, as far as anybody knows."""


class FallBack(Value):
    """The change by which the next attempt goes on from an older checkpoint. Nothing is deleted by it.

    Either the trainer's tracker file gets another text, or what is newer is put aside, into a folder beside it.
    """

    why: Why
    folder: str
    """Where the checkpoints lie, an absolute path."""
    target: str
    """Name of the checkpoint to go on from."""
    step: int | None = None
    """Its step."""
    over: int | None = None
    """Step of the one that would have been taken."""
    tracker: str = ""
    """Name of the tracker file; empty: it is done by putting aside."""
    was: str = ""
    """What stands in it, clipped to 60 characters."""
    now: str = ""
    """What is to stand in it."""
    aside: tuple[str, ...] = ()
    """Names in the folder that are put aside."""

    @property
    def must(self) -> bool:
        """Whether a restart without it would be one from a damaged checkpoint."""
        return self.why in {Why.DAMAGED, Why.UNLOADABLE}

    @property
    def label(self) -> str:
        """How a sentence calls the checkpoint to go on from."""
        return f"step {self.step}" if self.step is not None else self.target

    def describe(self) -> str:
        """For example `go back to the checkpoint of step 110 (checkpoint-120 is put aside)`."""
        if self.tracker:
            return f"go back to the checkpoint of {self.label} ({self.tracker}: {self.was or 'nothing'} -> {self.now})"
        others = f" and {len(self.aside) - 1} more" if len(self.aside) > 1 else ""
        return f"go back to the checkpoint of {self.label} ({self.aside[0]}{others} put aside)"


def look_of(survey: Survey, *, began: datetime | None, **known: object) -> CheckpointLook:
    """What a survey told, trimmed, with what speaks against concluding anything from it.

    Args:
        survey: what was found.
        began: when the job's first known attempt began: checkpoints in a work dir that are all older are not its own.
        known: other fields of the look.
    """
    series = main_series(survey)
    problems = tuple(clip(text, MOST_PROBLEM) for text in survey.problems[:MOST_PROBLEMS])
    trimmed = _trimmed(series) if series else None
    doubt = _doubt(series, survey, began) if series else ""
    return CheckpointLook.model_validate(
        {"series": trimmed, "problems": problems, "doubt": doubt, "read_at": survey.read_at, **known}
    )


def _trimmed(series: Series) -> Series:
    kept = list(series.checkpoints[:MOST_CHECKPOINTS])
    taken = choose(series).taken
    # A tracker may lag far behind. Nothing else from further down: between it and the others some would be missing.
    kept += [taken] if taken is not None and taken not in kept else []
    return series.model_copy(
        update={"checkpoints": tuple(kept), "left_out": series.left_out + len(series.checkpoints) - len(kept)}
    )


def _doubt(series: Series, survey: Survey, began: datetime | None) -> str:
    from_elsewhere = _not_its_own(series, began)
    if from_elsewhere:
        return from_elsewhere
    if series.tracker is not None and series.tracker.problem.startswith("cannot be read"):
        return f"{series.tracker.path.rpartition('/')[2]} {series.tracker.problem}"
    return next((f"not looked at: {clip(text, 150)}" for text in survey.problems if _concerns(text, series.folder)), "")


def _not_its_own(series: Series, began: datetime | None) -> str:
    """Whether checkpoints that nobody named, found in the job's work dir, are of another run."""
    newest = max((each.modified_at for each in series.checkpoints), default=None)
    if series.how is not HowNamed.WORK_DIR or newest is None:
        return ""
    if began is not None and newest >= began - CLOCKS_APART:
        return ""
    return "found in the work dir, and not known to be this job's own"


def _concerns(problem: str, folder: str) -> bool:
    """Whether what could not be looked at may hold checkpoints of that folder."""
    place = problem.partition(": ")[0].rstrip("/")
    if not place.startswith("/"):
        return True
    return place == folder or place.startswith(f"{folder}/") or folder.startswith(f"{place}/")


def older(series: Series, than: Checkpoint) -> tuple[Checkpoint, ...]:
    """The checkpoints that come after one in the order newest first."""
    at = series.checkpoints.index(than)
    return series.checkpoints[at + 1 :]


def durable_before(look: CheckpointLook) -> tuple[Checkpoint | None, bool]:
    """The newest whole one of this look, and whether it is known that there was none newer: see `is_new_durable`."""
    if look.series is None:
        return None, not look.problems
    choice = choose(look.series)
    whole = choice.whole
    above = look.series.checkpoints[: look.series.checkpoints.index(whole)] if whole else look.series.checkpoints
    sure = not look.doubt and not look.problems and all(each.whole is Answer.NO for each in above)
    return whole, sure
