"""GuardCluster: what it grants, what it refuses, and that nobody goes without an answer."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import workflow
from temporalio.client import WorkflowUpdateFailedError
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.domain.attempts import AttemptKey
from relight.domain.breaker import Report, Sign
from relight.domain.diagnosis import Category
from relight.domain.evidence import Interruption
from relight.domain.guard import LEAVE_LASTS, Grant, NodeAct, PartitionCount, Room
from relight.domain.guard_standing import Pause, Standing
from relight.domain.human import Share
from relight.domain.policy import Policy
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState
from relight.workflows import guard_cluster
from relight.workflows.guard_cluster import GuardCluster

_numbers = itertools.count(1)
FOUR = Policy(drains_per_hour=4)
POWER = {"reason": "power work in row 3", "lasts": "PT2H"}


@workflow.defn(name="Requester", sandboxed=False)
class Requester:
    """Stands for an incident that asks for leave: returns the answers to so many requests."""

    def __init__(self):
        self._answers = []

    @workflow.run
    async def run(self, expected: int) -> list[c.Leave]:
        await workflow.wait_condition(lambda: len(self._answers) >= expected)
        return self._answers

    @workflow.signal
    def leave(self, answer: c.Leave) -> None:
        self._answers.append(answer)


class Guard:
    """A running guard and those who ask it."""

    def __init__(self, incident, witness):
        self._incident = incident
        self._witness = witness
        self._queue = f"{incident.task_queue}-requesters"
        self._asked = 0
        self.cluster = incident.attempt.cluster
        self.handle = None

    async def start(self, **state):
        self.handle = await self._incident.client.start_workflow(
            GuardCluster.run,
            c.GuardState(cluster=self.cluster, **state),
            id=c.guard_id(self.cluster),
            task_queue=self._incident.task_queue,
        )

    def worker(self):
        return Worker(self._incident.client, task_queue=self._queue, workflows=[Requester])

    async def requester(self, expected=1):
        self._asked += 1
        return await self._incident.client.start_workflow(
            Requester.run, expected, id=f"{self.cluster}/asks/{self._asked}", task_queue=self._queue
        )

    def request(self, requester, node, *, evidence=None, **changes):
        attempt = AttemptKey.model_validate(self._incident.attempt.model_dump())
        ref = c.IncidentRef(
            id=requester.id,
            workflow_id=requester.id,
            run_id=requester.first_execution_run_id,
            attempt=attempt,
            kind=Interruption.GPU_FAULT,
        )
        seen = (self._witness(node),) if evidence is None else evidence
        return c.DrainRequest(incident=ref, node=node, cls="CUDA_ECC", reason="ECC", evidence=seen, **changes)

    async def send(self, request):
        await self.current.signal("request_drain", request)

    async def ask(self, node, **changes):
        requester = await self.requester()
        await self.send(self.request(requester, node, **changes))
        (answer,) = await requester.result()
        return answer

    @property
    def current(self):
        """The guard's newest run."""
        return self._incident.client.get_workflow_handle(c.guard_id(self.cluster))

    async def begun(self, script, until):
        """Until it has looked and written down how it stands, as each run does first."""

        async def names():
            return script.names

        await until(names, lambda names: c.RECORD_STANDING.name in names)
        script.calls.clear()

    async def report(self, name, **fields):
        """Tell of an incident, as `RecoverJob` does."""
        given = {"sign": Sign.INCIDENT, "category": Category.NODE, "job": name, "began": datetime.now(UTC)}
        await self.current.signal("report", Report(**{**given, "incident": name, **fields}))

    async def trip(self, until):
        """Three nodes at once, and the breaker open."""
        for number in range(3):
            await self.report(f"i{number}", nodes=(f"b{number}",))
        return await until(self.state, lambda state: state.standing.trip is not None)

    async def say(self, update, **fields):
        """A person's word."""
        return await self.current.execute_update(update, {"by": "ada", **fields})

    async def state(self):
        return await self.current.query("state", result_type=c.GuardState)


@pytest.fixture
async def incident(dev_server, stage):
    """On the real server: the other one loses a query that meets a change of run (seen)."""
    async with stage(dev_server.client, job_id=next(_numbers)) as made:
        yield made


