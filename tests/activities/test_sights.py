"""What detectors see is remembered, written down by each worker, and weighed before anything is done."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.detectors import MOST_UNWRITTEN, Detectors
from relight.activities.sights import WatchBook, blind_now, reports
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.detectors import EXPECTED, FIRST_LOOK, MOST_NAMED, ON_DEMAND, Sees
from relight.domain.evidence import Interruption
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode

MINUTE = timedelta(minutes=1)
SHORT = c.WatchInput(cluster="test", run_for=timedelta(seconds=10))


@pytest.fixture
def detectors(world):
    """Those of the world's worker."""
    return world.site.detectors


@pytest.fixture
def sights(world):
    """What that worker writes down."""
    return WatchBook(world.site, "head/1", "0.1.0")


@pytest.fixture
def state(world, detectors):
    """How a detector does now."""
    return lambda name: detectors.sights()[name].state(world.clock.now)


@pytest.fixture
def told(world):
    """What the rows of blindness say: of what, and why."""

    async def read():
        return [(row.body["what"], row.body["why"]) for row in await world.rows(RowKind.BLIND)]

    return read


def all_see(detectors):
    for name in EXPECTED:
        detectors.saw(name, MINUTE)


# --- in the process ---


def test_what_every_cluster_has_is_waited_for(world, state, detectors):
    """One that never begins to look is missed too."""
    assert {state(name) for name in EXPECTED} == {Sees.WAITING}
    world.clock.on(FIRST_LOOK.total_seconds() + 1)
    assert {state(name) for name in EXPECTED} == {Sees.OVERDUE}


def test_since_when_it_is_as_it_is(world, detectors):
    """The first of several looks in vain counts, and a success begins anew."""
    detectors.saw("nodes", MINUTE)
    world.clock.on(5)
    since = detectors.blind("nodes", "timed out", MINUTE)
    world.clock.on(5)
    assert detectors.blind("nodes", "no route", MINUTE) == since
    found = detectors.sights()["nodes"]
    assert (found.problem, found.looked - found.last) == ("no route", timedelta(seconds=10))
    detectors.saw("nodes", MINUTE)
    assert detectors.sights()["nodes"].since == world.clock.now


def test_a_time_of_blindness_is_kept_until_it_is_written(world, detectors):
    """Also one that nobody told of while it lasted; and bounded, however long the ledger is away."""
    detectors.blind("nodes", "timed out", MINUTE)
    world.clock.on(3)
    detectors.saw("nodes", MINUTE)
    world.clock.on(120)
    detectors.saw("nodes", MINUTE)
    blind, overdue = detectors.over()
    assert (blind.why, (blind.until - blind.since).total_seconds()) == ("timed out", 3)
    assert (overdue.why, (overdue.until - overdue.since).total_seconds()) == ("it has not looked since", 120)
    detectors.written(1)
    assert detectors.over() == (overdue,)
    for _ in range(2 * MOST_UNWRITTEN):
        detectors.blind("nodes", "x", MINUTE)
        detectors.saw("nodes", MINUTE)
    assert len(detectors.over()) == MOST_UNWRITTEN


async def test_the_watchers_say_how_they_do(world, state):
    """Each look counts, and a failed one tells why."""
    await world.run(world.watch.watch_jobs, SHORT)
    assert state("jobs") is Sees.SEES
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    world.after(1, lambda: world.slurm.fail_next("nodes", SlurmUnavailableError("timed out")))
    await world.run(world.watch.watch_nodes, SHORT.model_copy(update={"run_for": timedelta(seconds=2)}))
    assert (state("nodes"), world.site.detectors.sights()["nodes"].problem) == (Sees.BLIND, "timed out")


async def test_following_tells_which_attempts_it_cannot_read(world, state, detectors, tmp_path):
    """One unreadable output does not blind the detector: it blinds its own attempt."""
    (tmp_path / "train.err").mkdir()
    attempt = await world.train(stderr=str(tmp_path / "train.err"))
    await world.run(world.follow.follow_logs, SHORT)
    assert state("logs") is Sees.SEES
    assert detectors.unreadable == {str(attempt.key): str(tmp_path / "train.err")}


# --- in the ledger ---


async def test_what_is_written_can_be_read_by_others(world, sights, detectors):
    """Who works, since when, and each detector's last success."""
    all_see(detectors)
    detectors.followed({f"a{number}": "x.out" for number in range(200)}, MINUTE)
    seen = await sights.write()
    (report,) = (await reports(world.site)).workers
    assert (report.worker, report.mode, report.written_at) == ("head/1", "auto", world.clock.now)
    assert report.sights == seen.sights == dict(sorted(detectors.sights().items()))
    assert (len(report.unreadable), report.unreadable_count) == (MOST_NAMED, 200)


async def test_blindness_is_a_row_once_each_way(world, sights, detectors, told):
    """However often it is looked at meanwhile: that it began, and that it is over."""
    all_see(detectors)
    detectors.blind("outbox", "no answer", MINUTE)
    for _ in range(3):
        await sights.write()
        world.clock.on(5)
    assert await told() == [("outbox", "no answer")]
    detectors.saw("outbox", MINUTE)
    for _ in range(3):
        await sights.write()
    assert await told() == [("outbox", "no answer"), ("outbox", "sees again; before: no answer")]


