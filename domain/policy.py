"""The pure decision what to do about one interruption, within what the policy allows."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from relight.domain.base import Value, few
from relight.domain.budget import budget
from relight.domain.checkpoint_look import CheckpointLook
from relight.domain.diagnosis import Action, Diagnosis, Hypothesis
from relight.domain.evidence import Answer, Interruption
from relight.domain.exclusions import Chosen, Exclusion, choose, proof_of
from relight.domain.fallback import Advice, advise, cured, with_checkpoint
from relight.domain.hands import Hand, held_by_slurm, requeued
from relight.domain.incidents import Outcome
from relight.domain.no_retry import EXIT_DO_NOT_REQUEUE, no_retry
from relight.domain.permits import Act, Permit, Policy, least, mode_of
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.resubmission import as_if_it_could
from relight.domain.rights import Approver
from relight.domain.situation import LOSES_TIME, Situation
from relight.domain.successors import successors
from relight.domain.wishes import Wishes, wishes

__all__ = [
    "EXIT_DO_NOT_REQUEUE",
    "LOSES_TIME",
    "NODE_FAIL",
    "NOT_ANEW",
    "Policy",
    "Situation",
    "Verdict",
    "actions",
    "decide",
    "exclusions",
    "successors",
]

NOT_ANEW = "not submitted anew: "
"""In a plan's reason, before why Relight does not submit a fresh job although that would help."""
NODE_FAIL = "SLURM_NODE_FAIL"
"""The catalogue's signature of a node that slurmctld declared down."""


class Verdict(Value):
    """What the policy says: a plan with the mode it is carried out in, or why nothing is to be done."""

    plan: Plan
    mode: Mode
    mode_reason: str
    policy: Policy
    """The policy in force for this job when this was decided."""
    policy_version: str = ""
    """Names the whole policy it was made from, rules included; empty in what version 0.1 wrote."""
    policy_rules: tuple[str, ...] = ()
    """The rules of the policy that fit the job, in words."""
    approvers: tuple[Approver, ...] = ()
    """Whose signatures count where people must approve: public keys only, so that every reader judges the same."""
    exclusions: tuple[Exclusion, ...] = ()
    """What the plan excludes, in the same order: the best proven first. From its end they are taken back."""
    allow: tuple[str, ...] = ()
    """Nodes of ours that are taken out of the job's list again: nobody needs to approve that."""
    not_before: datetime | None = None
    """The restarted job begins no sooner; None: at once. It is requeued at once all the same."""
    outcome: Outcome | None = None
    """Set when there is no restart: how the incident ends, once what the plan does besides is done."""
    checkpoints: CheckpointLook | None = None
    """What was known of the job's checkpoints; None: nobody had looked."""


class _Draft(NamedTuple):
    """What is to be done, and how the incident ends where nothing is restarted."""

    plan: Plan
    outcome: Outcome | None
    chosen: Chosen = Chosen((), (), "")


