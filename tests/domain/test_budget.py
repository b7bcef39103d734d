"""The retry budget: what is charged to whom, what gives it back, and that it always comes to an end."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from relight.domain.allowances import NAMES, PLATFORM, Backoff
from relight.domain.attempts import LogPosition, Progress
from relight.domain.budget import Mark, budget, charged_to, mark_of, newer_save
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Evidence, Source
from relight.domain.hands import Hand
from relight.domain.incidents import Outcome, StepTime
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Policy, decide
from relight.domain.policy_rules import SitePolicy, in_force
from relight.domain.slurm import JobState

AUTO = Policy(mode=Mode.AUTO)
NO_PROGRESS, UNVERIFIED, RECOVERED = (
    Outcome.RESTARTED_NO_PROGRESS,
    Outcome.RESTARTED_UNVERIFIED,
    Outcome.RECOVERED,
)


def cause(category=Category.UNKNOWN, **fields):
    """A cause, by job evidence alone where not said."""
    given = {"action": Action.RESTART, "action_if_it_repeats": Action.RESTART, "confidence": 0.5}
    return Hypothesis(**{**given, "signature": "S", "category": category, **fields})


@pytest.fixture(scope="session")
def key(attempt, now):
    """The key of the job's attempt of that number."""
    return lambda number: attempt(submit_time=now + timedelta(hours=number)).key


@pytest.fixture(scope="session")
def past(incident, key):
    """An incident of the attempt of that number, with its cause and how it ended."""

    def make(number, outcome=NO_PROGRESS, why=None, restart=Restart.REQUEUE, **fields):
        own = key(number)
        plan = Plan(attempt=own, restart=restart, reason="why")
        given = {"id": f"i{number}", "outcome": outcome, "diagnosis": Diagnosis(hypotheses=(why or cause(),))}
        return incident(attempt=own, plan=plan, **given, **fields)

    return make


def newest_first(incidents):
    return tuple(reversed(incidents))


# --- it always comes to an end ---

CAUSES = st.builds(
    cause,
    category=st.sampled_from(list(Category)),
    drain_nodes=st.sampled_from([(), ("n1",)]),
)
RESTARTS = st.sampled_from([Restart.REQUEUE, Restart.ADOPT])


@given(
    st.lists(st.tuples(CAUSES, RESTARTS), max_size=40),
    st.integers(1, 6),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 6)),
)
def test_no_order_of_causes_gets_more_attempts_without_progress(past, failures, most, retries):
    """However the causes alternate: at most so many restarts in all, and for each cause at most what it is allowed."""
    policy = Policy(mode=Mode.AUTO, attempts_without_progress=most, retries=retries)
    done = []
    for number, (why, restart) in enumerate(failures):
        used = budget(newest_first(done), (), policy)
        name = charged_to(why, restart)
        if not used.spent(name):
            done.append(past(number, why=why, restart=restart))
    assert len(done) <= most
    used = budget(newest_first(done), (), policy)
    assert all(used.used(name) <= policy.retries[name] for name in NAMES)


@given(st.lists(st.tuples(CAUSES, RESTARTS, st.sampled_from([NO_PROGRESS, UNVERIFIED, RECOVERED])), max_size=40))
def test_passing_the_failed_step_again_and_again_is_no_way_round_it(past, key, failures):
    """A job that saves, and dies before each next checkpoint, passes its failed step every time and still ends."""
    marks = [Mark(attempt=key(0), saved=100)]
    done = []
    for number, (why, restart, outcome) in enumerate(failures):
        marks.append(Mark(attempt=key(number), saved=100))
        if not budget(newest_first(done), marks, AUTO).spent(charged_to(why, restart)):
            done.append(past(number, outcome, why, restart))
    used = budget(newest_first(done), marks, AUTO)
    assert len(used.charges) == len(done)
    assert all(used.used(name) <= AUTO.retries[name] for name in NAMES)


@given(st.lists(st.tuples(CAUSES, st.sampled_from(list(Outcome))), max_size=30))
def test_preemption_and_slurms_own_requeues_never_use_the_users_budget(past, failures):
    """What Slurm has queued again by itself is charged to the platform; what others did is charged to nobody."""
    adopted = [past(number, outcome, why, Restart.ADOPT) for number, (why, outcome) in enumerate(failures)]
    used = budget(newest_first(adopted), (), AUTO)
    assert not any(used.used(name) for name in NAMES if name != PLATFORM)
    theirs = [past(n, Outcome.OVERRIDDEN, why) for n, (why, _) in enumerate(failures)]
    assert budget(newest_first(theirs), (), AUTO).charges == ()


# --- what gives it back ---


