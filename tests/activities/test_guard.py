"""The guard's fresh look, what it writes down, and the last look before each change."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.guard import Guard
from relight.activities.guard_standing import StoppedError, check_write, standing
from relight.activities.mutations import Mutation
from relight.clients.kill_switch import KillSwitchUnknownError
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.breaker import Trip
from relight.domain.guard import Grant, NodeAct, PartitionCount, Room
from relight.domain.guard_standing import Pause, Reset, Standing, standing_cursor
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Mode
from relight.domain.topology import FailureDomain, Topology

HOUR = timedelta(hours=1)


@pytest.fixture
def guard(world):
    """The guard's activities; n1 to n4 are of partition gpu."""
    for name, record in world.slurm.node_records.items():
        world.slurm.node_records[name] = record.model_copy(update={"partitions": ("gpu",)})
    return Guard(world.site)


@pytest.fixture
async def attempt(world):
    """A job on two nodes that failed."""
    return await world.failed()


@pytest.fixture
def answer(world, ref, attempt):
    """Records the guard's answer on a node."""

    async def make(node="n3", *, granted=True, name="i1", **fields):
        now = world.clock.now
        request = c.DrainRequest(incident=ref(attempt, name=name), node=node, cls="X", reason="y", evidence=())
        leave = c.Leave(node=node, granted=granted, reason="because")
        given = {"answer": f"run-{now.timestamp()}", "standing": Standing(written_at=now)}
        if granted:
            given["grant"] = Grant(node=node, incident=name, at=now, partitions=("gpu",), domains=("switch s1",))
        await world.run(world.nodes.record_leave, c.LeaveInput(request=request, leave=leave, **{**given, **fields}))

    return make


async def look(world, guard, *nodes, **fields):
    asked = tuple(c.Asked(node=node) for node in nodes)
    return await world.run(guard.look, c.LookInput(cluster="test", asked=asked, **fields))


async def stand(world, known):
    await world.ledger.commit(Change(cursors={standing_cursor("test"): known.model_dump(mode="json")}))


async def test_one_look_shows_all_that_is_decided_by(world, guard):
    """Nodes, partitions, failure domains, the policy and the standing."""
    world.slurm.slurm_topology = Topology(domains=(FailureDomain(name="switch s1", nodes=("n1", "n3")),))
    await world.slurm.drain("n4", "relight:i0:X: y")
    paused = Standing(pauses=(Pause(by="a", reason="b", since=world.clock.now, until=world.clock.now + HOUR),))
    await stand(world, paused)
    found = await look(world, guard, "n1", "n2", granted=("n4",))
    assert [node.name for node in found.nodes] == ["n1", "n2", "n4"]
    assert found.partitions == (PartitionCount(name="gpu", nodes=4, out=1),)
    assert found.domains == {"n1": ("switch s1",), "n2": ()}
    assert (found.policy.mode, found.standing, found.unknown) == (Mode.AUTO, paused, "")


async def test_without_a_node_slurm_is_not_asked(world, guard):
    """An incident that is told must not wait for a slurmctld that hangs."""
    world.slurm.fail_next("nodes", SlurmUnavailableError("frozen"))
    found = await look(world, guard)
    assert (found.nodes, found.unknown, found.domains) == ((), "", None)


async def test_what_slurm_does_not_tell_is_unknown(world, guard):
    """No node, or no topology: said, and never an empty answer."""
    world.slurm.fail_next("nodes", SlurmUnavailableError("frozen"))
    assert (await look(world, guard, "n1")).unknown == "frozen"
    world.slurm.fail_next("topology", SlurmUnavailableError("frozen"))
    found = await look(world, guard, "n1")
    assert found.nodes
    assert found.domains is None


async def test_room_for_the_job_that_waits(world, guard, attempt):
    """Nodes of its partition that could take it, without the one asked for, those with leave, and the user's own."""
    world.change(attempt, partition="gpu")
    asked = (c.Asked(node="n1", attempt=attempt.key), c.Asked(node="n2"))
    found = await world.run(guard.look, c.LookInput(cluster="test", asked=asked))
    assert found.room == {"n1": Room(needs=2, spare=3)}
    found = await world.run(guard.look, c.LookInput(cluster="test", asked=asked, pending=("n2",)))
    assert found.room == {"n1": Room(needs=2, spare=2)}
    assert found.pending == ("n2",)
    unknown = attempt.key.model_copy(update={"job_id": 999})
    asked = (c.Asked(node="n1", attempt=unknown),)
    assert (await world.run(guard.look, c.LookInput(cluster="test", asked=asked))).room == {}