@pytest.fixture
async def guard(incident, script, platform_witness, until):
    """A guard of a cluster with four drains an hour."""
    script.on(c.LOOK, script.look(policy=FOUR))
    made = Guard(incident, platform_witness)
    async with made.worker():
        await made.start()
        await made.begun(script, until)
        yield made
        await made.current.terminate()


async def test_grants_a_drain_with_a_platform_witness(guard, script):
    """One look, and the leave recorded before it is given, with how the guard stands; it ends."""
    leave = await guard.ask("n1")
    assert (leave.node, leave.granted, leave.reason) == ("n1", True, "drain 1 of 4 in this hour")
    assert script.names == [c.LOOK.name, c.RECORD_LEAVE.name]
    (recorded,) = script.args(c.RECORD_LEAVE)
    (grant,) = (await guard.state()).grants
    assert recorded.leave == leave
    assert recorded.grant == grant
    assert recorded.standing.grants == (grant,)
    assert leave.expires == grant.at + LEAVE_LASTS


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "the node's state could not be read"),
        (NodeRecord(name="n1", state=NodeState.DOWN), "the node is down already"),
        (
            NodeRecord(name="n1", state=NodeState.IDLE, flags=frozenset({NodeFlag.DRAIN}), reason="bad fan"),
            "already drained by somebody else: bad fan",
        ),
    ],
    ids=["unknown", "down", "drained"],
)
async def test_refuses_what_a_fresh_read_speaks_against(guard, script, record, reason):
    """Unknown is not yes, and what is out already is not taken out again."""
    script.on(c.LOOK, script.look(record or NodeRecord(name="n9", state=NodeState.IDLE), policy=FOUR))
    leave = await guard.ask("n1")
    assert (leave.granted, leave.expires) == (False, None)
    assert reason in leave.reason
    assert script.args(c.RECORD_LEAVE)[0].leave == leave
    assert (await guard.state()).grants == ()


async def test_refuses_without_a_platform_witness_on_that_node(guard, platform_witness):
    """A job's own output never drains a node, nor does a witness of another one."""
    for evidence in ((), (platform_witness("n2"),)):
        leave = await guard.ask("n1", evidence=evidence)
        assert (leave.granted, leave.reason) == (
            False,
            "no platform witness on this node (a job's own output never drains one)",
        )


async def test_the_cap_holds_for_an_hour(incident, script, platform_witness):
    """With the cap used up nothing is granted; what was granted more than an hour ago no longer counts."""
    script.on(c.LOOK, script.look(policy=Policy(drains_per_hour=2)))
    guard = Guard(incident, platform_witness)
    now = datetime.now(UTC)
    grants = tuple(Grant(node=f"n{m}", incident="i1", at=now - timedelta(minutes=m)) for m in (61, 58))
    async with guard.worker():
        await guard.start(grants=grants)
        answers = [await guard.ask(f"n{n}") for n in range(2)]
        assert [answer.granted for answer in answers] == [True, False]
        assert answers[1].reason == "2 of 2 drains of this hour are used on this cluster"
        assert [grant.node for grant in (await guard.state()).grants] == ["n58", "n0"]
        await guard.current.terminate()


async def test_two_incidents_asking_for_one_node_in_one_breath(guard, script):
    """One batch, one read, one grant: the second is told who has it."""
    hold = script.hold(c.LOOK)
    first = await guard.requester()
    await guard.send(guard.request(first, "n0"))
    await hold.started.wait()
    second, third = await guard.requester(), await guard.requester()
    await guard.send(guard.request(second, "n1"))
    await guard.send(guard.request(third, "n1"))
    hold.release.set()
    (granted,), (refused,) = await second.result(), await third.result()
    assert granted.granted
    assert (refused.granted, refused.reason) == (False, f"incident {second.id} has leave for this node already")
    assert [[one.node for one in arg.asked] for arg in script.args(c.LOOK)] == [["n0"], ["n1", "n1"]]


async def test_a_pause_refuses_everything_until_resumed(guard, script):
    """By update, with a name, a reason and an end; it stands in the ledger when the answer comes."""
    told = await guard.say("pause", **POWER)
    assert told.startswith("the cluster is paused by ada until ")
    assert told.endswith(": power work in row 3")
    (written,) = script.args(c.RECORD_STANDING)
    assert (written.what, written.by, written.text) == ("paused", "ada", told)
    assert [pause.by for pause in written.standing.pauses] == ["ada"]
    leave = await guard.ask("n1")
    assert (leave.granted, leave.reason) == (False, told)
    assert "resumed by ada" in await guard.say("resume")
    assert (await guard.ask("n1")).granted


