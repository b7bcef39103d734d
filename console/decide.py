"""What `relight approve` and `relight reject` do: find what waits, sign a word on its plan as it is now, send it."""

import secrets
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from relight.config.settings import Settings
from relight.console.context import now, opened
from relight.console.errors import NotFoundStop, RefusedStop, Stop
from relight.console.lookup import find_incident
from relight.console.signer import Signer, person
from relight.domain.approvals import MAX_REASON, Approval, Request, request_for
from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.incidents import Incident, Phase, incident_id
from relight.domain.plan import Decision
from relight.domain.policy import Verdict
from relight.domain.signatures import SignedDecision, signed

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

T = TypeVar("T")
ANSWER_WITHIN = timedelta(seconds=15)
_LOOKED_AT = 2000
"""Workflows that are looked through where the ledger cannot be read."""
_OF_JOB = "recover/"
OF_NODE = "node/"
"""How a node's quarantine is named where an incident's id could stand."""


class Place(NamedTuple):
    """Where an incident is decided on."""

    incident: str
    workflow_id: str
    run_id: str


class Ready(NamedTuple):
    """A plan that waits for people, and where to send their words."""

    title: str
    """The job or node that it is about."""
    request: Request
    approval: Approval
    afterwards: str
    """What remains once Slurm cannot requeue the attempt any more."""
    handle: "WorkflowHandle[object, object]"


async def in_ledger(settings: Settings, name: str) -> Place:
    """Find an open incident by its id or its job's.

    Raises:
        RefusedStop: when it has ended.
        NotFoundStop: when there is none.
    """
    async with opened(settings) as ledger:
        incident = await find_incident(ledger, settings, name)
    _check_open(incident)
    return Place(incident.id, incident.workflow_id, incident.run_id)


async def in_temporal(client: "Client", settings: Settings, name: str, why: Stop) -> Place:
    """Find it among the workflows that run, for people who may not read the ledger.

    Args:
        client: of Temporal.
        settings: name the cluster.
        name: the incident's id, the beginning of one, or its job's id.
        why: why the ledger cannot be read.

    Raises:
        NotFoundStop: when there is none, or more than one.
        Stop: when Temporal does not list them.
    """
    from temporalio.service import RPCError

    from relight.activities.contracts import RECOVER_WORKFLOW

    query = f"WorkflowType = '{RECOVER_WORKFLOW}' AND ExecutionStatus = 'Running'"
    try:
        running = [Place("", each.id, each.run_id) async for each in client.list_workflows(query, limit=_LOOKED_AT)]
    except RPCError as error:
        raise Stop(f"{why.message}\nNor does Temporal list its workflows: {error.message}") from error
    found = [place for place in map(_named, running) if _is_meant(place, settings.cluster, name)]
    if len(found) != 1:
        which = ", ".join(place.incident for place in found[:5]) or "none"
        first = why.message.partition("\n")[0]
        raise NotFoundStop(f"{name!r} must name one open incident; Temporal knows {which}\nThe ledger: {first}")
    return found[0]


def _named(place: Place) -> Place:
    """With the id that its workflow gives it; empty where it is none of ours."""
    try:
        key = AttemptKey.parse(place.workflow_id.removeprefix(_OF_JOB))
    except ValueError:
        return place
    return place._replace(incident=incident_id(key, place.run_id))


def _is_meant(place: Place, cluster: str, name: str) -> bool:
    of_cluster, _, rest = place.workflow_id.removeprefix(_OF_JOB).partition("/")
    meant = name in {place.incident, rest.partition("/")[0]} or (name[:1] == "i" and place.incident.startswith(name))
    return bool(place.incident) and of_cluster == cluster and meant


def _check_open(incident: Incident) -> None:
    """Refuse to decide on an incident that has ended."""
    if not incident.open:
        raise RefusedStop(
            f"incident {incident.id} is closed: {incident.outcome} ({incident.outcome_reason or 'no reason given'})\n"
            f"Its story: relight show {incident.id}",
        )


# --- what waits -------------------------------------------------------------------------------------------------------


async def ready(client: "Client", place: Place) -> Ready:
    """Ask an incident's workflow for what waits.

    Raises:
        RefusedStop: when it does not wait for a decision.
        NotFoundStop: when Temporal does not know the workflow.
        Stop: when no worker answers.
    """
    from relight.workflows.story import Status

    id_ = place.incident
    handle = client.get_workflow_handle(place.workflow_id, run_id=place.run_id)
    there = f"the ledger shows incident {id_} open, but Temporal knows no workflow {place.workflow_id}"
    status = await asked(handle, "status", Status, f"incident {id_}", there)
    verdict = status.verdict
    if status.phase is not Phase.WAITING or verdict is None:
        ended = f"{status.outcome}: {status.reason}" if status.outcome else str(status.phase)
        raise RefusedStop(
            f"incident {id_} does not wait for a decision: it is {ended}\nIts story: relight show {id_}",
        )
    approval = status.approval or _before(place, verdict, status.decide_until)
    job = status.confirmation
    title = f"{verdict.plan.attempt.job_id} {job.job_name} of {job.user}" if job else str(verdict.plan.attempt.job_id)
    return Ready(title, approval.request, approval, verdict.plan.fresh, handle)


