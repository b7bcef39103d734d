"""Has a node checked by its own agent: asked at the ingest endpoint, answered with the agent's next reports."""

from datetime import timedelta

from temporalio import activity

from relight.activities import care_contracts as k
from relight.activities.follow_stacks import Agents, heard
from relight.activities.site import Site, beating
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.care import gpus_of
from relight.domain.evidence import Answer
from relight.domain.reports import ProbeKind, ProbeRequest
from relight.domain.slurm import NodeRecord

HEARD_WITHIN = timedelta(seconds=30)
"""A worker that has just been started has heard of nobody: some beats are waited for."""
ANSWERED_WITHIN = timedelta(minutes=18)
"""The longest that all checks may take: three minutes of ours, and ten of the site's script; and some beats."""
LOOK_AGAIN = timedelta(seconds=1)
MOST_PEERS = 3


class CheckNode:
    """Checks nodes of a cluster.

    Args:
        site: the cluster.
        agents: its nodes' agents (`Ingest`).
    """

    def __init__(self, site: Site, agents: Agents) -> None:
        self._site = site
        self._agents = agents

    @activity.defn(name=k.CHECK_NODE.name)
    async def check(self, arg: k.CheckNodeInput) -> k.Checked:
        """Ask the agent, and wait for its answer. No agent, and no answer, are said; neither is a result of a check."""
        began = self._site.clock()
        async with beating():
            answer = await self._listen(arg.care.node)
            if answer is not Answer.YES:
                text = "its agent is silent" if answer is Answer.NO else "no agent of it is heard here"
                return k.Checked(agent=answer, began=began, at=self._site.clock(), problem=text)
            request = await self._request(arg)
            told = await self._agents.ask(arg.care.node, request, ANSWERED_WITHIN)
        return k.Checked(
            agent=answer,
            checks=told.checks,
            cards=told.cards,
            began=began,
            at=self._site.clock(),
            problem=told.problem
            or ("" if told.checks else "its agent answers without checks: it is of an older version"),
        )

    async def _listen(self, node: str) -> Answer:
        until = self._site.clock() + HEARD_WITHIN
        while True:
            now = self._site.clock()
            if heard(self._agents, node, now):
                return Answer.YES
            if now >= until:
                return Answer.UNKNOWN if self._agents.sight(node) is None else Answer.NO
            await self._site.sleep(LOOK_AGAIN.total_seconds())

    async def _request(self, arg: k.CheckNodeInput) -> ProbeRequest:
        try:
            nodes = await self._site.slurm.nodes()
        except SlurmUnavailableError:
            nodes = ()
        mine = next((node for node in nodes if node.name == arg.care.node), None)
        # The try is part of the name: a worker that died while it waited asks anew, and the checks are made anew.
        attempt = activity.info().attempt if activity.in_activity() else 1
        name = f"{arg.care.id}/{arg.round}/{attempt}"
        gpus = gpus_of(mine) if mine else 0
        return ProbeRequest(id=name, kind=ProbeKind.CHECK, gpus=gpus, reach=peers(arg.care.node, nodes))


def peers(node: str, nodes: tuple[NodeRecord, ...]) -> tuple[str, ...]:
    """Where the slurmd of some other nodes is reached, those after it in Slurm's order first: often its neighbours."""
    names = [each.name for each in nodes]
    turn = names.index(node) if node in names else 0
    others = [*nodes[turn:], *nodes[:turn]]
    found = [each for each in others if each.name != node and not each.lost and each.address and each.port]
    return tuple(f"{each.address}:{each.port}" for each in found[:MOST_PEERS])