async def test_a_pause_that_makes_no_sense_is_refused(guard, script):
    """The person is told why, and nothing is written."""
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await guard.say("pause", reason="", lasts="PT2H")
    assert "say why" in str(error.value.cause)
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await guard.say("resume")
    assert "the cluster is not paused" in str(error.value.cause)
    assert script.names == []


async def test_many_nodes_at_once_open_the_breaker(guard, script, until):
    """From the third on nothing is granted; one row calls a person, and says what to do."""
    state = await guard.trip(until)
    assert state.standing.trip.why == "3 nodes found broken within 10m"
    await guard.report("i9", nodes=("b9",))
    leave = await guard.ask("n1")
    assert not leave.granted
    assert leave.reason.startswith("the breaker is open since ")
    (tripped,) = script.args(c.RECORD_STANDING)
    assert tripped.what == "tripped"
    assert "(b0, b1, b2); incidents i0, i1, i2" in tripped.text
    assert "relight breaker reset --reason" in tripped.text
    assert script.args(c.RECORD_LEAVE)[0].standing.trip == tripped.standing.trip


async def test_requests_in_the_batch_that_trips_are_refused(guard, script, until):
    """What was told before they are ruled on counts, also when it came after them."""
    hold = script.hold(c.LOOK)
    first = await guard.requester()
    await guard.send(guard.request(first, "n0"))
    await hold.started.wait()
    for number in range(3):
        await guard.report(f"i{number}", nodes=(f"b{number}",))
    hold.release.set()
    (leave,) = await first.result()
    assert not leave.granted
    assert "the breaker is open" in leave.reason


async def test_a_reset_does_not_replay_the_backlog(guard, script, until):
    """A person's name and reason; what was counted is forgotten, and what began before is refused for good."""
    before = datetime.now(UTC)
    await guard.trip(until)
    hold = script.hold(c.LOOK)
    first, waiting = await guard.requester(), await guard.requester()
    await guard.send(guard.request(first, "n0"))
    await hold.started.wait()
    await guard.send(guard.request(waiting, "n1"))
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await guard.say("reset_breaker", reason=" ")
    assert "say why" in str(error.value.cause)
    assert (await guard.say("reset_breaker", reason="switch replaced")).startswith("reset by ada: switch replaced")
    hold.release.set()
    for requester in (first, waiting):
        (leave,) = await requester.result()
        assert not leave.granted
        assert "began before ada reset the breaker" in leave.reason
    assert "began before" in (await guard.ask("n2", began=before)).reason
    for number in range(2):
        await guard.report(f"x{number}", nodes=(f"x{number}",))
    assert (await guard.ask("n3")).granted, "what was counted before still counts"
    state = await guard.state()
    assert state.standing.trip is None
    assert (state.standing.reset.by, state.standing.reset.reason) == ("ada", "switch replaced")
    await guard.report("x2", nodes=("x2",))
    await until(guard.state, lambda state: state.standing.trip is not None)


async def test_what_the_ledger_knows_outlasts_a_terminated_guard(incident, script, platform_witness):
    """Grants of the hour, pauses and the breaker: whoever ends the workflow has not ended those."""
    now = datetime.now(UTC)
    known = Standing(
        written_at=now,
        pauses=(Pause(by="ada", reason="power", since=now, until=now + timedelta(hours=1), node="n7"),),
    )
    grants = (Grant(node="n9", incident="i1", at=now - timedelta(minutes=30)),)
    script.on(c.LOOK, script.look(policy=Policy(drains_per_hour=2), standing=known, grants=grants))
    guard = Guard(incident, platform_witness)
    async with guard.worker():
        await guard.start()
        assert "paused by ada" in (await guard.ask("n7")).reason
        answers = [await guard.ask(f"n{number}") for number in range(2)]
        assert [answer.granted for answer in answers] == [True, False]
        await guard.current.terminate()


