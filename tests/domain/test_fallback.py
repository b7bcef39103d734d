"""When a restart goes on from an older checkpoint, how that is done, and when there is no restart at all."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.checkpoint_look import CheckpointLook, Why, durable_before, look_of
from relight.domain.checkpoints import (
    CLOCKS_APART,
    RULES,
    TRACKER_NAMES,
    Checkpoint,
    Format,
    HowNamed,
    Rule,
    Series,
    Survey,
    Tracker,
    choose,
)
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Answer
from relight.domain.fallback import advise, moot, repeats, takes
from relight.domain.hands import Hand
from relight.domain.incidents import Outcome
from relight.domain.permits import Permit, Policy
from relight.domain.plan import Mode, Restart
from relight.domain.policy import decide
from relight.domain.rights import Right, rights_of
from relight.domain.slurm import JobState
from relight.domain.start_up import LONGEST, fitted

YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN
NOW = datetime(2026, 12, 1, tzinfo=UTC)
AUTO = Policy(mode=Mode.AUTO, fall_back=Permit.AUTO)
NAMES = {
    Format.HUGGING_FACE: "checkpoint-{}",
    Format.TORCHTITAN: "step-{}",
    Format.MEGATRON: "iter_{:07}",
    Format.DEEPSPEED: "global_step{}",
    Format.LAB: "step_{:06}.npz",
    Format.LIGHTNING: "step={}.ckpt",
    Format.NEMO: "run--step={}",
}


def checkpoint(step, whole=YES, kind=Format.HUGGING_FACE, **more):
    given = {
        "path": f"/run/{NAMES[kind].format(step)}",
        "step": step,
        "format": kind,
        "modified_at": NOW - timedelta(hours=1) + timedelta(seconds=step),
        "size": 100,
        "whole": whole,
        "reasons": () if whole is YES else ("cut short",),
    }
    return Checkpoint(**{**given, **more})


def series(*states, kind=Format.HUGGING_FACE, says=None, **more):
    """Checkpoints of steps 10, 20 ..., the states given newest first; a tracker that names `says`, or the newest."""
    steps = [10 * (len(states) - n) for n in range(len(states))]
    found = tuple(checkpoint(step, state, kind) for step, state in zip(steps, states, strict=True))
    if kind in TRACKER_NAMES:
        named = next(each for each in found if each.step == (says or steps[0]))
        text = str(named.step) if kind is Format.MEGATRON else named.name
        more["tracker"] = Tracker(path=f"/run/{TRACKER_NAMES[kind]}", says=text, target=named.path, step=named.step)
    return Series(**{"folder": "/run", "format": kind, "how": HowNamed.LOG, "checkpoints": found, **more})


def look(found, **more):
    return CheckpointLook(**{"series": found, "writable": YES, "read_at": NOW, **more})


def failure(signature="CUDA_OOM", category=Category.FRAMEWORK, step=25, **more):
    given = {
        "signature": signature,
        "category": category,
        "action": Action.RESTART,
        "action_if_it_repeats": Action.STOP,
    }
    return Diagnosis(hypotheses=(Hypothesis(**{**given, "confidence": 0.9, **more}),), failed_step=step)


# --- damaged ---


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Format.HUGGING_FACE, {"aside": ("checkpoint-40", "checkpoint-30"), "tracker": ""}),
        (Format.TORCHTITAN, {"aside": ("step-40", "step-30"), "tracker": ""}),
        (Format.MEGATRON, {"tracker": "latest_checkpointed_iteration.txt", "was": "40", "now": "20", "aside": ()}),
        (Format.DEEPSPEED, {"tracker": "latest", "was": "global_step40", "now": "global_step20", "aside": ()}),
    ],
)
def test_a_damaged_newest_is_passed_over_by_the_trainers_own_means(kind, change):
    """The newest whole one is taken; every one above it that the trainer would take is out of its way."""
    back = advise(look(series(NO, NO, YES, YES, kind=kind)), failure(), ()).back
    assert (back.why, back.step, back.over) == (Why.DAMAGED, 20, 40)
    assert {name: getattr(back, name) for name in change} == change


@pytest.mark.parametrize("kind", [Format.LIGHTNING, Format.NEMO])
def test_what_a_trainer_would_begin_anew_without_is_left_to_a_person(kind):
    """Then there is no restart, and the reason says what is whole."""
    advice = advise(look(series(NO, YES, kind=kind)), failure(), ())
    assert advice.back is None
    assert "step 10 before it is whole" in advice.stop
    assert "by a person" in advice.stop


def test_a_trainer_that_checks_by_itself_needs_nothing():
    """The lab's trainer passes over what is damaged: there is nothing to be done or said."""
    assert advise(look(series(NO, YES, kind=Format.LAB)), failure(), ()) == (None, "", "")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (look(series(NO, NO)), "no whole one is known"),
        (look(series(NO, YES), writable=NO, why_not="no permission to write in /run"), "no permission to write"),
        (look(series(NO, YES), writable=UNKNOWN, why_not="the file system did not answer"), "did not answer"),
    ],
)
def test_there_is_no_restart_from_what_is_damaged(situation, found, words):
    """Nothing else whole, or no way to it: stopped, in clear words."""
    verdict = decide(situation(checkpoints=found), failure(), AUTO)
    assert (verdict.outcome, verdict.plan.restart, verdict.plan.fall_back) == (Outcome.STOPPED, Restart.NONE, None)
    assert verdict.plan.reason.startswith("not restarted from a damaged checkpoint: ")
    assert words in verdict.plan.reason