def decide(situation: Situation, diagnosis: Diagnosis, policy: Policy) -> Verdict:
    """The plan for one interruption: what should be done, less what is not allowed, in the mode that is.

    Args:
        situation: all that the plan depends on.
        diagnosis: why the attempt was interrupted.
        policy: what is allowed for this job, rules applied (`policy_rules.in_force`).
    """
    asked = wishes(situation.attempt.record.comment)
    cap = Permit(asked.mode or Mode.AUTO)
    permits = {act: least(policy.permit(situation.kind, act), cap) for act in Act}
    fresh = least(permits[Act.RESTART], policy.resubmit, asked.resubmit or Permit.AUTO)
    back, advice = least(policy.fall_back, cap), _advice(situation, diagnosis)
    draft = _draft(situation, cured(diagnosis.verdict, advice), policy, asked, fresh)
    if draft.plan.restart is Restart.SUBMIT:
        permits[Act.RESTART] = fresh
    draft = _allowed(_from_checkpoint(draft, advice, situation, back, permits[Act.RESTART]), permits, situation)
    acts = actions(draft.plan) or (Act.RESTART,)
    weakest = next(act for act in acts if permits[act] is least(*(permits[each] for each in acts)))
    allowed = permits[weakest] if draft.plan.fall_back is None else least(permits[weakest], back)
    mode, why = _lowered(situation, mode_of(allowed))
    reason = why or _said(policy.permit(situation.kind, weakest), situation.kind, weakest, policy, asked)
    if allowed is not permits[weakest] and not why:
        reason = f"{reason}, {policy.fall_back} for fall_back"
    if draft.plan.restart is Restart.SUBMIT and weakest is Act.RESTART and not why:
        reason = f"{reason}, {policy.resubmit} for a fresh job"
    reason = "; ".join((reason, *asked.remarks))
    restarts = draft.plan.restart is not Restart.NONE
    used = budget(situation.earlier, situation.marks, policy)
    waits = restarts and bool(used.wait)
    plan = draft.plan.model_copy(update={"reason": f"{draft.plan.reason} ({used.why_wait})"}) if waits else draft.plan
    return Verdict(
        plan=plan,
        mode=mode,
        mode_reason=reason,
        policy=policy,
        outcome=draft.outcome,
        exclusions=_kept_out(draft) if restarts else (),
        allow=draft.chosen.allow if restarts else (),
        not_before=situation.now + used.wait if waits else None,
        checkpoints=situation.checkpoints,
    )


def _advice(situation: Situation, diagnosis: Diagnosis) -> Advice:
    if situation.checkpoints is None:
        return Advice()
    return advise(situation.checkpoints, diagnosis, situation.earlier, running=_still_runs(situation))


def _still_runs(situation: Situation) -> bool:
    record = situation.record
    return record is not None and record.running and not requeued(situation.attempt, record)


def _from_checkpoint(draft: _Draft, advice: Advice, situation: Situation, back: Permit, restart: Permit) -> _Draft:
    """With what the job's checkpoints mean for its restart: from an older one, or none at all."""
    if draft.plan.restart is Restart.NONE:
        return draft
    plan, called_off = with_checkpoint(draft.plan, advice, back, observed=restart in {Permit.OFF, Permit.MONITOR})
    if not called_off:
        return draft._replace(plan=plan)
    plan = plan.model_copy(update={**_NOTHING[Act.RESTART], "cancel": _still_runs(situation)})
    return _Draft(plan, Outcome.STOPPED)


def _kept_out(draft: _Draft) -> tuple[Exclusion, ...]:
    """What the next attempt keeps away from: new nodes as far as the plan still holds them, and those that stand."""
    return tuple(e for e in draft.chosen.exclude if e.incident or e.node in draft.plan.exclude)


def _said(permit: Permit, kind: Interruption, act: Act, policy: Policy, asked: Wishes) -> str:
    """Where the mode comes from."""
    where = "" if permit == Permit(policy.mode) else f" for {act} after {kind}"
    comment = f", the job's comment {asked.mode}" if asked.mode else ""
    return f"cluster policy says {permit}{where}{comment}"


def _lowered(situation: Situation, mode: Mode) -> tuple[Mode, str]:
    """The mode, lowered where nobody should act, or not unasked, whatever the policy says; and why."""
    began, partition = situation.began or situation.now, situation.attempt.record.partition
    stop = situation.guard.stops(situation.now, began, partition)
    if stop and mode is not Mode.MONITOR:
        return Mode.MONITOR, stop
    doubt = _doubt(situation) if mode is Mode.AUTO else ""
    return (Mode.APPROVE, doubt) if doubt else (mode, "")