async def test_one_that_stands_still_is_told_by_its_age(world, sights, detectors, told):
    """Its activity does not run, so it cannot say so itself."""
    all_see(detectors)
    await sights.write()
    world.clock.on(61)
    for name in set(EXPECTED) - {"logs"}:
        detectors.saw(name, 2 * MINUTE)
    await sights.write()
    world.clock.on(5)
    await sights.write()
    over = [("logs", "it has not looked since")]
    assert [each for each in await told() if each[0] == "logs"] == over


async def test_what_a_watcher_has_said_itself_is_not_said_twice(world, sights, told):
    """The row that it writes at once and the one that is written here are the same."""
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    await world.run(world.watch.watch_nodes, SHORT.model_copy(update={"run_for": timedelta(seconds=1)}))
    await sights.write()
    assert await told() == [("nodes", "timed out")]
    await world.run(world.watch.watch_nodes, SHORT)
    await sights.write()
    assert await told() == [("nodes", "timed out"), ("nodes", "sees again; before: timed out")]


async def test_nothing_is_lost_while_the_ledger_is_away(world, sights, detectors, told):
    """Written once it is back."""
    detectors.blind("outbox", "no answer", MINUTE)
    world.clock.on(1)
    detectors.saw("outbox", MINUTE)
    world.ledger.down = True
    with pytest.raises(LedgerUnavailableError):
        await sights.write()
    world.ledger.down = False
    await sights.write()
    assert await told() == [("outbox", "no answer"), ("outbox", "sees again; before: no answer")]


async def test_a_time_without_any_worker_is_told_by_the_next_one(world, sights, detectors, told):
    """And that a detector which the last one left blind sees again."""
    all_see(detectors)
    detectors.blind("nodes", "timed out", MINUTE)
    await sights.write()
    world.clock.on(600)
    object.__setattr__(world.site, "detectors", Detectors(world.clock))
    after = WatchBook(world.site, "head/2", "0.1.0")
    await after.write()
    gap = "no worker has written for more than 30 s"
    assert await told() == [("nodes", "timed out"), ("worker", gap), ("worker", f"sees again; before: {gap}")]
    world.site.detectors.saw("nodes", MINUTE)
    await after.write()
    assert (await told())[-1] == ("nodes", "sees again; before: the worker before this one did not see")
    row = (await world.rows(RowKind.BLIND))[1]
    assert row.body["since"] == (world.clock.now - timedelta(seconds=600)).isoformat()


async def test_of_two_workers_the_one_that_looks_tells(world, sights, detectors, told):
    """The other one's detectors have never looked, and are not overdue for that."""
    idle = WatchBook(world.site, "head/2", "0.1.0")
    resting = Detectors(world.clock)
    for _ in range(20):
        world.clock.on(5)
        all_see(detectors)
        await sights.write()
        object.__setattr__(world.site, "detectors", resting)
        seen = await idle.write()
        object.__setattr__(world.site, "detectors", detectors)
        assert all(sight.sees(world.clock.now) for sight in seen.sights.values())
    assert await told() == []


# --- before a decision ---


@pytest.fixture
def weigh(world):
    """What a decision about a crash cannot rest on."""

    async def call():
        return await world.run(blind_now, world.site, Interruption.CRASH)

    return call


async def test_a_decision_knows_what_any_worker_cannot_see(world, sights, detectors, weigh):
    """By whichever worker looks; what is merely idle here is not blind."""
    detectors.blind("nodes", "timed out", MINUTE)
    await sights.write()
    object.__setattr__(world.site, "detectors", Detectors(world.clock))
    (found,) = await weigh()
    assert (found.detector, found.text.endswith("UTC: timed out")) == ("nodes", True)
    world.site.detectors.saw("nodes", MINUTE)
    world.clock.on(1)
    world.site.detectors.saw("nodes", MINUTE)
    assert await weigh() == ()


async def test_a_worker_that_is_gone_blinds_nobody(world, sights, detectors, weigh):
    """A recovery right after a restart rests on its own fresh reads."""
    all_see(detectors)
    detectors.blind("nodes", "timed out", ON_DEMAND)
    await sights.write()
    world.clock.on(600)
    object.__setattr__(world.site, "detectors", Detectors(world.clock))
    assert await weigh() == ()


async def test_a_detector_may_look_once_more(world, detectors, weigh):
    """Slurm answers again, and the decision was faster than the next look: nobody is called for that."""
    all_see(detectors)
    detectors.blind("nodes", "timed out", MINUTE)
    began = world.clock.now
    world.after(10, lambda: detectors.saw("nodes", MINUTE))
    assert await weigh() == ()
    assert world.clock.now - began == timedelta(seconds=10)
    detectors.blind("nodes", "timed out", MINUTE)
    assert [each.detector for each in await weigh()] == ["nodes"]
    assert world.clock.now - began == timedelta(seconds=30)


