"""What a detector's age and last words mean, and which decisions they weigh on."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.detectors import (
    ALWAYS_NEEDED,
    EXPECTED,
    LEAST_WITHIN,
    ON_DEMAND,
    REMEMBERED,
    RESTS_ON,
    WRITTEN_WITHIN,
    Sees,
    Sight,
    WorkerReport,
    WorkerReports,
    blind_for,
    unread_outputs,
    within,
)
from relight.domain.evidence import Interruption

SECOND = timedelta(seconds=1)


@pytest.fixture
def sight(now):
    """Makes the sight of a detector that was last seen to see so many seconds ago; None: never."""

    def make(last=1.0, *, problem="", since=100.0, looked=None, within=15 * SECOND):
        at = None if last is None else now - last * SECOND
        looked = min(x for x in (last, looked, since) if x is not None)
        return Sight(within=within, since=now - since * SECOND, looked=now - looked * SECOND, last=at, problem=problem)

    return make


@pytest.fixture
def report(now):
    """Makes a worker's report, written so many seconds ago."""

    def make(worker="a/1", written=1.0, **sights):
        at = now - written * SECOND
        return WorkerReport(
            worker=worker, version="1", mode="auto", started_at=at - 60 * SECOND, written_at=at, sights=sights
        )

    return make


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"last": 1}, Sees.SEES),
        ({"last": 15}, Sees.SEES),
        ({"last": 15.1}, Sees.OVERDUE),
        ({"last": 1, "problem": "no route"}, Sees.BLIND),
        ({"last": None, "problem": "no route"}, Sees.BLIND),
        ({"last": None, "since": 10}, Sees.WAITING),
        ({"last": None, "since": 16}, Sees.OVERDUE),
        ({"last": 86400, "within": ON_DEMAND}, Sees.SEES),
        ({"last": -3600}, Sees.SEES),  # the clock was set back an hour
    ],
)
def test_how_a_detector_does(sight, now, fields, state):
    """By its last words, else by its age; one whose first look is still to come is unknown, not blind."""
    found = sight(**fields)
    assert found.state(now) is state
    assert found.sees(now) is (state in {Sees.SEES, Sees.WAITING})


def test_since_when_nothing_has_been_seen(sight, now):
    """A blind one since its first vain look; an overdue one since its last success, or since it was due to begin."""
    assert sight(1, problem="x", since=7).unseen_since() == now - 7 * SECOND
    assert sight(20, since=100).unseen_since() == now - 20 * SECOND
    assert sight(None, since=90).unseen_since() == now - 90 * SECOND


def test_how_long_a_detector_may_take():
    """A few of its periods, and never less than a look with Slurm's time-out takes."""
    assert within(SECOND) == LEAST_WITHIN
    assert within(60 * SECOND) == 300 * SECOND


# --- several workers ---


def test_the_worker_that_looked_last_tells(report, sight, now):
    """Each activity runs in one of the workers; the others have never looked with it."""
    idle = {"jobs": sight(None, since=500), "nodes": sight(None, since=500)}
    reports = WorkerReports(
        workers=(report("a/1", jobs=sight(2), nodes=idle["nodes"]), report("b/1", jobs=idle["jobs"], nodes=sight(1)))
    )
    assert all(found.state(now) is Sees.SEES for found in reports.sights(now).values())


def test_a_moved_detector_is_judged_by_its_new_worker(report, sight, now):
    """Blind where it ran before, seeing where it runs now, and the other way round."""
    blind, sees = sight(90, problem="x", looked=60, since=90), sight(1)
    assert WorkerReports(workers=(report("a/1", jobs=blind), report("b/1", jobs=sees))).sights(now)["jobs"] == sees
    blind, sees = sight(90, problem="x", looked=1, since=90), sight(60)
    assert WorkerReports(workers=(report("a/1", jobs=blind), report("b/1", jobs=sees))).sights(now)["jobs"] == blind


def test_a_worker_that_is_gone_tells_nothing_beside_one_that_lives(report, sight, now):
    """Its detectors' ages would call the new one's overdue."""
    gone = report("a/1", written=600, jobs=sight(600), ingest=sight(600))
    lives = report("b/1", jobs=sight(None, since=5))
    reports = WorkerReports(workers=(lives, gone))
    assert {name: found.state(now) for name, found in reports.sights(now).items()} == {"jobs": Sees.WAITING}


