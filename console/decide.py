"""`relight approve` and `relight reject`: a signed decision on the plan as it stands now."""

import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from relight.config.settings import Settings
from relight.console.context import user_name
from relight.console.errors import NotFoundStop, RefusedStop, Stop
from relight.domain.incidents import Incident, Phase
from relight.domain.plan import Decision, Plan, sign
from relight.domain.policy import Verdict

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

    from relight.workflows.story import Status

ANSWER_WITHIN = timedelta(seconds=15)


class Ready(NamedTuple):
    """A plan that waits for a decision, and where to send it."""

    incident: Incident
    verdict: Verdict
    until: datetime | None
    handle: "WorkflowHandle[object, object]"

    @property
    def plan(self) -> Plan:
        """The plan as the workflow holds it now."""
        return self.verdict.plan


def check_open(incident: Incident) -> None:
    """Refuse to decide on an incident that has ended."""
    if not incident.open:
        raise RefusedStop(
            f"incident {incident.id} is closed: {incident.outcome} ({incident.outcome_reason or 'no reason given'})\n"
            f"Its story: relight show {incident.id}",
        )


def approval_key(settings: Settings) -> bytes:
    """The site's approval key: who can read it may approve.

    Raises:
        RefusedStop: when this person cannot.
    """
    path = settings.approval_key
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RefusedStop(
            f"this site has no approval key: {path} does not exist\n"
            "The controller worker makes one on its first start.",
        ) from None
    except OSError as error:
        raise RefusedStop(f"you ({user_name()}) may not approve: {path}: {error.strerror}\n{_who(settings)}") from None


def _who(settings: Settings) -> str:
    """Who may approve, as far as the file system says."""
    path = settings.approval_key
    try:
        owner, group, mode = path.owner(), path.group(), path.stat().st_mode
    except (OSError, KeyError):
        return "Only who can read the site's approval key may: ask your administrators."
    more = f" and the members of group {group}" if mode & 0o040 else ""
    return f"Only who can read that key may: user {owner}{more}. For example: sudo -u {owner} relight ..."


def person() -> str:
    """Who decides: the Unix user, and, behind sudo, who called it."""
    name, caller = user_name(), os.environ.get("SUDO_USER", "")
    return f"{caller} (sudo as {name})" if caller and caller != name else name


async def ready(client: "Client", incident: Incident) -> Ready:
    """Ask the workflow for the plan as it stands now.

    Raises:
        RefusedStop: when it does not wait for a decision.
        NotFoundStop: when Temporal does not know the workflow.
        Stop: when no worker answers.
    """
    handle = client.get_workflow_handle(incident.workflow_id, run_id=incident.run_id)
    status = await _status(handle, incident)
    if status.phase is not Phase.WAITING or status.verdict is None:
        ended = f"{status.outcome}: {status.reason}" if status.outcome else str(status.phase)
        raise RefusedStop(
            f"incident {incident.id} does not wait for a decision: it is {ended}\n"
            f"Its story: relight show {incident.id}",
        )
    return Ready(incident, status.verdict, status.decide_until, handle)


async def _status(handle: "WorkflowHandle[object, object]", incident: Incident) -> "Status":
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError, RPCStatusCode

    from relight.workflows.story import Status

    try:
        status: Status = await handle.query("status", result_type=Status, rpc_timeout=ANSWER_WITHIN)
    except WorkflowQueryFailedError as error:
        raise Stop(f"the workflow of incident {incident.id} cannot answer: {error}") from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotFoundStop(
                f"the ledger shows incident {incident.id} open, but Temporal knows no workflow {incident.workflow_id}\n"
                "Is temporal.address or temporal.namespace another one than the worker's?",
            ) from error
        raise Stop(
            f"no worker answers for incident {incident.id}: {error.message}\n"
            "Is `relight worker controller` running? relight doctor",
        ) from error
    return status


def check_digest(ready_: Ready, wanted: str | None) -> None:
    """Refuse when the plan is not the one that the person looked at."""
    if wanted and not ready_.plan.digest.startswith(wanted.lower()):
        raise RefusedStop(
            f"the plan has changed: its digest is {ready_.plan.digest[:12]} now, not {wanted}\n"
            f"Look again: relight show {ready_.incident.id}",
        )


async def send(ready_: Ready, decision: Decision, key: bytes, at: datetime) -> str:
    """Sign and send the decision; returns the workflow's answer.

    Raises:
        RefusedStop: when it did not count.
        Stop: when no answer came: it may have counted all the same.
    """
    from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
    from temporalio.service import RPCError

    from relight.activities.contracts import SignedDecision

    incident = ready_.incident.id
    signed = SignedDecision(incident=incident, decision=decision, at=at, signature=sign(key, incident, decision, at))
    try:
        answer: str = await ready_.handle.execute_update(
            "decide", signed, id=signed.signature[:32], result_type=str, rpc_timeout=ANSWER_WITHIN
        )
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise Stop(
            f"no answer within {ANSWER_WITHIN.seconds} s: it may have counted\nLook: relight show {incident}"
        ) from error
    except WorkflowUpdateFailedError as error:
        raise Stop(f"the workflow could not take it: {error.cause or error}") from error
    except RPCError as error:
        raise RefusedStop(f"not taken: {error.message}\nIts story: relight show {incident}") from error
    if not answer.startswith("counted"):
        raise RefusedStop(answer)
    return answer