@pytest.mark.parametrize(
    "found",
    [
        None,
        look(None),
        look(None, problems=("/run: no such folder",)),
        look(series(UNKNOWN, YES)),
        look(series(YES, NO)),
        look(series(NO, YES), doubt="found in the work dir, and not known to be this job's own"),
    ],
)
def test_what_is_not_known_to_be_damaged_changes_nothing(situation, found):
    """No look, nothing found, not known, in doubt: the same plan, digest and mode as ever."""
    known, plain = decide(situation(checkpoints=found), failure(), AUTO), decide(situation(), failure(), AUTO)
    assert (known.plan.digest, known.mode, known.outcome) == (plain.plan.digest, plain.mode, plain.outcome)


@pytest.mark.parametrize(
    ("fall_back", "mode", "restart", "goes_back"),
    [
        (Permit.AUTO, Mode.AUTO, Restart.REQUEUE, True),
        (Permit.APPROVE, Mode.APPROVE, Restart.REQUEUE, True),
        (Permit.MONITOR, Mode.AUTO, Restart.NONE, False),
        (Permit.OFF, Mode.AUTO, Restart.NONE, False),
    ],
)
def test_the_policy_says_how_far_going_back_may_go(situation, fall_back, mode, restart, goes_back):
    """What may not go back is not restarted from what is damaged."""
    policy = Policy(mode=Mode.AUTO, fall_back=fall_back)
    verdict = decide(situation(checkpoints=look(series(NO, YES))), failure(), policy)
    plan = verdict.plan
    assert (verdict.mode, plan.restart, plan.fall_back is not None) == (mode, restart, goes_back)
    assert (Right.ROLLBACK in rights_of(plan)) is goes_back


def test_by_default_a_person_is_asked(situation):
    """Whatever the site's mode is."""
    verdict = decide(situation(checkpoints=look(series(NO, YES))), failure(), Policy(mode=Mode.AUTO))
    assert verdict.mode is Mode.APPROVE
    assert verdict.mode_reason.endswith("approve for fall_back")
    assert "go back to the checkpoint of step 10" in verdict.plan.describe()


def test_what_is_only_observed_shows_it_all(situation):
    """In mode monitor the plan says what would be done."""
    policy = Policy(mode=Mode.MONITOR, fall_back=Permit.OFF)
    verdict = decide(situation(checkpoints=look(series(NO, YES))), failure(), policy)
    assert (verdict.mode, verdict.plan.fall_back.step) == (Mode.MONITOR, 10)


def test_what_slurm_starts_again_by_itself_is_not_stopped(situation, record):
    """It is Slurm's: adopted, and the reason tells of the damage."""
    again = record(state=JobState.PENDING, restarts=1)
    shown = situation(record=again, hand=Hand.SLURM, checkpoints=look(series(NO, NO)))
    verdict = decide(shown, failure(), AUTO)
    assert verdict.plan.restart is Restart.ADOPT
    assert "Slurm starts it again all the same" in verdict.plan.reason