async def test_a_standing_that_cannot_be_read_counts_as_an_open_breaker(incident, script, platform_witness):
    """There may be a pause or an open breaker in it: a person must look, then reset."""
    script.on(c.LOOK, script.look(policy=FOUR, standing=Standing(unknown="garbled")))
    guard = Guard(incident, platform_witness)
    async with guard.worker():
        await guard.start()
        assert "a person must look" in (await guard.ask("n7")).reason
        await guard.say("reset_breaker", reason="looked")
        assert (await guard.ask("n7")).granted
        await guard.current.terminate()


async def test_a_run_from_before_an_upgrade_grants_nothing_until_it_is_renewed(
    incident, script, platform_witness, monkeypatch, until
):
    """Its commands stay those of then; a worker that starts lets it begin anew, with the limits of now."""
    script.on(c.LOOK, script.look(policy=FOUR))
    guard = Guard(incident, platform_witness)
    with monkeypatch.context() as before:
        before.setattr(workflow, "patched", lambda _patch: False)
        async with guard.worker():
            await guard.start()
            assert "from before an upgrade" in (await guard.ask("n1")).reason
            assert script.names == [c.READ_POLICY.name, c.READ_NODES.name, c.RECORD_LEAVE.name]
    old_run = (await guard.current.describe()).run_id
    async with guard.worker():
        await guard.current.signal("renew")

        async def run_id():
            return (await guard.current.describe()).run_id

        await until(run_id, lambda found: found != old_run)
        assert (await guard.ask("n1")).granted
        await guard.current.terminate()


async def test_leave_to_declare_a_node_down_has_a_count_of_its_own(guard, script):
    """As asked by the care of a node that hangs in COMPLETING."""
    record = NodeRecord(name="n1", state=NodeState.ALLOCATED, flags=frozenset({NodeFlag.COMPLETING}))
    script.on(c.LOOK, script.look(record, policy=Policy(drains_per_hour=0)))
    leave = await guard.ask("n1", action=NodeAct.DOWN)
    assert (leave.granted, leave.action, leave.reason) == (True, NodeAct.DOWN, "down 1 of 1 in this hour")
    assert not (await guard.ask("n1")).granted


@pytest.mark.parametrize(
    "node", ["", "ALL", "n[1-4]", "--all", "n" * 60_000], ids=["empty", "all", "list", "option", "long"]
)
async def test_a_wild_target_is_refused_and_recorded(guard, script, node, platform_witness):
    """It is never even asked of Slurm."""
    leave = await guard.ask(node, evidence=(platform_witness("n1"),))
    assert not leave.granted
    assert script.args(c.LOOK)[0].asked == ()
    (recorded,) = script.args(c.RECORD_LEAVE)
    assert not recorded.leave.granted


async def test_rooms_and_counts_go_down_within_a_batch(guard, script):
    """One look serves several requests: what was granted a moment ago is not seen in it yet."""
    gpu = tuple(NodeRecord(name=f"n{n}", state=NodeState.IDLE, partitions=("gpu",)) for n in range(4))
    policy = Policy(drains_per_hour=9, drain_share=Share(1), most_unavailable=Share(0.5))
    look = {"partitions": (PartitionCount(name="gpu", nodes=4, out=0),)}
    script.on(
        c.LOOK, script.look(*gpu, policy=policy, room=dict.fromkeys(("n1", "n2"), Room(needs=3, spare=3)), **look)
    )
    hold = script.hold(c.LOOK)
    requesters = [await guard.requester() for _ in range(4)]
    await guard.send(guard.request(requesters[0], "n0"))
    await hold.started.wait()
    await guard.send(guard.request(requesters[1], "n1", restarts=True))
    await guard.send(guard.request(requesters[2], "n2"))
    await guard.send(guard.request(requesters[3], "n3"))
    hold.release.set()
    answers = [(await one.result())[0] for one in requesters]
    assert [answer.granted for answer in answers] == [True, False, True, False]
    assert "only 2 would be left" in answers[1].reason
    assert "2 of 4 nodes of partition gpu are out of service" in answers[3].reason


async def test_a_requester_that_has_ended_does_not_stop_the_guard(guard):
    """Its answer reaches nobody; the next is served."""
    gone = await guard.requester(expected=0)
    await gone.result()
    await guard.send(guard.request(gone, "n1"))
    assert (await guard.ask("n2")).granted
    assert (await guard.state()).handled == 2