def _before(place: Place, verdict: Verdict, until: datetime | None) -> Approval:
    """For an incident that began before there were quorums: one signature by who may read the site's key."""
    asked = request_for(verdict, place.incident, place.run_id, owner="", now=now())
    return Approval(request=asked.model_copy(update={"needed": 1, "until": until or asked.until}))


async def ready_node(client: "Client", settings: Settings, node: str) -> Ready:
    """Ask a node's quarantine for what waits; errors are as those of `ready`."""
    handle = client.get_workflow_handle(f"{OF_NODE}{settings.cluster}/{node}")
    nobody = f"node {node} is not in Relight's care"
    approval = await asked(handle, "approval", Approval | None, f"node {node}", nobody)  # type: ignore[arg-type]
    if approval is None or approval.over:
        raise RefusedStop(f"node {node} does not wait for a decision\nIts story: relight nodes {node}")
    return Ready(node, approval.request, approval, "", handle)


async def asked(handle: "WorkflowHandle[object, object]", query: str, answer: type[T], whom: str, unknown: str) -> T:
    """What a workflow answers to a query; errors are those of `ready`, `whom` and `unknown` their words."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError, RPCStatusCode

    try:
        found: T = await handle.query(query, result_type=answer, rpc_timeout=ANSWER_WITHIN)
    except WorkflowQueryFailedError as error:
        raise Stop(f"the workflow of {whom} cannot answer: {error}") from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotFoundStop(
                f"{unknown}\nIs temporal.address or temporal.namespace another one than the worker's?",
            ) from error
        raise Stop(
            f"no worker answers for {whom}: {error.message}\nIs `relight worker controller` running? relight doctor",
        ) from error
    return found


def check_digest(ready_: Ready, wanted: str | None) -> None:
    """Refuse when the plan is not the one that the person looked at."""
    request = ready_.request
    if wanted and not request.digest.startswith(wanted.lower()):
        raise RefusedStop(
            f"the plan has changed: its digest is {request.digest[:12]} now, not {wanted}\n"
            f"Look again: relight show {request.subject}",
        )


# --- the word ---------------------------------------------------------------------------------------------------------


def sign(
    signer: Signer, request: Request, *, approved: bool, reason: str, at: datetime, by: str = "", nonce: str = ""
) -> SignedDecision:
    """A signed word on what is asked.

    Args:
        signer: whose key signs.
        request: what is asked.
        approved: yes or no.
        reason: for people.
        at: now.
        by: who says so; left out: who runs this process.
        nonce: two words with the same one are one; left out: a word of its own.

    Raises:
        RefusedStop: when the reason is too long.
    """
    if len(reason) > MAX_REASON:
        raise RefusedStop(f"a reason of {len(reason)} characters; accepted: at most {MAX_REASON}")
    decision = SignedDecision(
        incident=request.subject,
        run_id=request.run_id,
        decision=Decision(approved=approved, digest=request.digest, by=by or person(), reason=reason),
        at=at,
        nonce=nonce or secrets.token_hex(16),
        key=signer.public,
        signature="",
    )
    return signed(decision, signer.key)


async def send(ready_: Ready, decision: SignedDecision) -> str:
    """Send the decision; returns the workflow's answer. Errors are those of `say`."""
    story = f"relight show {ready_.request.subject}"
    return await say(ready_.handle, "decide", decision, once=decision.nonce, whose="the workflow", story=story)


async def say(
    handle: "WorkflowHandle[object, object]", update: str, word: Value, *, once: str, whose: str, story: str
) -> str:
    """Say a word to a workflow by an update, under the id `once` where that is given; returns its answer.

    Args:
        handle: the workflow.
        update: its update.
        word: what is said.
        once: a word repeated under the same id counts once; empty: each is a word of its own.
        whose: who takes it, for people.
        story: the command that tells what became of it.

    Raises:
        RefusedStop: when it did not count.
        Stop: when no answer came: it may have counted all the same.
    """
    from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
    from temporalio.service import RPCError

    try:
        answer: str = await handle.execute_update(
            update, word, id=once or None, result_type=str, rpc_timeout=ANSWER_WITHIN
        )
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise Stop(f"no answer within {ANSWER_WITHIN.seconds} s: it may have counted\nLook: {story}") from error
    except WorkflowUpdateFailedError as error:
        raise Stop(f"{whose} could not take it: {error.cause or error}") from error
    except RPCError as error:
        raise RefusedStop(f"not taken: {error.message}\nIts story: {story}") from error
    if not answer.startswith("counted"):
        raise RefusedStop(answer)
    return answer