def test_a_save_that_may_still_go_on_is_not_called_damage(situation, record):
    """The attempt still runs and wrote a moment ago: the restart, which ends it, looks again."""
    fresh = series(NO, NO).model_copy(update={"checkpoints": (checkpoint(20, NO, modified_at=NOW),)})
    running = situation(record=record(), checkpoints=look(fresh))
    assert decide(running, failure(), AUTO).plan.restart is Restart.REQUEUE
    ended = situation(checkpoints=look(fresh))
    assert decide(ended, failure(), AUTO).outcome is Outcome.STOPPED


def test_the_digest_binds_an_approval_to_the_change(situation):
    """Another checkpoint to go on from is another plan; without a change the digest is as it was."""
    digests = {
        decide(situation(checkpoints=look(found)), failure(), AUTO).plan.digest
        for found in (series(NO, YES), series(NO, NO, YES), series(YES))
    }
    assert len(digests) == 3


# --- whole, and yet not to be taken again ---


def earlier(incident, step=25, **cause):
    return (incident(outcome=Outcome.RESTARTED_NO_PROGRESS, diagnosis=failure(step=step, **cause)),)


@pytest.mark.parametrize(
    ("before", "now", "stride", "same"),
    [(25, 25, 1, True), (24, 25, 1, True), (23, 25, 1, False), (20, 30, 10, True), (None, 25, 1, False)],
)
def test_the_same_failure_at_the_same_step_repeats(incident, before, now, stride, same):
    """Within one step line; a failure whose step is not known does not."""
    assert repeats(failure(step=now), earlier(incident, before), stride) is same


def test_what_repeats_goes_one_back(incident, situation):
    """The newest may hold what makes it fail; with no older one, or where it may not be, it is restarted as ever."""
    found = look(series(YES, YES, YES))
    assert advise(found, failure(), earlier(incident)).back.step == 20
    assert advise(found, failure(), ()).back is None
    assert advise(look(series(YES)), failure(), earlier(incident)).remark.endswith("no older whole checkpoint is known")
    policy = AUTO.model_copy(update={"fall_back": Permit.OFF})
    verdict = decide(situation(checkpoints=found, earlier=earlier(incident)), failure(), policy)
    assert (verdict.plan.restart, verdict.plan.fall_back) == (Restart.REQUEUE, None)
    assert "the policy says off for fall_back" in verdict.plan.reason


def test_a_broken_machine_at_the_same_step_is_chance(incident):
    """What is charged to the platform says nothing of the checkpoint."""
    gpu = {"signature": "XID_48", "category": Category.GPU, "drain_nodes": ("n1",)}
    assert advise(look(series(YES, YES)), failure(**gpu), earlier(incident, **gpu)).back is None


@pytest.mark.parametrize(
    ("wrong_since", "step"),
    [(None, 20), (25, 20), (31, 20), (32, None), (40, None), (15, 10), (5, None)],
)
def test_with_wrong_numbers_it_goes_back_to_before_they_were(wrong_since, step):
    """A loss is of the weights that the step before has left. What is known to be from before is kept."""
    found = look(series(YES, YES, YES), wrong_since=wrong_since)
    back = advise(found, failure("LOSS_NAN", Category.NUMERICS), ()).back
    assert (back.step if back else None) == step


def test_what_could_not_be_loaded_is_passed_over_once(situation, incident):
    """Though it looks whole: the one thing that a stop for it asks for is an older one. Never one after the other."""
    cause = failure("CKPT_CORRUPT", Category.STORAGE, step=None, action=Action.STOP)
    shown = situation(checkpoints=look(series(YES, YES)))
    verdict = decide(shown, cause, AUTO)
    assert (verdict.plan.restart, verdict.plan.fall_back.why) == (Restart.REQUEUE, Why.UNLOADABLE)
    again = incident(outcome=Outcome.RESTARTED_NO_PROGRESS, diagnosis=cause, plan=verdict.plan)
    assert decide(situation(checkpoints=shown.checkpoints, earlier=(again,)), cause, AUTO).outcome is Outcome.STOPPED
    off = decide(shown, cause, AUTO.model_copy(update={"fall_back": Permit.OFF}))
    assert off.outcome is Outcome.STOPPED


# --- for any series ---

STATES = st.lists(st.sampled_from([YES, NO, UNKNOWN]), min_size=1, max_size=8)