def _doubt(situation: Situation) -> str:
    """Why nobody should act unasked; empty where nothing speaks against it."""
    if situation.guard.unknown:
        return situation.guard.unknown
    if situation.blind:
        return "; ".join(each.text for each in situation.blind[:3])
    if situation.kind in LOSES_TIME:
        return f"an attempt that still trains is never ended unasked ({situation.kind})"
    if situation.kind is Interruption.HANG and situation.witness is not Answer.YES:
        return "a silent log alone never acts: no second witness of the hang"
    return ""


def actions(plan: Plan) -> tuple[Act, ...]:
    """What the plan holds; what it is about comes first."""
    held = {
        Act.RESTART: plan.restart is not Restart.NONE,
        Act.STOP: plan.cancel,
        Act.EXCLUDE: bool(plan.exclude),
        Act.DRAIN: bool(plan.drain),
    }
    return tuple(act for act, there in held.items() if there)


def _allowed(draft: _Draft, permits: Mapping[Act, Permit], situation: Situation) -> _Draft:
    """Without what is off; and where more than monitor is allowed, without what may only be observed beside it.

    What is left is carried out in the lowest mode of its actions: docs/decisions/0016-policy-rules.md.
    """
    plan, kind = draft.plan, situation.kind
    for act in actions(plan):
        if permits[act] is Permit.OFF:
            plan = _without(plan, act, Permit.OFF, kind)
    first, *beside = actions(plan) or (Act.RESTART,)
    for act in beside:
        if permits[act] is Permit.MONITOR and permits[first] is not Permit.MONITOR:
            plan = _without(plan, act, Permit.MONITOR, kind)
    if (plan.restart, plan.cancel) == (draft.plan.restart, draft.plan.cancel):
        return draft._replace(plan=plan)
    goes_on = situation.hand is not Hand.NOBODY or (situation.record is not None and situation.record.running)
    return _Draft(plan, Outcome.OBSERVED if goes_on and not plan.drain else Outcome.STOPPED)


_NOTHING: Mapping[Act, Mapping[str, object]] = {
    Act.RESTART: {
        "restart": Restart.NONE,
        "release": False,
        "exclude": (),
        "requeue_until": None,
        "fall_back": None,
    },
    Act.STOP: {"cancel": False},
    Act.EXCLUDE: {"exclude": ()},
    Act.DRAIN: {"drain": ()},
}
"""What a plan holds without the action; nodes are kept out of a retry only where there is one."""


def _without(plan: Plan, act: Act, permit: Permit, kind: Interruption) -> Plan:
    if act not in actions(plan):
        return plan
    what = {
        Act.RESTART: "not restarted",
        Act.STOP: "not cancelled",
        Act.EXCLUDE: f"{', '.join(plan.exclude)} not excluded",
        Act.DRAIN: f"{', '.join(plan.drain)} not drained",
    }[act]
    reason = f"{plan.reason} ({what}: the policy says {permit} for {act} after {kind})"
    return plan.model_copy(update={**_NOTHING[act], "reason": reason})


