"""The HTTP API, version 1: what the console's pages show, for programs. Additive only: keys are never taken away."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import ConfigDict

from relight.console.web.api_problems import ANSWERS, CONFLICT, SafeJson
from relight.console.web.decisions import Decided, DecisionAsk, Decisions
from relight.console.web.desk import desk_of
from relight.console.web.read import Reading
from relight.console.web.read_feed import MOST
from relight.console.web.read_incident_values import IncidentPage, JobPage, TryingPage
from relight.console.web.read_values import (
    Ask,
    AuditFilter,
    AuditLine,
    Changes,
    IncidentFilter,
    IncidentLine,
    JobFilter,
    JobLine,
    NodeFilter,
    NodeLine,
    NodePage,
    NowPage,
    Page,
    SettingsPage,
)
from relight.console.web.roles import Identity, May
from relight.console.web.sign_in import identity_of
from relight.domain.base import Value

ROOT = "/api/v1"
routes = APIRouter(prefix=ROOT, default_response_class=SafeJson, responses=dict(ANSWERS))


def _reading(request: Request) -> Reading:
    return desk_of(request).reading


def _decisions(request: Request) -> Decisions:
    return desk_of(request).decisions


_NAME = Path(max_length=200, description="As lists give it.")
Who = Annotated[Identity, Depends(identity_of)]
Reads = Annotated[Reading, Depends(_reading)]
Decides = Annotated[Decisions, Depends(_decisions)]
Name = Annotated[str, _NAME]


class Me(Value):
    """Who has signed in."""

    name: str
    role: str
    way: str
    csrf: str
    """Of a session: what requests that change anything must carry as X-CSRF-Token."""
    may: tuple[str, ...]


class _Query(Ask):
    """A misspelt filter is an error: ignored, it would show everything."""

    model_config = ConfigDict(extra="forbid")


class IncidentQuery(IncidentFilter, _Query):
    """Which incidents, and which part of the list."""


class JobQuery(JobFilter, _Query):
    """Which jobs, and which part of the list."""


class NodeQuery(NodeFilter, _Query):
    """Which nodes, and which part of the list."""


class AuditQuery(AuditFilter, _Query):
    """Which rows, and which part of the list."""


@routes.get("/me", tags=["you"])
async def me(who: Who) -> Me:
    """Who you are here, and what your role may."""
    may = tuple(str(each) for each in May if who.may(each))
    return Me(name=who.name, role=who.role, way=who.way, csrf=who.csrf, may=may)


@routes.get("/now", tags=["cluster"])
async def now(who: Who, reading: Reads) -> NowPage:
    """The cluster now: what is open, what waits, who is blind, how the guard stands."""
    return await reading.now(who)


@routes.get("/changes", tags=["cluster"])
async def changes(
    who: Who,
    reading: Reads,
    after: Annotated[int, Query(ge=0, lt=1 << 63, description="`cursor` of the answer before; 0: from the start.")],
    limit: Annotated[int, Query(ge=1, le=MOST)] = MOST,
) -> Changes:
    """What has been written since: cheap enough to ask every half second."""
    return await reading.changes(who, after, limit)


@routes.get("/settings", tags=["cluster"])
async def settings(who: Who, reading: Reads) -> SettingsPage:
    """The settings in force, each with where it comes from; passwords are hidden."""
    return await reading.settings(who)


@routes.get("/incidents", tags=["incidents"])
async def incidents(who: Who, reading: Reads, wanted: Annotated[IncidentQuery, Query()]) -> Page[IncidentLine]:
    """Incidents that fit, newest first."""
    return await reading.incidents(who, wanted, wanted)


@routes.get("/waiting", tags=["incidents"])
async def waiting(who: Who, reading: Reads) -> tuple[IncidentLine, ...]:
    """Incidents that wait for people, the soonest time-out first."""
    return await reading.waiting(who)


@routes.get("/incidents/{incident}", tags=["incidents"])
async def incident(who: Who, reading: Reads, incident: Name) -> IncidentPage:
    """One incident, by its id or an unambiguous beginning of it."""
    return await reading.incident(who, incident)


@routes.get("/incidents/{incident}/trying", tags=["incidents"])
async def trying(who: Who, reading: Reads, incident: Name) -> TryingPage:
    """What an open incident is trying right now: asks Temporal, for 3 s at most."""
    return await reading.trying(who, incident)


@routes.post("/incidents/{incident}/decisions", tags=["incidents"], responses=dict(CONFLICT))
async def decide(who: Who, decisions: Decides, incident: Name, ask: DecisionAsk) -> Decided:
    """Approve or reject the plan that you were shown. Repeated with the same `once` it counts once."""
    return await decisions.decide(who, incident, ask)


@routes.get("/jobs", tags=["jobs"])
async def jobs(who: Who, reading: Reads, wanted: Annotated[JobQuery, Query()]) -> Page[JobLine]:
    """Jobs that fit, the one last begun first."""
    return await reading.jobs(who, wanted, wanted)


@routes.get("/jobs/{job}", tags=["jobs"])
async def job(who: Who, reading: Reads, job: Name) -> JobPage:
    """One job: `123`, `123_4` (array task), `123+1` (component), or its lineage."""
    return await reading.job(who, job)


@routes.get("/nodes", tags=["nodes"])
async def nodes(who: Who, reading: Reads, wanted: Annotated[NodeQuery, Query()]) -> Page[NodeLine]:
    """Nodes that are or were in care, those in care first."""
    return await reading.nodes(who, wanted, wanted)


@routes.get("/nodes/{node}", tags=["nodes"])
async def node(who: Who, reading: Reads, node: Name) -> NodePage:
    """One node."""
    return await reading.node(who, node)


@routes.post("/nodes/{node}/decisions", tags=["nodes"], responses=dict(CONFLICT))
async def decide_on_node(who: Who, decisions: Decides, node: Name, ask: DecisionAsk) -> Decided:
    """Approve or reject what is asked about a node."""
    return await decisions.decide(who, f"node/{node}", ask)


@routes.get("/audit", tags=["audit"])
async def audit(who: Who, reading: Reads, wanted: Annotated[AuditQuery, Query()]) -> Page[AuditLine]:
    """Rows of the audit trail, newest first."""
    return await reading.audit(who, wanted, wanted)