def test_when_nobody_lives_the_last_one_tells(report, sight, now):
    """How old it all is."""
    last, older = report("b/1", written=200, jobs=sight(201)), report("a/1", written=600, jobs=sight(600))
    reports = WorkerReports(workers=(last, older))
    assert reports.counted(now) == (last,)
    assert reports.sights(now)["jobs"].state(now) is Sees.OVERDUE
    assert WorkerReports().sights(now) == {}


def test_what_every_cluster_has_comes_first(report, sight, now):
    """Then the others, each group by name."""
    reports = WorkerReports(workers=(report(accounting=sight(), metrics=sight(), **dict.fromkeys(EXPECTED, sight())),))
    assert list(reports.sights(now)) == [*sorted(EXPECTED), "accounting", "metrics"]


@given(writes=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1000)), max_size=60))
def test_reports_are_bounded_and_newest_first(writes):
    """However many workers have come and gone, and whoever wrote when."""
    from datetime import UTC, datetime

    start = datetime(2026, 1, 1, tzinfo=UTC)
    reports = WorkerReports()
    for worker, at in writes:
        written = start + at * SECOND
        fresh = WorkerReport(worker=str(worker), version="", mode="", started_at=start, written_at=written)
        reports = reports.with_report(fresh)
        assert fresh in reports.workers or len(reports.workers) == REMEMBERED
    times = [each.written_at for each in reports.workers]
    assert times == sorted(times, reverse=True)
    assert len({each.worker for each in reports.workers}) == len(times) <= REMEMBERED


def test_a_worker_lives_while_it_writes(report, now):
    """It does so every few seconds."""
    assert report(written=WRITTEN_WITHIN / SECOND).lives(now)
    assert not report(written=WRITTEN_WITHIN / SECOND + 1).lives(now)


# --- what a decision rests on ---


@pytest.mark.parametrize("kind", Interruption)
def test_every_kind_rests_on_what_it_needs(kind, sight, now):
    """On jobs and nodes always; what has nothing to say about it does not count."""
    blind = sight(1, problem="no route to host", since=7)
    everything = dict.fromkeys(["jobs", "nodes", "logs", "outbox", "accounting", "ingest", "agents", "metrics"], blind)
    named = {each.detector for each in blind_for(kind, everything, now)}
    assert named == ALWAYS_NEEDED | RESTS_ON[kind]
    assert not named & {"outbox", "accounting"}


def test_blindness_is_told_with_since_when_and_why(sight, now):
    """The person who is asked instead has to know."""
    sights = {"jobs": sight(60), "logs": sight(1), "nodes": sight(90, problem="timed out", since=80)}
    told = [each.text for each in blind_for(Interruption.CRASH, sights, now)]
    assert told == [
        f"watching jobs is overdue since {now - 60 * SECOND:%H:%M:%S} UTC",
        f"watching nodes is blind since {now - 80 * SECOND:%H:%M:%S} UTC: timed out",
    ]


def test_what_has_never_looked_is_unknown_not_blind(sight, now):
    """Right after a start a recovery rests on its own fresh reads; one that has looked in vain is blind."""
    sights = {"jobs": sight(None, since=3), "nodes": sight(None, since=3000), "logs": sight(None, problem="x", since=3)}
    assert [each.detector for each in blind_for(Interruption.CRASH, sights, now)] == ["logs"]


def test_only_the_attempts_own_outputs_blind_it(attempt):
    """Not its nodes' kernel logs, which few sites collect; and an empty output has been read."""
    mine = attempt(stdout="/home/alice/train.out", stderr="/home/alice/train.err")
    told = ("train.out: stale file handle", "train.err: empty", "kernel log of n1: not found", "other.out: gone")
    assert [each.text for each in unread_outputs(mine, told)] == [
        "its output cannot be read: train.out: stale file handle"
    ]
    thrown_away = attempt(stdout="/dev/null")
    assert unread_outputs(thrown_away, ("null: /dev/null: not a regular file",)) == ()
