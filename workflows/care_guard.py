"""Asks the cluster's guard for leave to set a node down, as every incident asks before it drains one."""

from datetime import datetime

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from relight.activities import care_contracts as k
    from relight.activities import contracts as c
    from relight.domain.base import clip
    from relight.domain.evidence import Evidence, Source
    from relight.domain.guard import NodeAct
    from relight.workflows.options import LEAVE_WITHIN


class LeaveToDown:
    """One node's leave. The workflow hands it the guard's answers."""

    def __init__(self, care: k.CareRef, began: datetime) -> None:
        """Nothing has been asked."""
        self._care = care
        self._began = began
        self._answer: c.Leave | None = None

    def take(self, answer: c.Leave) -> None:
        """Keep the guard's word; the first one counts."""
        if self._answer is None and answer.action is NodeAct.DOWN:
            self._answer = answer

    async def ask(self, cls: str, why: str) -> c.Leave:
        """Ask, and wait for the answer; none in time is a refusal. slurmctld's word is the platform's witness."""
        self._answer = None
        node = self._care.node
        known = self._care.model_dump(include=set(c.IncidentRef.model_fields))
        # Answered to this very run: the quarantine's own id is that of its first one.
        here = c.IncidentRef.model_validate(known | {"run_id": workflow.info().run_id})
        witness = Evidence(source=Source.SLURMCTLD, text=clip(f"{node}: {why}", 600), node=node, at=workflow.now())
        request = c.DrainRequest(
            incident=here,
            node=node,
            cls=cls,
            reason=why,
            evidence=(witness,),
            action=NodeAct.DOWN,
            began=self._began,
        )
        guard = workflow.get_external_workflow_handle(c.guard_id(self._care.attempt.cluster))
        try:
            await guard.signal("request_drain", request)
            await workflow.wait_condition(lambda: self._answer is not None, timeout=LEAVE_WITHIN)
        except (FailureError, TimeoutError):
            return c.Leave(node=node, granted=False, reason="the guard did not answer", action=NodeAct.DOWN)
        return self._answer or c.Leave(node=node, granted=False, reason="not answered", action=NodeAct.DOWN)
