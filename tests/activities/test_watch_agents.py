"""Nodes of which nothing is heard: lost with a second witness, and never said of all at once."""

from datetime import timedelta

import pytest

from relight.activities.ingest import Ingest
from relight.activities.watch_agents import BLIND_AFTER, WatchAgents
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.evidence import Interruption, Source, Trust
from relight.domain.ledger import RowKind
from relight.domain.reports import Beat, Report
from relight.domain.slurm import NodeFlag, NodeState
from relight.domain.watching import nodes_down

BEAT, SILENCE = 5, 7
"""Seconds: an agent's period, and after how long it is silent."""
NAMES = ("n1", "n2", "n3", "n4")


class Network:
    """Which nodes' slurmd take a connection: all but those in `gone`; of those in `unknown` it cannot be told."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.unknown: set[str] = set()
        self.asked: list[str] = []

    async def answers(self, host: str, _port: int) -> bool | None:
        """Addresses are the nodes' names here."""
        self.asked.append(host)
        return None if host in self.unknown else host not in self.gone


@pytest.fixture
def network(world):
    """The cluster's network, and slurmd at an address on every node."""
    made = Network()
    object.__setattr__(world.site, "reach", made)
    for name, node in world.slurm.node_records.items():
        world.slurm.node_records[name] = node.model_copy(update={"address": name, "port": 6818})
    return made


class Agents:
    """The nodes' agents and who watches them. Time passes second by second, and all but those in `dead` beat."""

    def __init__(self, world) -> None:
        self._world = world
        self.ingest = Ingest(world.site, lambda: None)
        self.watch = WatchAgents(world.site, self.ingest)
        self.dead: set[str] = set()
        self.boots = dict.fromkeys(NAMES, "b1")
        self._second = 0

    async def beat(self, *names: str) -> None:
        """Let these beat now."""
        for name in names:
            beat = Beat(at=self._world.clock.now)
            await self.ingest.report(Report(node=name, boot=self.boots[name], every=BEAT, beat=beat))

    async def train(self, **fields):
        """A job that runs; all agents have beaten just now."""
        attempt = await self._world.train(**fields)
        await self.beat(*NAMES)
        self._second = 1
        return attempt

    async def on(self, seconds: int) -> None:
        """Let time pass."""
        for _ in range(seconds):
            if self._second % BEAT == 0:
                await self.beat(*(set(NAMES) - self.dead))
            await self._world.run(self.watch._look)
            self._second += 1
            self._world.clock.on(1)


@pytest.fixture
async def agents(world):
    """All have beaten once."""
    made = Agents(world)
    await made.on(1)
    return made


async def lost(world):
    """What was found."""
    found = await world.ledger.undelivered()
    assert all(d.kind is Interruption.NODE_LOST for d in found)
    return found


def seen(world):
    """Whether the detector sees; None where there is none."""
    sight = world.site.detectors.sights().get("agents")
    return None if sight is None or not (sight.last or sight.problem) else not sight.problem


async def test_a_silent_node_whose_slurmd_is_gone_is_lost(world, network, agents):
    """Within 10 s, with both witnesses; Slurm's own word, later, is the same finding."""
    attempt = await agents.train()
    died = world.clock.now
    agents.dead, network.gone = {"n2"}, {"n2"}
    await agents.on(SILENCE + 1)
    (found,) = await lost(world)
    assert found.detected_at - died <= timedelta(seconds=10)
    assert (found.attempt, found.slurm_decides_within) == (attempt.key, timedelta(seconds=300))
    assert [(e.source, e.node) for e in found.evidence] == [(Source.AGENT, "n2"), (Source.SLURMD, "n2")]
    assert {e.trust for e in found.evidence} == {Trust.PLATFORM}
    down = world.slurm.node_records["n2"].model_copy(update={"state": NodeState.DOWN})
    assert found.id == nodes_down(attempt, [down], world.clock.now).id
    assert seen(world)


async def test_it_is_told_and_looked_at_once(world, network, agents):
    """However long Slurm takes."""
    await agents.train()
    agents.dead, network.gone = {"n2"}, {"n2"}
    await agents.on(SILENCE + 1)
    asked = len(network.asked)
    await agents.on(120)
    assert len(await lost(world)) == 1
    assert len(network.asked) == asked