@given(
    st.lists(st.tuples(CAUSES, st.sampled_from(list(Outcome))), max_size=30),
    st.lists(st.none() | st.integers(0, 500), max_size=30),
)
def test_a_new_durable_checkpoint_gives_everything_back(past, key, failures, saves):
    """Whatever was used, and whatever was saved before: one step beyond all of it is enough."""
    done = [past(number, outcome, why) for number, (why, outcome) in enumerate(failures)]
    padded = [*saves, *[None] * len(done)][: len(done)]
    marks = [Mark(attempt=key(number), saved=saved) for number, saved in enumerate(padded)]
    beyond = max((saved for saved in saves if saved is not None), default=0) + 1
    used = budget(newest_first(done), [*marks, Mark(attempt=key(len(done)), saved=beyond)], AUTO)
    assert (used.charges, used.fruitless) == ((), 0)
    assert not used.wait


@given(st.lists(st.tuples(CAUSES, st.sampled_from(list(Outcome))), max_size=30), st.lists(st.booleans(), max_size=31))
def test_a_save_that_is_not_known_gives_nothing_back(past, key, failures, read):
    """Whether or not outputs were read: with no save in them the budget is as without."""
    done = [past(number, outcome, why) for number, (why, outcome) in enumerate(failures)]
    marks = [Mark(attempt=key(number), read=each) for number, each in enumerate(read)]
    assert budget(newest_first(done), marks, AUTO) == budget(newest_first(done), (), AUTO)


@pytest.mark.parametrize(
    ("saves", "newer"),
    [
        ([None, 100], 100),  # the first attempt's output was read, and it saved nothing
        ([100, 200], 200),
        ([100, 100], None),  # the same work again
        ([200, 100], None),  # it went on from an older checkpoint
        ([100, None], None),
        ([100, None, 150], 150),
        (["unread", 100], None),  # the first may have saved the same
        (["unread", 100, 100], None),
        (["unread", 100, 150], 150),
        (["unread", None], None),
    ],
)
def test_a_checkpoint_is_new_when_it_is_beyond_all_that_is_known(key, saves, newer):
    """Saved after the first attempt, by steps; of an attempt that was not read nothing is ruled out."""
    marks = [
        Mark(attempt=key(number), read=saved != "unread", saved=None if saved == "unread" else saved)
        for number, saved in enumerate(saves)
    ]
    assert newer_save(key(0), marks) == newer


def test_without_saves_progress_gives_the_budget_back(past):
    """Counted from the newest back to the last that moved; those that did nothing use up nothing."""
    assert budget((), (), AUTO).fruitless == 0
    assert budget((past(2), past(1, Outcome.EXPIRED), past(0)), (), AUTO).fruitless == 2
    for moved in (Outcome.RECOVERED, Outcome.ADOPTED):
        used = budget((past(3), past(2, moved), past(1), past(0)), (), AUTO)
        assert (used.fruitless, used.used("unknown"), used.since) == (1, 1, "since training last moved on")


def test_a_restart_of_which_nothing_is_known_counts_for_its_cause_alone(past):
    """It is no restart without progress, and no proof of any."""
    used = budget((past(1, UNVERIFIED), past(0)), (), AUTO)
    assert (used.fruitless, used.used("unknown")) == (1, 2)


def test_a_restart_that_was_written_counts_also_where_the_incident_failed(past, now):
    """The requeue is in Slurm, whatever came after it."""
    wrote = (StepTime(name="requeued", at=now),)
    assert budget((past(0, Outcome.FAILED, steps=wrote),), (), AUTO).fruitless == 1
    assert budget((past(0, Outcome.FAILED),), (), AUTO).fruitless == 0


def test_what_an_attempt_has_saved_is_read_from_its_progress(key, now):
    """An output that was read and has no line of a save tells more than one that was not."""
    assert mark_of(key(0), Progress()) == Mark(attempt=key(0), read=False)
    assert mark_of(key(0), Progress(files={"/out": LogPosition()})) == Mark(attempt=key(0))
    told = Progress(last_step=9, saved_step=8, saved_at=now)
    assert mark_of(key(0), told) == Mark(attempt=key(0), saved=8, saved_at=now)


# --- whose it is ---

XID = Evidence(source=Source.KERNEL_LOG, text="NVRM: Xid 79", signature="S", node="n1")
FAILED = Evidence(source=Source.SLURMCTLD, text="job 7 is FAILED")


