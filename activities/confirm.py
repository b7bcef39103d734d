"""Opens an incident, and looks again before its detection is believed. Nothing outside the ledger is changed."""

from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.faults import ends_programs
from relight.activities.ingest import NodeSight
from relight.activities.records import row
from relight.activities.site import Site, poll
from relight.attribution.catalogue import load
from relight.domain.attempts import Attempt, AttemptState
from relight.domain.confirmation import FAULT_DECIDES_WITHIN, Judgement, judge
from relight.domain.evidence import Detection, Interruption
from relight.domain.incidents import Incident, Outcome, Phase, StepTime, headline
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.silence import lost_before_slurm, waits_for_slurm
from relight.domain.slurm import NodeRecord
from relight.domain.watching import lost_nodes

SLURM_DECIDES_WITHIN = timedelta(seconds=60)
"""How long a lost node's job may still show RUNNING before the loss counts as not confirmed.

Where Slurm has not declared the node down yet, so long after it should have.
"""
LOOK_AGAIN = timedelta(seconds=0.5)
LOOK_SELDOM = timedelta(seconds=1)
"""Where the wait may last for minutes."""
NEVER_SEEN = "Relight never saw this attempt running"

Sights = Callable[[str], NodeSight | None]
"""What is known of a node by its agent; None: nothing."""


def no_agents(_node: str) -> None:
    """No node has an agent."""


class Confirm:
    """Looks again.

    Args:
        site: the cluster.
        sights: what agents tell.
    """

    def __init__(self, site: Site, sights: Sights = no_agents) -> None:
        self._site = site
        self._sights = sights
        self._catalogue = load(site.catalogue)

    @activity.defn(name=c.CONFIRM.name)
    async def confirm(self, arg: c.ConfirmInput) -> c.Confirmation:
        """Open the incident in the ledger, then look again before believing the detection."""
        state = await self._site.known(arg.incident.attempt)
        if state is None:
            never = Judgement(outcome=Outcome.NOT_CONFIRMED, reason=NEVER_SEEN)
            return await self._confirmed(arg, None, never, (), self._site.clock())
        others = await self._site.ledger.incidents(cluster=self._site.cluster, lineage=state.attempt.lineage, limit=50)
        others = tuple(i for i in others if i.id != arg.incident.id)
        opened_at = self._site.clock()
        if waits := waits_for_slurm(arg.detection):
            await self._opened(arg, state.attempt, waits)
        judgement = await self._judge(arg, state, others)
        return await self._confirmed(arg, state.attempt, judgement, others, opened_at)

    async def _judge(self, arg: c.ConfirmInput, state: AttemptState, others: tuple[Incident, ...]) -> Judgement:
        """Ask Slurm until it has made up its mind about a lost node, or for as long as that may take."""
        attempt, waits = state.attempt, waits_for_slurm(arg.detection)
        fault = arg.detection.kind is Interruption.GPU_FAULT
        lost_by_it = fault and ends_programs(arg.detection, self._catalogue)
        until = self._site.clock() + (FAULT_DECIDES_WITHIN if fault else SLURM_DECIDES_WITHIN)
        if arg.detection.slurm_decides_within is not None:
            until = arg.detection.detected_at + arg.detection.slurm_decides_within + SLURM_DECIDES_WITHIN
        while True:
            record = await self._site.record_of(attempt)
            lost: tuple[NodeRecord, ...] = ()
            if arg.detection.kind is Interruption.NODE_LOST and not waits:
                lost = lost_nodes(attempt, await self._site.slurm.nodes())
            judgement = judge(
                attempt,
                arg.detection,
                record,
                progress=await self._site.progress(attempt.key),
                node_still_lost=bool(lost),
                earlier=tuple(i for i in others if i.attempt == attempt.key),
                now=self._site.clock(),
                ends_programs=lost_by_it,
                heard_again=heard_again(arg.detection, self._sights),
            )
            if judgement is not None:
                return judgement
            if self._site.clock() >= until:
                text = "Slurm still shows the attempt running on all its nodes"
                return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=text)
            await poll(self._site, LOOK_SELDOM if waits else LOOK_AGAIN)

    async def _confirmed(
        self,
        arg: c.ConfirmInput,
        attempt: Attempt | None,
        judgement: Judgement,
        others: tuple[Incident, ...],
        opened_at: datetime,
    ) -> c.Confirmation:
        record = attempt.record if attempt else None
        lease = next((i.workflow_id for i in others if i.open and i.attempt != arg.incident.attempt), "")
        confirmation = c.Confirmation(
            outcome=judgement.outcome,
            reason=judgement.reason,
            lineage=attempt.lineage if attempt else "",
            job_name=record.name if record else "",
            user=record.user if record else "",
            partition=record.partition if record else "",
            nodes=record.nodes[:64] if record else (),
            open_incident="" if judgement.outcome else lease,
        )
        incident, opened = self._open(arg, attempt, opened_at)
        seen = {"outcome": judgement.outcome, "reason": judgement.reason}
        entry = row(self._site, arg.incident, "confirm", RowKind.CONFIRMED, seen, lineage=incident.lineage)
        await self._site.ledger.commit(Change(entries=(opened, entry), incidents=(incident,)))
        return confirmation

    async def _opened(self, arg: c.ConfirmInput, attempt: Attempt, waits: str) -> None:
        """Let the incident be seen while it waits, and what for."""
        incident, opened = self._open(arg, attempt, self._site.clock())
        found = StepTime(name="detected", at=arg.detection.detected_at, text=headline(arg.detection))
        wait = StepTime(name="waiting", at=incident.opened_at, text=waits)
        incident = incident.model_copy(update={"steps": (found, wait)})
        await self._site.ledger.commit(Change(entries=(opened,), incidents=(incident,)))

    def _open(self, arg: c.ConfirmInput, attempt: Attempt | None, at: datetime) -> tuple[Incident, Entry]:
        record = attempt.record if attempt else None
        policy = self._site.policy_for(record).policy if record else self._site.policy
        incident = Incident(
            id=arg.incident.id,
            workflow_id=arg.incident.workflow_id,
            run_id=arg.incident.run_id,
            attempt=arg.incident.attempt,
            lineage=attempt.lineage if attempt else "",
            kind=arg.detection.kind,
            phase=Phase.CONFIRMING,
            mode=policy.mode,
            opened_at=at,
            detected_at=arg.detection.detected_at,
            occurred_at=arg.detection.occurred_at,
            job_name=record.name if record else "",
            user=record.user if record else "",
        )
        opened = {"detection": arg.detection.model_dump(mode="json")}
        return incident, row(self._site, arg.incident, "open", RowKind.OPENED, opened, lineage=incident.lineage)


def heard_again(detection: Detection, sights: Sights) -> bool:
    """True when the agent of a node that was silent beats again, and the node was not booted meanwhile."""
    sight = sights(lost_before_slurm(detection))
    if sight is None or detection.occurred_at is None or sight.last_beat <= detection.detected_at:
        return False
    return sight.before is None or sight.before < detection.occurred_at
