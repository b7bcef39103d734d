"""Decides what becomes of a node that was checked, writes it down, and writes the ticket where a person has to act."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import ValidationError
from temporalio import activity

from relight.activities import care_contracts as k
from relight.activities.care import entry_of, look_whether_drained
from relight.activities.care_evidence import folder_of, write_files
from relight.activities.care_faults import Repairs
from relight.activities.care_history import scores
from relight.activities.site import Site
from relight.attribution.catalogue import load
from relight.clients.slurm import NodeNotFoundError
from relight.domain.base import canonical_json
from relight.domain.care import CareSituation, CareVerdict, Next, Remedy, decide_care
from relight.domain.care_ticket import TicketFacts, ticket
from relight.domain.evidence import Answer
from relight.domain.ledger import Change, RowKind
from relight.domain.lemons import Score
from relight.domain.permits import Permit
from relight.domain.policy_rules import node_permit
from relight.domain.reports import NodeFault
from relight.domain.rights import Right
from relight.domain.slurm import NodeRecord

TICKET = "ticket.txt"
CLOCKS = timedelta(seconds=60)
"""So much may a node's clock differ from ours."""
MOST_FAULTS = 2000
HYPERPOD = {Remedy.RESET: Right.REBOOT, Remedy.REBOOT: Right.REBOOT, Remedy.REPLACE: Right.REPLACE}
"""What a platform that repairs by itself is asked for: a reset needs a reboot there."""


class JudgeNode:
    """Judges nodes of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site
        self._repairs = Repairs(load(site.catalogue))

    @activity.defn(name=k.JUDGE_NODE.name)
    async def judge(self, arg: k.JudgeInput) -> k.Judged:
        """Decide by a fresh look, what was checked, what was told, and what is allowed."""
        node = await self._node(arg.care.node)
        told = await self._faults(arg.care.node, arg.since)
        faults = tuple(fault for _, fault in told)
        score = await self._score(arg.care.node)
        situation = await self._situation(arg, node, told, score)
        verdict = decide_care(situation)
        path = await self._ticket(arg, situation, verdict, faults)
        body = {
            "step": f"judged-{arg.round}",
            "phase": "checking",
            "text": f"{verdict.next}: {verdict.reason}",
            "incident": arg.care.incident,
            "next": verdict.next,
            "permit": verdict.permit,
            "remedy": verdict.remedy,
            "score": round(score.value, 2),
            "ticket": path,
            "policy": self._site.policy_version,
            "checks": [check.model_dump(mode="json", exclude={"output"}) for check in arg.checked.checks],
        }
        entry = entry_of(self._site, arg.care, f"care-judged-{arg.round}", RowKind.CARE, body)
        await self._site.ledger.commit(Change(entries=(entry,)))
        asks = self._site.platform_repairs and verdict.next is Next.HAND_OVER
        action = HYPERPOD.get(verdict.remedy) if asks else None
        return k.Judged(
            verdict=verdict,
            repairs=situation.repairs,
            score=score.value,
            score_why=score.why,
            ticket=path,
            action=action,
            action_permit=self._permit(node, action) if action else Permit.OFF,
        )

    async def _situation(
        self, arg: k.JudgeInput, node: NodeRecord | None, told: Sequence[tuple[datetime, NodeFault]], score: Score
    ) -> CareSituation:
        drained = await look_whether_drained(self._site, node) if node else None
        checked = arg.checked
        # By when we were told, not by the node's clock, which may be a minute off: what set the node aside is no news.
        during = [fault for at, fault in told if at >= checked.began]
        faults = [fault for _, fault in told]
        return CareSituation(
            mark=arg.care.mark,
            node=node,
            drained=drained.answer if drained else Answer.UNKNOWN,
            still_on_it=drained.text if drained else "",
            agent=checked.agent,
            checks=checked.checks,
            checked_at=checked.at if checked.checks else None,
            problem=checked.problem,
            faults=self._repairs.bad(during) if checked.checks else (),
            repairs=(*self._repairs.of_evidence(arg.evidence, arg.since), *self._repairs.of_faults(faults)),
            released=arg.released,
            kept=arg.kept,
            score=score.value,
            score_why=score.why,
            requires=self._site.policy.return_requires,
            permit=self._permit(node, Right.RETURN),
            now=self._site.clock(),
        )

    def _permit(self, node: NodeRecord | None, right: Right) -> Permit:
        partitions = node.partitions if node else ()
        return node_permit(self._site.policy, self._site.cluster, partitions, right)

    async def _node(self, name: str) -> NodeRecord | None:
        try:
            return await self._site.slurm.node(name)
        except NodeNotFoundError:
            return None

    async def _faults(self, node: str, since: datetime) -> tuple[tuple[datetime, NodeFault], ...]:
        """What the node's agent has told since shortly before it was set aside, each with when we were told."""
        rows = await self._site.ledger.rows(node=node, kind=RowKind.FAULT, since=since - CLOCKS, limit=MOST_FAULTS)
        found = []
        for row in rows:
            try:
                found.append((row.at, NodeFault.model_validate(row.body.get("fault"))))
            except ValidationError:
                continue  # written by a version that told more kinds than this one knows
        return tuple(found)

    async def _score(self, node: str) -> Score:
        return (await scores(self._site, (node,)))[node]

    async def _ticket(
        self, arg: k.JudgeInput, situation: CareSituation, verdict: CareVerdict, faults: Sequence[NodeFault]
    ) -> str:
        """Write what was checked, and the ticket; returns the ticket's file, empty where it could not be written."""
        facts = TicketFacts(
            cluster=self._site.cluster,
            care=arg.care.id,
            incident=arg.care.incident,
            cls=arg.cls,
            summary=arg.summary,
            jobs=await self._jobs(arg),
            evidence=arg.evidence,
            cards=arg.checked.cards,
            faults=tuple(f"{fault.at:%Y-%m-%d %H:%M:%S} UTC  {fault.text}" for fault in faults),
            folder=arg.folder,
            since=arg.since,
        )
        texts = {
            TICKET: ticket(facts, situation, verdict),
            f"checks-{arg.round % 100}.json": canonical_json(arg.checked.model_dump(mode="json")),
        }
        files = {name: text.encode(errors="replace") for name, text in texts.items()}
        folder = folder_of(self._site, arg.care)
        try:
            await asyncio.to_thread(write_files, folder, files)
        except OSError as error:
            activity.logger.warning("the ticket of %s is not written: %s: %s", arg.care.node, folder, error.strerror)
            return ""
        return str(folder / TICKET)

    async def _jobs(self, arg: k.JudgeInput) -> tuple[str, ...]:
        incident = await self._site.ledger.incident(arg.care.incident)
        if incident is None:
            return (str(arg.care.attempt.job_id),)
        return (f"{incident.attempt.job_id} {incident.job_name} of {incident.user}".strip(),)
