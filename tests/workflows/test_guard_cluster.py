"""GuardCluster: what it grants, what it refuses, and that nobody goes without an answer."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import workflow
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.domain.attempts import AttemptKey
from relight.domain.evidence import Interruption
from relight.domain.guard import LEAVE_LASTS, Grant
from relight.domain.policy import Policy
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState
from relight.workflows import guard_cluster
from relight.workflows.guard_cluster import GuardCluster

_numbers = itertools.count(1)


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

    def request(self, requester, node, *, evidence=None):
        attempt = AttemptKey.model_validate(self._incident.attempt.model_dump())
        ref = c.IncidentRef(
            id=requester.id,
            workflow_id=requester.id,
            run_id=requester.first_execution_run_id,
            attempt=attempt,
            kind=Interruption.GPU_FAULT,
        )
        seen = (self._witness(node),) if evidence is None else evidence
        return c.DrainRequest(incident=ref, node=node, cls="CUDA_ECC", reason="ECC", evidence=seen)

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

    async def state(self):
        return await self.current.query("state", result_type=c.GuardState)


@pytest.fixture
async def incident(dev_server, stage):
    """On the real server: the other one loses a query that meets a change of run (seen)."""
    async with stage(dev_server.client, job_id=next(_numbers)) as made:
        yield made


@pytest.fixture
async def guard(incident, script, platform_witness):
    """A guard of a cluster with four drains an hour."""
    script.on(c.READ_POLICY, Policy(drains_per_hour=4))
    made = Guard(incident, platform_witness)
    async with made.worker():
        await made.start()
        yield made
        await made.current.terminate()


def nodes(*records):
    """What Slurm shows."""
    return c.Nodes(nodes=records)


async def test_grants_a_drain_with_a_platform_witness(guard, script):
    """The leave is recorded before it is given, and ends."""
    leave = await guard.ask("n1")
    assert (leave.node, leave.granted, leave.reason) == ("n1", True, "drain 1 of 4 in this hour")
    assert script.names == [c.READ_POLICY.name, c.READ_NODES.name, c.RECORD_LEAVE.name]
    (recorded,) = script.args(c.RECORD_LEAVE)
    assert recorded.leave == leave
    (grant,) = (await guard.state()).grants
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
    script.on(c.READ_NODES, nodes(*([record] if record else [])))
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
    script.on(c.READ_POLICY, Policy(drains_per_hour=2))
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
    hold = script.hold(c.READ_POLICY)
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
    assert [arg.nodes for arg in script.args(c.READ_NODES)] == [("n0",), ("n1",)]


async def test_a_pause_refuses_everything_until_resumed(guard, script):
    """For people, by update; the page says who."""
    assert await guard.current.execute_update("pause", "ada: power work in row 3") == (
        "paused by ada: power work in row 3"
    )
    leave = await guard.ask("n1")
    assert (leave.granted, leave.reason) == (False, "paused by ada: power work in row 3")
    assert await guard.current.execute_update("resume") == "resumed"
    assert (await guard.ask("n1")).granted


async def test_a_requester_that_has_ended_does_not_stop_the_guard(guard):
    """Its answer reaches nobody; the next is served."""
    gone = await guard.requester(expected=0)
    await gone.result()
    await guard.send(guard.request(gone, "n1"))
    assert (await guard.ask("n2")).granted
    assert (await guard.state()).handled == 2


async def test_a_leave_reaches_the_run_that_asked_and_no_later_one(guard, script):
    """The next incident of an attempt has the same workflow id; an old leave must not be its own."""
    hold = script.hold(c.READ_POLICY)
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
    script.on(c.READ_POLICY, gives_up("no"))
    leave = await guard.ask("n1")
    assert not leave.granted
    assert leave.reason.startswith("the guard could not look")
    script.on(c.READ_POLICY, Policy())
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
    script.on(c.READ_POLICY, Policy(drains_per_hour=40))
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


async def test_a_pause_outlasts_the_run(guard, monkeypatch):
    """What people have said is part of the state that goes along."""
    monkeypatch.setattr(guard_cluster, "REQUESTS_PER_RUN", 1)
    await guard.current.execute_update("pause", "ada")
    assert [(await guard.ask(f"n{n}")).reason for n in range(3)] == ["paused by ada"] * 3