@pytest.mark.parametrize("fields", [{"state": NodeState.DOWN}, {"flags": frozenset({NodeFlag.NOT_RESPONDING})}])
async def test_slurms_own_word_is_a_second_witness(world, agents, fields):
    """Also where Slurm is reached by SSH, and no node can be asked from here."""
    await agents.train()
    assert world.site.reach is None
    agents.dead = {"n2"}
    world.slurm.node_records["n2"] = world.slurm.node_records["n2"].model_copy(update=fields)
    await agents.on(SILENCE + 1)
    (found,) = await lost(world)
    assert [e.source for e in found.evidence] == [Source.AGENT, Source.SLURMCTLD]


@pytest.mark.parametrize("how", ["no reach", "unknown", "no address"])
async def test_silence_alone_is_no_finding(world, request, agents, how):
    """Where the second witness cannot be had, it is not taken for one."""
    if how != "no reach":
        request.getfixturevalue("network").unknown = {"n2"} if how == "unknown" else set()
    await agents.train()
    if how == "no address":
        world.slurm.node_records["n2"] = world.slurm.node_records["n2"].model_copy(update={"address": "", "port": 0})
    agents.dead = {"n2"}
    await agents.on(120)
    assert await lost(world) == ()
    assert await world.rows(RowKind.BLIND) == ()


async def test_a_silent_agent_on_a_living_node_is_blind(world, network, agents):
    """Said once for each silence, and no sooner than an agent needs to come back by itself."""
    await agents.train()
    agents.dead = {"n2"}
    await agents.on(int(BLIND_AFTER.total_seconds()) - 2)
    assert await world.rows(RowKind.BLIND) == ()
    await agents.on(120)
    (row,) = await world.rows(RowKind.BLIND)
    assert (row.node, row.body["what"]) == ("n2", "agent of n2")
    assert await lost(world) == ()
    agents.dead = set()
    await agents.on(10)
    agents.dead = {"n2"}
    await agents.on(120)
    assert len(await world.rows(RowKind.BLIND)) == 2


async def test_a_blind_agents_node_that_dies_later_is_lost(world, network, agents):
    """It is asked again and again while the silence lasts."""
    await agents.train()
    agents.dead = {"n2"}
    await agents.on(60)
    network.gone = {"n2"}
    asked = len(network.asked)
    await agents.on(int(BLIND_AFTER.total_seconds()) + 1)
    assert len(await lost(world)) == 1
    assert len(network.asked) == asked + 4, "once, and three healthy ones to compare with"


async def test_where_no_slurmd_can_be_reached_it_is_our_network(world, network, agents):
    """Positive control: a healthy node's must answer. Said as blindness, and judged anew when it is over."""
    await agents.train()
    agents.dead, network.gone = {"n2"}, set(NAMES)
    await agents.on(30)
    assert await lost(world) == ()
    assert seen(world) is False
    network.gone = {"n2"}
    await agents.on(6)
    assert len(await lost(world)) == 1
    assert seen(world) is True


async def test_most_agents_at_once_are_no_lost_nodes(world, network, agents):
    """Our ingest or network; and while they stay silent, no single one of them is called lost."""
    await agents.train()
    agents.dead, network.gone = {"n1", "n2", "n3"}, {"n2"}
    await agents.on(120)
    assert await lost(world) == ()
    assert seen(world) is False
    agents.dead = {"n2"}
    await agents.on(10)
    assert await lost(world) == ()
    agents.dead = set()
    await agents.on(10)
    assert seen(world) is True
    agents.dead = {"n2"}
    await agents.on(SILENCE + 1)
    assert len(await lost(world)) == 1


async def test_an_agent_that_beats_seldom_is_silent_later(world, network, agents):
    """By the period that it tells."""
    await agents.train()
    beat = Beat(at=world.clock.now)
    await agents.ingest.report(Report(node="n2", boot="b1", every=30, beat=beat))
    agents.dead, network.gone = {"n2"}, {"n2"}
    await agents.on(41)
    assert await lost(world) == ()
    await agents.on(2)
    assert len(await lost(world)) == 1


