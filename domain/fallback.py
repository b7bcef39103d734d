"""When a restart should go on from an older checkpoint, how that is done, and when it must not be made at all.

*Never from a damaged checkpoint*: where the one that a restart would take is known to be damaged, the next attempt is
made to take the newest whole one; where that cannot be done, there is no restart.

*From an older one* also where the same failure came back at the same step, and where the numbers were wrong when the
newest was written: it may hold what makes training fail. That is a guess: where it cannot be done, or the policy does
not allow it, the restart is made as ever.

How a trainer is made to take another one:

- Megatron-LM and DeepSpeed go by a tracker file: it gets the text that their own save would have written.
- transformers' Trainer, torchtitan and the lab's trainer take the highest number in the folder: what is newer is put
  aside, into a folder `relight-aside-INCIDENT` within the same one. Not under another name beside it: torchtitan
  searches names for `step-N`, and the Trainer deletes the oldest of what begins with `checkpoint-`.
- Others (Lightning, NeMo, accelerate, Megatron-Bridge, scripts): a person does it. Without their `last` Lightning and
  NeMo begin anew without a word; accelerate sorts whatever has digits in its name.

Sources: as `checkpoints.RULES`; accelerate `accelerator.py`, `load_state`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from relight.domain.allowances import PLATFORM
from relight.domain.budget import charged_to, restarted
from relight.domain.checkpoint_look import CheckpointLook, FallBack, Why, older
from relight.domain.checkpoints import CLOCKS_APART, TRACKER_NAMES, Checkpoint, Choice, Format, Series, Tracker, choose
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Answer
from relight.domain.incidents import Incident
from relight.domain.permits import Permit
from relight.domain.plan import Plan, Restart

SAME_STEP = 2
"""Step lines by which the same failure may be seen apart: one more may have been lost with the process (`passed`)."""
STILL_WRITING = CLOCKS_APART
"""What an attempt that still runs has written so recently may be a save that goes on."""

UNLOADABLE = frozenset({"CKPT_CORRUPT"})
"""Signatures of an attempt that could not load its checkpoint."""

_NAMES = {
    Format.MEGATRON: re.compile(r"iter_\d{7,}"),
    Format.DEEPSPEED: re.compile(r"[\w.@+=-]{1,200}"),
    Format.HUGGING_FACE: re.compile(r"checkpoint-\d+"),
    Format.TORCHTITAN: re.compile(r"step-\d+"),
    Format.LAB: re.compile(r"step_\d{6,}\.(?:npz|pt)"),
}
"""Names of checkpoints that these trainers would take for their own."""


class Advice(NamedTuple):
    """What the look at the checkpoints means for a restart."""

    back: FallBack | None = None
    """What to propose."""
    stop: str = ""
    """Why there must be no restart."""
    remark: str = ""
    """What to say beside the reason."""


def advise(look: CheckpointLook, diagnosis: Diagnosis, earlier: Sequence[Incident], *, running: bool = False) -> Advice:
    """What the look means for a restart.

    Args:
        look: what was found.
        diagnosis: why the attempt was interrupted, and after which step.
        earlier: the job's closed incidents, newest first.
        running: whether the attempt still runs, and may still be writing.
    """
    series, choice = look.series, look.choice
    if series is None or choice is None:
        return Advice()
    damaged = choice.safe is Answer.NO
    if look.doubt:
        return Advice(remark=look.sentence if damaged else "")
    why = Why.DAMAGED if damaged else _why(look, diagnosis, earlier)
    if why is None:
        return Advice()
    target = choice.fall_back if damaged else _before(look, choice.taken, why)
    back, problem = _change(series, choice.taken, target, why) if target else (None, "")
    if back is not None and look.writable is not Answer.YES:
        back, problem = None, look.why_not or "whether Relight may change what stands there is not known"
    if back is not None:
        return Advice(back=back, remark=choice.sentence if damaged else f"{_WORDS[why]}: {back.label} is taken")
    if damaged:
        return _from_nothing(look, choice, problem, running=running)
    told = f"; not gone back to {target.label}: {problem}" if target else "; no older whole checkpoint is known"
    return Advice(remark=f"{_WORDS[why]}{told}")


def _from_nothing(look: CheckpointLook, choice: Choice, problem: str, *, running: bool) -> Advice:
    """What is left where the one that would be taken is damaged and cannot be passed over."""
    if running and _may_be_writing(look, choice.taken):
        return Advice(remark=f"{choice.sentence}; it may still be being written")
    return Advice(stop=f"{choice.sentence}; {problem}" if problem else choice.sentence)


_WORDS = {
    Why.UNLOADABLE: "the attempt could not load the newest checkpoint",
    Why.REPEATS: "the same failure came back at the same step",
    Why.NUMERICS: "the numbers may have been wrong already when the newest checkpoint was written",
}


def _why(look: CheckpointLook, diagnosis: Diagnosis, earlier: Sequence[Incident]) -> Why | None:
    cause = diagnosis.verdict
    if cause.signature in UNLOADABLE:
        # Once: were it another file that cannot be loaded, one checkpoint after the other would be passed over.
        before = next((each.plan.fall_back for each in earlier if restarted(each) and each.plan), None)
        return Why.UNLOADABLE if before is None or before.why is not Why.UNLOADABLE else None
    if charged_to(cause, None) == PLATFORM:
        return None  # a broken machine at the same step is chance
    if repeats(diagnosis, earlier, look.stride):
        return Why.REPEATS
    return Why.NUMERICS if _numerics(cause, look) else None


def repeats(diagnosis: Diagnosis, earlier: Sequence[Incident], stride: int = 1) -> bool:
    """Whether the restart before this failure failed by the same cause, at the same step."""
    last = next((each for each in earlier if restarted(each)), None)
    if last is None or last.diagnosis is None:
        return False
    step, before = diagnosis.failed_step, last.diagnosis.failed_step
    same = last.diagnosis.verdict.signature == diagnosis.verdict.signature
    return same and step is not None and before is not None and abs(step - before) < SAME_STEP * max(1, stride)


def _numerics(cause: Hypothesis, look: CheckpointLook) -> bool:
    taken = look.choice.taken if look.choice else None
    if cause.category is not Category.NUMERICS or taken is None:
        return False
    return not _sound(taken, look)


def _sound(checkpoint: Checkpoint, look: CheckpointLook) -> bool:
    """Whether its numbers are known to have been right: a loss is of the weights that the step before has left."""
    since = look.wrong_since
    return since is not None and checkpoint.step is not None and checkpoint.step < since - look.stride


def _before(look: CheckpointLook, taken: Checkpoint | None, why: Why) -> Checkpoint | None:
    """The newest whole one before that; with wrong numbers, from before they were, where that is known."""
    if taken is None or look.series is None:
        return None
    whole = [each for each in older(look.series, taken) if each.whole is Answer.YES and each.published]
    if why is Why.NUMERICS and look.wrong_since is not None:
        whole = [each for each in whole if _sound(each, look)]
    return next(iter(whole), None)


def _may_be_writing(look: CheckpointLook, taken: Checkpoint | None) -> bool:
    return taken is not None and look.read_at - taken.modified_at < STILL_WRITING


def _change(series: Series, taken: Checkpoint | None, target: Checkpoint, why: Why) -> tuple[FallBack | None, str]:
    """The change after which its trainer takes the target, or why Relight cannot make it."""
    person = f"{series.format} is made to go on from {target.label} by a person"
    names = _NAMES.get(series.format)
    if names is None or not names.fullmatch(target.name):
        return None, person
    given = {"why": why, "folder": series.folder, "target": target.name, "step": target.step}
    given |= {"over": taken.step if taken else None}
    tracker = TRACKER_NAMES.get(series.format)
    if tracker is not None:
        if series.tracker is None or (series.format is Format.MEGATRON and target.step is None):
            return None, person
        now = str(target.step) if series.format is Format.MEGATRON else target.name
        back = FallBack.model_validate(given | {"tracker": tracker, "was": series.tracker.says, "now": now})
    else:
        newer = series.checkpoints[: series.checkpoints.index(target)]
        aside = [each for each in newer if each.published]
        if not aside or not all(names.fullmatch(each.name) for each in aside):
            return None, person
        back = FallBack.model_validate(given | {"aside": tuple(each.name for each in aside)})
    return (back, "") if takes(series, back) else (None, person)


def takes(series: Series, back: FallBack) -> bool:
    """Whether the trainer goes on from the target once the change is made, by the rule that is known of it."""
    after = choose(changed(series, back))
    return after.taken is not None and after.taken.name == back.target and after.safe is Answer.YES


def changed(series: Series, back: FallBack) -> Series:
    """The series as it is once the change is made."""
    if not back.tracker:
        kept = tuple(each for each in series.checkpoints if each.name not in back.aside)
        return series.model_copy(update={"checkpoints": kept})
    path = f"{series.folder}/{back.tracker}"
    tracker = Tracker(path=path, says=back.now, target=f"{series.folder}/{back.target}", step=back.step)
    return series.model_copy(update={"tracker": tracker})


def moot(series: Series, back: FallBack) -> tuple[str, str] | None:
    """Why a planned change is not to be made, by a fresh look: what to say, or what the problem is; None: it is.

    Between plan and restart the old attempt may have finished a save, and anybody may have damaged the target.
    """
    choice = choose(series)
    if back.why is Why.DAMAGED and choice.safe is Answer.YES:
        return f"{choice.sentence}: nothing had to be changed", ""
    target = next((each for each in series.checkpoints if each.name == back.target), None)
    if target is None or target.whole is not Answer.YES:
        state = "is not there any more" if target is None else "is no longer known to be whole"
        return "", f"the checkpoint of {back.label} {state}"
    if not takes(series, back):
        return "", f"{choice.sentence}: that is not what was planned"
    return None


def cured(cause: Hypothesis, advice: Advice) -> Hypothesis:
    """The cause, with a restart in place of a stop where the one thing that it asks for is an older checkpoint."""
    if advice.back is None or cause.signature not in UNLOADABLE:
        return cause
    return cause.model_copy(update={"action": Action.RESTART})


def with_checkpoint(plan: Plan, advice: Advice, permit: Permit, *, observed: bool) -> tuple[Plan, bool]:
    """The plan with what the checkpoints mean for it, and whether its restart is called off.

    Args:
        plan: a plan with a restart.
        advice: what the checkpoints mean for it.
        permit: how far Relight may go with going back.
        observed: the restart itself is only observed: then nothing needs to be left out.
    """
    adopted = plan.restart is Restart.ADOPT
    back, stop, remark = advice
    if back is not None and not observed and permit in {Permit.OFF, Permit.MONITOR}:
        told = f"not gone back to {back.label}: the policy says {permit} for fall_back"
        stop = f"{remark}; {told}" if back.must else ""
        back, remark = None, "" if stop else told
    if stop and not adopted:
        return plan.model_copy(update={"reason": f"not restarted from a damaged checkpoint: {stop}"}), True
    remark = remark or (f"{stop}; Slurm starts it again all the same" if stop else "")
    reason = f"{plan.reason} ({remark})" if remark else plan.reason
    return plan.model_copy(update={"fall_back": back, "reason": reason}), False