@pytest.mark.parametrize(
    ("why", "restart", "name"),
    [
        (cause(Category.GPU), Restart.REQUEUE, "gpu"),
        (cause(Category.GPU, drain_nodes=("n1",)), Restart.REQUEUE, PLATFORM),
        (cause(Category.NETWORK, evidence=(XID,)), Restart.REQUEUE, PLATFORM),
        (cause(Category.NETWORK, evidence=(FAILED,)), Restart.REQUEUE, "network"),
        (cause(Category.USER_CODE, evidence=(XID,)), Restart.REQUEUE, "user_code"),
        (cause(Category.HOST_MEMORY, evidence=(XID,)), Restart.REQUEUE, "host_memory"),
        (cause(Category.UNKNOWN), Restart.ADOPT, PLATFORM),
        (cause(Category.CONTROL), Restart.REQUEUE, "unknown"),
        (None, Restart.REQUEUE, "unknown"),
        (None, None, "unknown"),
    ],
)
def test_whose_budget_a_restart_counts_against(why, restart, name):
    """The platform's where it witnessed the cause itself: that a job FAILED is no witness of why."""
    assert charged_to(why, restart) == name


def test_every_category_has_an_allowance():
    """A cause that a site does not name keeps its default."""
    assert set(Policy().retries) == set(NAMES)
    assert Policy(retries={"unknown": 9}).retries == {**Policy().retries, "unknown": 9}


# --- what it decides ---


def test_a_cause_that_has_used_its_restarts_is_stopped(situation, diagnosis, past):
    """And the reason says which, how many of how many, and since when."""
    typo = cause(Category.USER_CODE)
    here = situation(earlier=(past(0, why=typo),))
    verdict = decide(here, Diagnosis(hypotheses=(typo,)), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.STOPPED, False)
    assert verdict.plan.reason.startswith("1 of 1 restarts for user_code are used (no progress since)")
    assert decide(here, diagnosis(), AUTO).plan.restart is Restart.REQUEUE
    none = Policy(mode=Mode.AUTO, retries={"gpu": 0})
    assert "the policy allows no restart for gpu" in decide(situation(), diagnosis(), none).plan.reason


@pytest.mark.parametrize(
    ("before", "wait", "told"), [(0, 0, ""), (1, 60, "second"), (2, 300, "third"), (4, 900, "fifth")]
)
def test_a_restart_after_others_in_vain_waits(situation, diagnosis, past, *, before, wait, told):
    """Longer each time; the plan says so, and the job is requeued at once all the same."""
    policy = Policy(mode=Mode.AUTO, attempts_without_progress=9)
    here = situation(earlier=newest_first([past(number, why=diagnosis().verdict) for number in range(before)]))
    verdict = decide(here, diagnosis(), policy)
    assert verdict.plan.restart is Restart.REQUEUE
    assert verdict.not_before == (here.now + timedelta(seconds=wait) if wait else None)
    assert (f"{told} failure without progress" in verdict.plan.reason) is bool(told)


def test_slurms_own_requeue_waits_too_and_is_never_stopped(situation, diagnosis, past, record):
    """Preemption aside, what Slurm starts again by its own rules is its own, but is not hurried."""
    again = record(state=JobState.PENDING, restarts=1)
    spent = tuple(past(number, restart=Restart.ADOPT) for number in range(30))
    verdict = decide(situation(record=again, hand=Hand.SLURM, earlier=spent), diagnosis(), AUTO)
    assert verdict.plan.restart is Restart.ADOPT
    assert verdict.not_before == situation().now + timedelta(minutes=15)


def test_what_is_stopped_waits_for_nothing(situation, diagnosis, past):
    """No begin time, and no word of one."""
    verdict = decide(situation(earlier=(past(2), past(1), past(0))), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.not_before) == (Outcome.STOPPED, None)
    assert "starts again" not in verdict.plan.reason


def test_a_rule_says_it_for_some_jobs(record):
    """Each cause is a key of its own; what no rule names is as the flat keys say."""
    site = SitePolicy(
        retries={"unknown": 4},
        rules=[
            {"match": {"user": "alice"}, "set": {"retries": {"unknown": 0}, "backoff": ["0s"]}},
            {"match": {"partition": "gpu"}, "set": {"retries": {"unknown": 9, "node": 9}, "exclusions_expire": "1h"}},
        ],
    )
    found = in_force(site, "main", record()).policy
    assert (found.retries["unknown"], found.retries["node"], found.retries["gpu"]) == (0, 9, 5)
    assert (found.backoff, found.exclusions_expire) == ((timedelta(0),), timedelta(hours=1))
    assert in_force(site, "main", record(user="bob", partition="cpu")).policy.retries["unknown"] == 4


@pytest.mark.parametrize("value", [[], ["-1s"], ["8d"], ["5m", "1m"], ["1m"] * 11, [60], "1m"])
def test_a_backoff_that_makes_no_sense_is_refused(value):
    """Empty, negative, too long, shrinking, too many, without a unit, no list."""
    with pytest.raises(ValidationError):
        TypeAdapter(Backoff).validate_python(value)