def _draft(situation: Situation, cause: Hypothesis, policy: Policy, asked: Wishes, fresh: Permit) -> _Draft:
    """What should be done, were all of it allowed. The first rule that fits decides.

    Args:
        situation: all that it depends on.
        cause: why the attempt was interrupted.
        policy: what is allowed for this job.
        asked: what its comment asks.
        fresh: how far a fresh job in its place may go; off: it is not proposed.
    """
    stop = no_retry(situation, cause, policy, asked)
    anew = as_if_it_could(situation) if stop and situation.no_fresh_job is not None else None
    anew = anew if anew and fresh is not Permit.OFF and no_retry(anew, cause, policy, asked) is None else None
    if stop and anew and situation.no_fresh_job:
        stop = (stop[0], f"{stop[1]}; {NOT_ANEW}{situation.no_fresh_job}")
    elif anew:
        stop = None
    if stop:
        outcome, reason = stop
        # An attempt that still holds its nodes although a retry is useless is ended, so that it frees them.
        # The next attempt, which Slurm may have started by itself, is not the one that was diagnosed.
        record = situation.record
        holds = record is not None and record.running and not requeued(situation.attempt, record)
        plan = Plan(
            attempt=situation.attempt.key,
            restart=Restart.NONE,
            cancel=outcome is Outcome.STOPPED and holds,
            # An attempt that is left to train keeps its nodes: a broken one has a finding of its own.
            drain=() if outcome in {Outcome.NOT_CONFIRMED, Outcome.OBSERVED} else _drains(situation, cause),
            reason=reason + _undrained(situation, cause),
        )
        return _Draft(plan, outcome)
    chosen = exclusions(situation, cause, policy)
    new, remark = _to_exclude(situation, chosen)
    restart = Restart.ADOPT if situation.hand is Hand.SLURM else Restart.REQUEUE
    restart = Restart.SUBMIT if anew else restart
    plan = Plan(
        attempt=situation.attempt.key,
        restart=restart,
        release=situation.record is not None and restart is Restart.ADOPT and held_by_slurm(situation.record),
        exclude=new,
        drain=_drains(situation, cause),
        reason=(cause.summary or str(cause.category)) + remark + _undrained(situation, cause),
        requeue_until=None if anew else situation.deadline,
    )
    return _Draft(plan, None, chosen)


def _to_exclude(situation: Situation, chosen: Chosen) -> tuple[tuple[str, ...], str]:
    """What is to be put into the job's list, and a remark: Slurm keeps over a requeue what stands in it already."""
    listed = set((situation.record or situation.attempt.record).excluded_nodes)
    stays = [e.node for e in chosen.exclude if e.incident and e.node in listed]
    remarks = (chosen.remark, f"{few(stays)} stays excluded" if stays else "")
    told = "; ".join(filter(None, remarks))
    return tuple(e.node for e in chosen.exclude if e.node not in stays), f" ({told})" if told else ""


def _drains(situation: Situation, cause: Hypothesis) -> tuple[str, ...]:
    if cause.signature == NODE_FAIL:
        # slurmctld keeps a lost node out by itself; one that is back already is not condemned for having been away.
        return ()
    if _nodes_unseen(situation):
        return ()  # nobody would see that the node is well, or in somebody else's hands
    mine = set(situation.attempt.record.nodes)
    drained = {node.name for node in situation.nodes if node.draining or node.lost}
    return tuple(n for n in cause.drain_nodes if n in mine and n not in drained)


def _nodes_unseen(situation: Situation) -> str:
    """Why nothing is drained although the cause names nodes; empty where nodes are seen."""
    return next((each.text for each in situation.blind if each.detector == "nodes"), "")


def _undrained(situation: Situation, cause: Hypothesis) -> str:
    why = _nodes_unseen(situation)
    return f" (nothing is drained: {why})" if why and cause.drain_nodes else ""


def exclusions(situation: Situation, cause: Hypothesis, policy: Policy) -> Chosen:
    """Nodes to keep out of the retry: those that the cause names, and ours of earlier incidents that still hold."""
    own = situation.attempt.record
    ours = {e.node for e in situation.exclusions}
    listed = {*own.excluded_nodes, *(situation.record.excluded_nodes if situation.record else ())}
    usable = {n.name for n in situation.nodes if n.eligible} - (listed - ours)
    named = (*cause.drain_nodes, *cause.implicated.nodes) if cause.action is Action.RESTART_EXCLUDING_NODE else ()
    proposed = [
        Exclusion(
            node=node,
            since=situation.now,
            until=situation.now + policy.exclusions_expire,
            proof=proof_of(node, cause, situation.earlier),
        )
        for node in dict.fromkeys(named)
        if node in own.nodes
    ]
    known, now, lemons = situation.exclusions, situation.now, situation.lemons
    return choose(proposed, known, now, usable=usable, needed=own.node_count, lemons=lemons)
