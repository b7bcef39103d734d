"""What happened around an attempt: on its nodes before, and to other jobs at the same time."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from relight.activities.site import Site
from relight.attribution.sources import Neighbour, NodeFailure
from relight.domain.attempts import Attempt
from relight.domain.evidence import Detection
from relight.domain.incidents import Incident, Outcome

MOST_INCIDENTS = 200
"""Incidents of the cluster that are looked through, the newest first."""
REMEMBERED = timedelta(days=7)
"""How long an incident counts against the nodes it implicated."""
SAME_TIME = timedelta(minutes=2)
"""Jobs that are interrupted by one thing are so within this."""
MOST_NEIGHBOURS = 16


async def surroundings(
    site: Site,
    attempt: Attempt,
    detection: Detection,
) -> tuple[tuple[NodeFailure, ...], tuple[Neighbour, ...]]:
    """Earlier incidents on the attempt's nodes, and the other jobs that were interrupted when it was."""
    rows = await site.ledger.incidents(cluster=site.cluster, limit=MOST_INCIDENTS)
    others = [i for i in rows if i.attempt != attempt.key and i.outcome is not Outcome.NOT_CONFIRMED]
    at = detection.occurred_at or detection.detected_at
    return node_failures(others, attempt, at), await _neighbours(site, others, attempt, at)


def node_failures(incidents: Iterable[Incident], attempt: Attempt, at: datetime) -> tuple[NodeFailure, ...]:
    """What is known against the attempt's nodes, from incidents before this time."""
    mine = set(attempt.record.nodes)
    found = []
    for incident in incidents:
        if incident.diagnosis is None or not timedelta(0) <= at - incident.detected_at <= REMEMBERED:
            continue
        cause = incident.diagnosis.verdict
        found += [
            NodeFailure(
                node=node,
                signature=cause.signature,
                at=incident.detected_at,
                own=incident.lineage == attempt.lineage,
                proven=node in cause.drain_nodes,
            )
            for node in dict.fromkeys((*cause.drain_nodes, *cause.implicated.nodes))
            if node in mine
        ]
    return tuple(found)


async def _neighbours(
    site: Site,
    incidents: Sequence[Incident],
    attempt: Attempt,
    at: datetime,
) -> tuple[Neighbour, ...]:
    near = [
        incident
        for incident in incidents
        if incident.lineage != attempt.lineage and abs((incident.occurred_at or incident.detected_at) - at) <= SAME_TIME
    ]
    found = []
    for incident in near[:MOST_NEIGHBOURS]:
        if state := await site.known(incident.attempt):
            record = state.attempt.record
            found.append(Neighbour(lineage=incident.lineage, user=record.user, nodes=record.nodes))
    return tuple(found)