async def test_grants_are_read_back_from_the_ledger(world, guard, answer):
    """Those of the last hour, refusals left out: a guard that is started anew goes on counting."""
    await answer("n1", name="i0")
    world.clock.on(1800)
    await answer("n2", name="i1")
    await answer("n3", name="i2", granted=False)
    world.clock.on(1801)
    (grant,) = (await look(world, guard)).grants
    assert (grant.node, grant.incident, grant.partitions, grant.domains) == ("n2", "i1", ("gpu",), ("switch s1",))


async def test_each_answer_is_a_row_and_the_standing_goes_with_it(world, answer):
    """The same incident may ask twice: both answers are kept; an answer written again is one."""
    await answer("n3", granted=False)
    await answer("n3", granted=False)
    world.clock.on(60)
    await answer("n3")
    rows = await world.rows(RowKind.LEAVE)
    assert [row.body["leave"]["granted"] for row in rows] == [False, True]
    assert (await standing(world.site)).written_at == world.clock.now
    world.ledger.refused = {RowKind.LEAVE}
    world.clock.on(60)
    with pytest.raises(LedgerUnavailableError):
        await answer("n3", name="i2")
    assert (await standing(world.site)).written_at == world.clock.now - timedelta(seconds=60)


async def test_a_wild_name_fits_into_a_row(world, answer):
    """What asks may send anything."""
    await answer("n" * 60_000, granted=False)
    (row,) = await world.rows(RowKind.LEAVE)
    assert len(row.node) <= 100
    assert len(row.body["leave"]["node"]) <= 100


async def drained(world, ref, attempt, node="n3"):
    """A drain of ours, as its activity writes it down."""
    mutation = Mutation(world.site, ref(attempt), f"drain-{node}")
    await mutation.intend({"what": "drain"}, node)
    await mutation.effect(c.Done(text="drained", at=world.clock.now), node)


async def test_a_person_who_put_a_node_back(world, guard, ref, attempt, answer):
    """Where the care of the node has seen it, that time counts; else when the guard first finds it in service."""
    assert (await look(world, guard, "n3")).undrained == {}
    await drained(world, ref, attempt)
    world.clock.on(3600)
    first = world.clock.now
    assert (await look(world, guard, "n3", "n1")).undrained == {"n3": first}
    await answer("n3", granted=False, undrained_at=first)
    world.clock.on(3600)
    assert (await look(world, guard, "n3")).undrained == {"n3": first}
    body = {"what": "drain", "by": "bob"}
    entry = world.site.entry("reversed", RowKind.REVERSED, body).model_copy(update={"node": "n3"})
    await world.ledger.commit(Change(entries=(entry,)))
    found = await look(world, guard, "n3")
    assert found.undrained == {"n3": world.clock.now}
    assert [(told.nodes, told.at) for told in found.reversals] == [(("n3",), world.clock.now)]


async def test_a_node_that_relight_put_back_is_nobodys_reversal(world, guard, ref, attempt):
    """Nor is one that is still drained, or that was never drained after all."""
    await drained(world, ref, attempt)
    await world.slurm.drain("n3", "relight:i1:X: y")
    assert (await look(world, guard, "n3")).undrained == {}
    await world.slurm.undrain("n3")
    mutation = Mutation(world.site, ref(attempt), "undrain-n3")
    await mutation.intend({"what": "undrain"}, "n3")
    await mutation.effect(c.Done(text="in service", at=world.clock.now), "n3")
    assert (await look(world, guard, "n3")).undrained == {}


async def test_what_changes_is_a_row_and_the_standing_goes_with_it(world, guard, caplog):
    """In one transaction; the breaker is an error in the worker's log as well."""
    trip = Trip(at=world.clock.now, why="3 nodes found broken within 10m")
    arg = c.StandingInput(
        cluster="test", standing=Standing(trip=trip), entry="guard/test/r/1/tripped", what="tripped", text=str(trip)
    )
    await world.run(guard.record_standing, arg)
    (row,) = await world.rows(RowKind.GUARD)
    assert (row.body["what"], row.body["text"]) == ("tripped", str(trip))
    assert (await standing(world.site)).trip == trip
    assert "the breaker is open: 3 nodes found broken" in caplog.text
    await world.run(
        guard.record_standing, c.StandingInput(cluster="test", standing=Standing(written_at=world.clock.now))
    )
    assert len(await world.rows(RowKind.GUARD)) == 1
    assert (await standing(world.site)).trip is None


async def test_an_older_standing_is_not_written_over_a_newer_one(world, guard, answer):
    """A try that was thought lost ends late: the pause that came meanwhile stays."""
    pause = Pause(by="ada", reason="power", since=world.clock.now, until=world.clock.now + HOUR)
    newer = Standing(written_at=world.clock.now + timedelta(seconds=1), pauses=(pause,))
    await world.run(guard.record_standing, c.StandingInput(cluster="test", standing=newer, entry="e", what="paused"))
    await answer("n3", granted=False)
    await world.run(
        guard.record_standing, c.StandingInput(cluster="test", standing=Standing(written_at=world.clock.now))
    )
    assert (await standing(world.site)).pauses == (pause,)
    assert len(await world.rows(RowKind.LEAVE)) == 1