@pytest.fixture
def plan(world, ref, detection):
    """Diagnoses an attempt's crash, and plans."""

    async def call(attempt):
        found = detection(attempt, world.clock.now)
        asked = c.DiagnoseInput(incident=ref(attempt), detection=found, evidence=())
        diagnosis = await world.run(world.investigate.diagnose, asked)
        arg = c.PlanInput(incident=ref(attempt), detection=found, diagnosis=diagnosis)
        return await world.run(world.investigate.plan, arg)

    return call


@pytest.mark.parametrize("blind", [False, True])
async def test_a_blind_detector_makes_auto_ask(world, plan, detectors, blind):
    """The plan stays, a person decides."""
    (world.folder / "train.out").write_text("step 1\n")
    attempt = await world.failed()
    all_see(detectors)
    if blind:
        detectors.blind("nodes", "slurmctld does not answer", MINUTE)
    verdict = await plan(attempt)
    assert verdict.mode is (Mode.APPROVE if blind else Mode.AUTO)
    assert ("watching nodes is blind since" in verdict.mode_reason) is blind


@pytest.fixture
def after_a_blip(world, detectors):
    """Slurm answers again; each of its watchers has looked in vain a second ago, and its next look is not due."""

    def make(*names, kind="blind"):
        all_see(detectors)
        if kind == "overdue":
            world.clock.on(61)
            for name in set(EXPECTED) - set(names):
                detectors.saw(name, MINUTE)
        else:
            for name in names:
                detectors.blind(name, "slurmctld does not answer", MINUTE)
        world.clock.on(1)

    return make


@pytest.mark.parametrize("kind", ["blind", "overdue"])
async def test_what_the_plan_itself_has_read_of_slurm_is_fresher(world, plan, after_a_blip, kind):
    """Nobody is asked, and nothing is waited for: both reads that the plan rests on have just worked."""
    (world.folder / "train.out").write_text("step 1\n")
    attempt = await world.failed()
    after_a_blip("jobs", "nodes", kind=kind)
    began = world.clock.now
    assert (await plan(attempt)).mode is Mode.AUTO
    assert world.clock.now == began


@pytest.mark.parametrize("method", ["jobs", "nodes"])
async def test_a_plan_that_cannot_read_slurm_itself_is_not_made(world, plan, after_a_blip, method):
    """It is tried again; nothing is decided on what the watchers saw before."""
    (world.folder / "train.out").write_text("step 1\n")
    attempt = await world.failed()
    after_a_blip(method)
    calls = 2 if method == "nodes" else 1  # the diagnosis reads the nodes as well
    real, reads = getattr(world.slurm, method), []

    async def fails():
        reads.append(method)
        if len(reads) >= calls:
            raise SlurmUnavailableError("timed out")
        return await real()

    object.__setattr__(world.slurm, method, fails)
    with pytest.raises(SlurmUnavailableError):
        await plan(attempt)
    assert await world.rows(RowKind.PLANNED) == ()


async def test_slurm_that_fails_its_watcher_after_the_plans_own_read_is_blind(world, detectors, after_a_blip):
    """The watcher's look is the fresher one then."""
    after_a_blip("nodes")

    async def read():
        world.clock.on(1)

    world.after(1, lambda: detectors.blind("nodes", "timed out again", MINUTE))
    assert await world.run(blind_now, world.site, Interruption.CRASH, {"nodes": read}) == ()
    detectors.blind("logs", "stuck", MINUTE)
    found = await world.run(blind_now, world.site, Interruption.CRASH, {"nodes": read})
    assert [each.detector for each in found] == ["logs", "nodes"]


@pytest.mark.parametrize(
    ("detector", "kind"),
    [("logs", Interruption.CRASH), ("ingest", Interruption.GPU_FAULT), ("metrics", Interruption.GPU_FAULT)],
)
async def test_other_sights_stay_as_they_are(world, detectors, after_a_blip, detector, kind):
    """What a log or a GPU says nobody reads for the plan but its detector."""
    after_a_blip("jobs", "nodes", detector)
    reads = {"jobs": world.slurm.jobs, "nodes": world.slurm.nodes}
    began = world.clock.now
    found = await world.run(blind_now, world.site, kind, reads)
    assert [each.detector for each in found] == [detector]
    assert (world.clock.now - began).total_seconds() == 20


async def test_slurm_is_not_read_for_watchers_that_see(world, detectors):
    """A cluster's nodes and jobs are read once a plan, not twice."""
    all_see(detectors)

    async def never():
        pytest.fail("read without need")

    assert await world.run(blind_now, world.site, Interruption.CRASH, {"jobs": never, "nodes": never}) == ()


async def test_an_output_that_cannot_be_read_makes_auto_ask(world, plan):
    """What it says of the cause is not known."""
    (world.folder / "train.out").mkdir()
    verdict = await plan(await world.failed())
    assert verdict.mode is Mode.APPROVE
    assert "its output cannot be read: train.out" in verdict.mode_reason