async def test_a_leave_reaches_the_run_that_asked_and_no_later_one(guard, script):
    """The next incident of an attempt has the same workflow id; an old leave must not be its own."""
    hold = script.hold(c.LOOK)
    first = await guard.requester()
    await guard.send(guard.request(first, "n1"))
    await hold.started.wait()
    await first.terminate()
    again = await guard._incident.client.start_workflow(Requester.run, 1, id=first.id, task_queue=guard._queue)
    await guard.send(guard.request(again, "n2"))
    hold.release.set()
    assert [leave.node for leave in await again.result()] == ["n2"]


async def test_a_read_that_cannot_succeed_is_a_refusal(guard, script, gives_up):
    """The guard answers and lives on: with it would go the count of the hour."""
    script.on(c.LOOK, gives_up("no"))
    leave = await guard.ask("n1")
    assert not leave.granted
    assert leave.reason.startswith("the guard could not look")
    script.on(c.LOOK, script.look())
    assert (await guard.ask("n1")).granted


async def test_what_the_ledger_does_not_take_is_not_granted(guard, script, gives_up):
    """No ledger, no mutation: the leave becomes a refusal, though it counts against the cap."""
    script.on(c.RECORD_LEAVE, gives_up("the chain is broken"))
    leave = await guard.ask("n1")
    assert (leave.granted, leave.expires) == (False, None)
    assert "the chain is broken" in leave.reason
    assert len((await guard.state()).grants) == 1


async def test_continues_as_new_and_loses_no_request(guard, script, monkeypatch):
    """Requests before, during and after the change of run are all answered, in order, and the grants go along."""
    monkeypatch.setattr(guard_cluster, "REQUESTS_PER_RUN", 5)
    script.on(c.LOOK, script.look(policy=Policy(drains_per_hour=40)))
    requester = await guard.requester(expected=33)
    first_run = (await guard.current.describe()).run_id
    for n in range(33):
        await guard.send(guard.request(requester, f"n{n}"))
    answers = await requester.result()
    assert [answer.node for answer in answers] == [f"n{n}" for n in range(33)]
    assert all(answer.granted for answer in answers)
    state = await guard.state()
    assert (state.handled, len(state.grants)) == (33, 33)
    assert (await guard.current.describe()).run_id != first_run


async def test_a_pause_waits_for_an_answer_that_is_being_written(guard, script, until):
    """One after the other: an older standing must never be written over a newer one."""
    hold = script.hold(c.RECORD_LEAVE)
    first = await guard.requester()
    await guard.send(guard.request(first, "n0"))
    await hold.started.wait()
    pause = asyncio.create_task(guard.say("pause", **POWER))
    second = await guard.requester()
    await guard.send(guard.request(second, "n1"))
    await asyncio.wait([pause], timeout=0.5)
    assert script.args(c.RECORD_STANDING) == []
    hold.release.set()
    assert "paused by ada" in await pause
    assert (await first.result())[0].granted
    assert "paused by ada" in (await second.result())[0].reason
    times = [
        arg.standing.written_at for name, arg in script.calls if name in {c.RECORD_LEAVE.name, c.RECORD_STANDING.name}
    ]
    assert times == sorted(times)


async def test_what_is_told_while_the_run_changes_is_counted(guard, script, monkeypatch, until):
    """Reports go along with the state, and the next run looks at them first."""
    monkeypatch.setattr(guard_cluster, "REQUESTS_PER_RUN", 1)
    for number in range(3):
        await guard.report(f"i{number}", nodes=(f"b{number}",))
        await guard.current.signal("renew")
    await until(guard.state, lambda state: state.standing.trip is not None)


async def test_pauses_and_the_breaker_outlast_the_run(guard, monkeypatch, until):
    """What people have said is part of the state that goes along."""
    monkeypatch.setattr(guard_cluster, "REQUESTS_PER_RUN", 1)
    await guard.say("pause", **POWER)
    await guard.trip(until)
    for n in range(3):
        assert "paused by ada" in (await guard.ask(f"n{n}")).reason
    await guard.say("resume")
    for n in range(3):
        assert "the breaker is open" in (await guard.ask(f"n{n}")).reason