async def test_a_standing_that_cannot_be_understood_is_unknown(world, guard, ref, attempt):
    """Not "all is well"; one that was never written is: nobody has paused anything then."""
    assert (await standing(world.site)).unknown == ""
    await world.ledger.commit(Change(cursors={standing_cursor("test"): {"pauses": "all"}}))
    assert "cannot be read" in (await standing(world.site)).unknown
    arg = c.MayActInput(incident=ref(attempt), began=world.clock.now, partition="gpu")
    assert "cannot be read" in (await world.run(guard.may_act, arg)).unknown


async def test_whether_an_incident_may_act_now(world, guard, ref, attempt):
    """By the standing of this moment and the kill switch, in the incident's partition."""
    arg = c.MayActInput(incident=ref(attempt), began=world.clock.now, partition="gpu")
    assert await world.run(guard.may_act, arg) == c.MayAct()
    now = world.clock.now
    pause = Pause(by="ada", reason="power", since=now, until=now + HOUR, partition="gpu")
    await stand(world, Standing(pauses=(pause,)))
    assert (await world.run(guard.may_act, arg)).stop == str(pause)
    world.clock.on(3600)
    assert await world.run(guard.may_act, arg) == c.MayAct()
    await stand(world, Standing(reset=Reset(at=world.clock.now, by="ada", reason="x")))
    assert "began before" in (await world.run(guard.may_act, arg)).stop


# --- the kill switch ------------------------------------------------------------------------------------------------


@pytest.fixture
def kill(world, tmp_path):
    """The file's path."""
    object.__setattr__(world.site, "kill_switch", tmp_path / "KILL")
    return tmp_path / "KILL"


@pytest.fixture
def cut_off(world, tmp_path):
    """Puts the kill switch where it cannot be looked for (a real error: the folder is a link to itself), and back."""
    (tmp_path / "loop").symlink_to("loop")

    def put(*, away=True):
        object.__setattr__(world.site, "kill_switch", tmp_path / ("loop/KILL" if away else "KILL"))

    put()
    return put


@pytest.mark.parametrize("what", ["requeue", "drain"])
async def test_a_kill_switch_that_cannot_be_looked_for_is_unknown(world, cut_off, ref, attempt, what):
    """Nothing is written, not even an intent, and the try after it goes on: neither a yes nor a no."""
    mutation = Mutation(world.site, ref(attempt), what)
    with pytest.raises(KillSwitchUnknownError):
        await mutation.intend({"what": what}, "n3")
    assert await world.rows(RowKind.INTENT) == ()
    cut_off(away=False)
    await mutation.intend({"what": what}, "n3")
    assert [row.body["what"] for row in await world.rows(RowKind.INTENT)] == [what]


async def test_an_incident_waits_until_the_kill_switch_can_be_looked_for(world, guard, cut_off, ref, act):
    """Plan, last look and requeue are tried again by Temporal; each then ends as if nothing had been."""
    (world.folder / "train.out").write_text("step 1\n")
    attempt = await world.failed()
    found = act(attempt).detection
    diagnosis = await world.run(world.investigate.diagnose, c.DiagnoseInput(incident=ref(attempt), detection=found))
    plan = c.PlanInput(incident=ref(attempt), detection=found, diagnosis=diagnosis)
    asks = c.MayActInput(incident=ref(attempt), began=world.clock.now, partition="gpu")
    steps = [(world.investigate.plan, plan), (guard.may_act, asks), (world.restart.requeue, act(attempt))]
    for step in steps:
        with pytest.raises(KillSwitchUnknownError):
            await world.run(*step)
    assert world.writes == []
    assert await world.rows(RowKind.PLANNED) == ()
    cut_off(away=False)
    verdict, may, done = [await world.run(*step) for step in steps]
    assert (verdict.mode, may, done.outcome) == (Mode.AUTO, c.MayAct(), None)
    assert world.writes == ["requeue"]


async def test_the_guard_refuses_on_an_unknown_kill_switch_and_goes_on(world, guard, cut_off):
    """It has one loop: what is told is counted, and what people say is written down, all the same."""
    found = await look(world, guard, "n1")
    assert "the kill switch cannot be looked for" in found.unknown
    assert found.nodes == ()
    assert (await look(world, guard)).unknown == ""
    pause = Pause(by="ada", reason="power", since=world.clock.now, until=world.clock.now + HOUR)
    paused = Standing(written_at=world.clock.now, pauses=(pause,))
    await world.run(guard.record_standing, c.StandingInput(cluster="test", standing=paused, entry="e", what="paused"))
    assert (await look(world, guard)).standing.pauses == (pause,)