@given(states=STATES, kind=st.sampled_from(sorted(NAMES)), data=st.data())
def test_a_change_is_proposed_only_where_its_trainer_then_takes_a_whole_one(states, kind, data):
    """By the very rule by which the damage was found; and nothing older than the target moves."""
    says = data.draw(st.sampled_from([10 * n for n in range(1, len(states) + 1)]))
    found = series(*states, kind=kind, says=says)
    advice = advise(look(found), failure(), ())
    choice = choose(found)
    if choice.safe is NO:
        assert (advice.back is None) is bool(advice.stop)
    else:
        assert advice == (None, "", "")
    if back := advice.back:
        target = next(each for each in found.checkpoints if each.name == back.target)
        assert target.whole is YES
        assert takes(found, back)
        assert moot(found, back) is None
        older = {each.name for each in found.checkpoints if each.step <= target.step}
        assert not older & set(back.aside)


# --- what a survey says ---


def survey(*found, problems=()):
    return Survey(series=found, problems=problems, read_at=NOW)


@pytest.mark.parametrize(
    ("problem", "doubts"),
    [
        ("/run: time was up before everything was looked at", True),
        ("/run/checkpoint-50: Permission denied", True),
        ("/: the file system did not answer", True),
        ("3 roots more were left out", True),
        ("/elsewhere: no such folder", False),
        ("/run2: no such folder", False),
    ],
)
def test_only_what_may_hide_newer_ones_raises_doubt(problem, doubts):
    """A path that a script names and that is not there says nothing of the folder with the checkpoints."""
    assert bool(look_of(survey(series(NO, YES), problems=(problem,)), began=NOW).doubt) is doubts


@pytest.mark.parametrize(
    ("how", "began", "doubts"),
    [
        (HowNamed.WORK_DIR, timedelta(hours=2), False),
        (HowNamed.WORK_DIR, -CLOCKS_APART, True),
        (HowNamed.WORK_DIR, None, True),
        (HowNamed.SCRIPT, -CLOCKS_APART, False),
    ],
)
def test_what_lies_in_a_work_dir_must_be_the_jobs_own(how, began, doubts):
    """Older than its first attempt, and named by nobody: of another run."""
    found = look_of(survey(series(NO, YES, how=how)), began=None if began is None else NOW - began)
    assert bool(found.doubt) is doubts


def test_a_tracker_that_cannot_be_read_is_not_a_damaged_one():
    """Its permissions may be for the job's user alone."""
    tracker = Tracker(path="/run/latest", problem="cannot be read: Permission denied")
    found = series(YES, kind=Format.DEEPSPEED).model_copy(update={"tracker": tracker})
    assert "cannot be read" in look_of(survey(found), began=NOW).doubt


def test_a_look_is_small():
    """Hundreds of checkpoints do not travel; the one that a lagging tracker names does."""
    many = series(*[UNKNOWN] * 99, YES, kind=Format.DEEPSPEED, says=10)
    found = look_of(survey(many, problems=("x" * 999,) * 99), began=NOW)
    assert found.choice.taken.step == 10
    assert found.series.left_out == 87
    assert len(found.model_dump_json()) < 10_000


@pytest.mark.parametrize(
    ("found", "step", "sure"),
    [
        (look(None), None, True),
        (look(None, problems=("/run: hangs",)), None, False),
        (look(series(NO, YES)), 10, True),
        (look(series(UNKNOWN, YES)), 10, False),
        (look(series(YES), doubt="x"), 10, False),
    ],
)
def test_what_was_durable_before(found, step, sure):
    """Only where nothing newer may have been whole is a newer one news."""
    whole, known = durable_before(found)
    assert ((whole.step if whole else None), known) == (step, sure)


def test_every_rule_has_its_place():
    """A format whose trainer goes by a tracker has the tracker's name."""
    assert {kind for kind, rule in RULES.items() if rule is Rule.TRACKER} == set(TRACKER_NAMES)


# --- how long a job is given ---


def test_a_job_that_takes_long_is_given_longer_never_shorter():
    """Three start-ups, and twice the steps to do again; within a day."""
    policy = timedelta(minutes=30)
    assert fitted(policy) == policy
    assert fitted(policy, start_up=timedelta(minutes=1), redone=10, step_seconds=1.0) == policy
    assert fitted(policy, start_up=timedelta(minutes=20), redone=300, step_seconds=2.0) == timedelta(minutes=80)
    assert fitted(policy, start_up=timedelta(days=9)) == LONGEST
    assert fitted(timedelta(days=2), start_up=timedelta(days=9)) == timedelta(days=2)