async def test_only_nodes_under_attempts_are_looked_at(world, network, agents):
    """And only agents that were heard of: one that was never there is not silent."""
    await agents.train(nodes=2)
    agents.dead, network.gone = {"n4"}, {"n4"}
    await agents.on(30)
    assert await lost(world) == ()
    assert network.asked == []


async def test_without_agents_there_is_no_detector(world, network):
    """A site that has none is not blind."""
    await world.train()
    await world.run(Agents(world).watch._look)
    assert seen(world) is None


async def test_every_attempt_on_the_node_is_told_of(world, network, agents):
    """Nodes may be shared; an attempt whose nodes live is left alone."""
    first = await agents.train(nodes=1)
    world.slurm.node_records["n1"] = world.slurm.node_records["n1"].model_copy(update={"state": NodeState.IDLE})
    second = await agents.train(nodes=1)
    await agents.train(nodes=1)
    agents.dead, network.gone = {"n1"}, {"n1"}
    await agents.on(SILENCE + 1)
    assert {d.attempt for d in await lost(world)} == {first.key, second.key}


async def test_a_node_heard_of_while_it_was_asked_is_not_lost(world, network, agents, monkeypatch):
    """The answer took a while, and the beat came in between."""
    await agents.train()
    ask = network.answers

    async def late(host, port):
        await agents.beat("n2")
        return await ask(host, port)

    monkeypatch.setattr(network, "answers", late)
    agents.dead, network.gone = {"n2"}, {"n2"}
    await agents.on(SILENCE + 1)
    assert await lost(world) == ()


async def test_an_unreadable_slurm_is_no_witness(world, network, agents):
    """Nothing is known of the nodes: blind, and looked at again."""
    await agents.train()
    agents.dead, network.gone = {"n2"}, {"n2"}
    await agents.on(SILENCE - 1)
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await agents.on(2)
    assert await lost(world) == ()
    await agents.on(2)
    assert len(await lost(world)) == 1


async def test_a_node_booted_under_an_attempt_is_lost_at_once(world, network, agents):
    """Its agent beats, and tells of another boot than when the attempt already ran."""
    attempt = await agents.train()
    await agents.on(BEAT)
    agents.boots["n2"] = "b2"
    await agents.on(BEAT + 1)
    (found,) = await lost(world)
    assert (found.attempt, found.evidence[0].node) == (attempt.key, "n2")
    await agents.on(BEAT)
    assert len(await lost(world)) == 1


async def test_an_attempt_begun_after_the_boot_has_not_lost_it(world, network, agents):
    """Slurm boots nodes for jobs."""
    agents.dead = {"n2"}
    await agents.on(3)
    await world.train()
    agents.boots["n2"], agents.dead = "b2", set()
    await agents.on(3 * BEAT)
    assert await lost(world) == ()


async def test_many_nodes_of_an_attempt_are_told_of_in_part(make_world):
    """The first few say it all; each is a signal to the incident."""
    names = tuple(f"n{number}" for number in range(1, 41))
    world = make_world(nodes=names)
    network = Network()
    object.__setattr__(world.site, "reach", network)
    for name, node in world.slurm.node_records.items():
        world.slurm.node_records[name] = node.model_copy(update={"address": name, "port": 6818})
    ingest = Ingest(world.site, lambda: None)
    watch = WatchAgents(world.site, ingest)
    await world.train(nodes=30)

    async def beat(*living: str) -> None:
        for name in living:
            await ingest.report(Report(node=name, boot="b", every=BEAT, beat=Beat(at=world.clock.now)))

    await beat(*names)
    world.clock.on(BEAT)
    await beat(*names[12:])
    world.clock.on(3)
    network.gone = set(names[:12])
    await world.run(watch._look)
    assert len(await lost(world)) == 8


async def test_nodes_that_die_one_after_the_other_are_lost_each(world, network, agents):
    """More than half of them in the end, but never at once; the last one has nobody to be compared with."""
    await agents.train(nodes=4)
    for name in NAMES:
        agents.dead |= {name}
        network.gone |= {name}
        await agents.on(20)
    assert [d.evidence[0].node for d in await lost(world)] == ["n1", "n2", "n3"]