async def test_the_guard_sees_the_kill_switch(world, guard, kill):
    """In the look for a request; without one there is nothing to stop."""
    kill.touch()
    assert (await look(world, guard, "n1")).standing.killed == f"{kill} is there"
    kill.unlink()
    assert (await look(world, guard, "n1")).standing.killed == ""


@pytest.mark.parametrize("what", ["requeue", "exclude", "start", "cancel", "drain", "down", "anything new"])
async def test_nothing_is_written_while_the_kill_switch_is_on(world, kill, ref, attempt, what):
    """Not even the intent: the ledger tells of nothing that was never meant to happen."""
    kill.touch()
    with pytest.raises(StoppedError, match="the kill switch is on"):
        await Mutation(world.site, ref(attempt), what).intend({"what": what}, "n3")
    assert await world.rows(RowKind.INTENT) == ()


@pytest.mark.parametrize("what", ["allow", "undrain", "release"])
async def test_undo_is_never_refused(world, kill, ref, attempt, what):
    """Neither by the kill switch nor by the breaker, a pause, or a standing that cannot be read."""
    kill.touch()
    now = world.clock.now
    pause = Pause(by="a", reason="b", since=now, until=now + HOUR)
    await stand(world, Standing(trip=Trip(at=now, why="x"), pauses=(pause,)))
    await Mutation(world.site, ref(attempt), what).intend({"what": what}, "n3")
    await world.ledger.commit(Change(cursors={standing_cursor("test"): {"pauses": 3}}))
    await check_write(world.site, what, "n3")
    assert [row.body["what"] for row in await world.rows(RowKind.INTENT)] == [what]


async def test_an_exclusion_is_taken_back_while_all_is_stopped(world, kill, ref, act):
    """The activity itself, on a job that is queued again."""
    attempt = await world.requeued()
    exclude = c.ExcludeInput(incident=ref(attempt), nodes=("n2",))
    await world.run(world.restart.exclude, exclude)
    kill.touch()
    with pytest.raises(StoppedError):
        await world.run(world.restart.start, act(attempt))
    await world.run(world.restart.exclude, exclude.model_copy(update={"take_back": True}))
    assert world.record(attempt).excluded_nodes == ()


@pytest.mark.parametrize("what", list(NodeAct))
async def test_a_node_is_not_taken_out_once_it_is_paused_or_the_breaker_is_open(world, what):
    """Leave given a minute before does not help; a restart that is half done is finished all the same."""
    now = world.clock.now
    pause = Pause(by="ada", reason="power", since=now, until=now + HOUR, node="n3")
    for known in (Standing(pauses=(pause,)), Standing(trip=Trip(at=now, why="x"))):
        await stand(world, known)
        with pytest.raises(StoppedError):
            await check_write(world.site, what, "n3")
        await check_write(world.site, "start")
    await stand(world, Standing(pauses=(pause,), reset=Reset(at=now, by="a", reason="b")))
    await check_write(world.site, what, "n2")


@pytest.mark.parametrize("what", list(NodeAct))
async def test_a_partition_that_is_paused_keeps_its_nodes(world, guard, what):
    """Also where the pause came after leave was given; another partition's nodes are not kept for it."""
    now = world.clock.now
    pause = {"by": "ada", "reason": "power", "since": now, "until": now + HOUR}
    await stand(world, Standing(pauses=(Pause(**pause, partition="gpu"),)))
    with pytest.raises(StoppedError, match="partition gpu is paused"):
        await check_write(world.site, what, "n3")
    world.slurm.fail_next("node", SlurmUnavailableError("frozen"))
    with pytest.raises(SlurmUnavailableError):
        await check_write(world.site, what, "n3")
    await stand(world, Standing(pauses=(Pause(**pause, partition="cpu"),)))
    await check_write(world.site, what, "n3")


async def test_a_plan_made_while_it_is_stopped_is_only_observed(world, kill, ref, detection, attempt):
    """With the reason, and written down so."""
    kill.write_text("fire drill")
    found = detection(attempt, world.clock.now)
    diagnosis = await world.run(world.investigate.diagnose, c.DiagnoseInput(incident=ref(attempt), detection=found))
    arg = c.PlanInput(incident=ref(attempt), detection=found, diagnosis=diagnosis)
    verdict = await world.run(world.investigate.plan, arg)
    assert (verdict.mode, verdict.mode_reason) == (
        Mode.MONITOR,
        f"the kill switch is on: {kill} is there: fire drill",
    )
    kill.unlink()
    verdict = await world.run(world.investigate.plan, arg.model_copy(update={"incident": ref(attempt, name="i2")}))
    assert verdict.mode is not Mode.MONITOR
