"""Hypotheses from candidates: the words, the action, and which nodes may be drained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relight.attribution.blame import implicated, on_every_node, on_some_nodes
from relight.attribution.catalogue import Blame, Isolates, Signature, When
from relight.attribution.collectives import suspects
from relight.attribution.facts import Facts
from relight.attribution.line import Line
from relight.attribution.search import Candidate
from relight.attribution.stall import WATCHDOG
from relight.domain.base import clip, few
from relight.domain.diagnosis import Action, Category, Hypothesis, Implicated

EVIDENCE_EACH = 8
FEW_STEPS = 5
"""A failure up to this step is one of the first steps."""
MOST_CONFIDENCE = 0.99
_SOMEWHERE = dict.fromkeys((Category.NODE, Category.NETWORK, Category.STORAGE), "a node that the log does not name")


def hypothesis(candidate: Candidate, facts: Facts) -> Hypothesis:
    """What this candidate says, if it is the cause."""
    signature, lines = candidate.signature, candidate.lines
    who = implicated(signature, lines, facts)
    category, action, repeats = as_is(signature, lines, facts)
    if (everywhere := _everywhere(signature, action, lines)) and on_every_node(who.nodes, facts):
        action, repeats = everywhere, signature.if_every_node or repeats
        who = who.model_copy(update={"nodes": ()})
    if action is Action.STOP and signature.blame is Blame.PEER:
        who = Implicated()  # a setting is wrong, not the node at the other end
    if action is Action.RESTART_EXCLUDING_NODE and not who.nodes and len(facts.nodes) == 1:
        who = who.model_copy(update={"nodes": facts.nodes})
    return Hypothesis(
        signature=signature.id,
        category=category,
        action=action,
        action_if_it_repeats=repeats,
        confidence=min(candidate.weight, MOST_CONFIDENCE),
        implicated=who,
        summary=_summary(signature, lines, who, facts),
        drain_nodes=_drainable(signature, lines, facts),
        evidence=tuple(line.evidence() for line in lines[:EVIDENCE_EACH]),
    )


def as_is(signature: Signature, lines: Sequence[Line], facts: Facts) -> tuple[Category, Action, Action]:
    """Category, action, and action if it repeats, as the circumstances make them."""
    category, action, repeats = signature.category, signature.action, signature.action_if_it_repeats
    for variant in signature.variants:
        if holds(variant.when, lines, facts):
            action = variant.action or action
            return variant.category or category, action, variant.action_if_it_repeats or variant.action or repeats
    return category, action, repeats


def _everywhere(signature: Signature, action: Action, lines: Sequence[Line]) -> Action | None:
    """The action when most nodes show it: by job evidence alone nobody is excluded for what everybody has."""
    by_platform = any(line.scan.source.platform for line in lines)
    if signature.if_every_node or action is not Action.RESTART_EXCLUDING_NODE or by_platform:
        return signature.if_every_node
    return Action.RESTART


def _drainable(signature: Signature, lines: Sequence[Line], facts: Facts) -> tuple[str, ...]:
    """The trust rule: a node's own kernel log or agent, within the window, for a kind that is allowed to isolate."""
    if signature.isolates_node is not Isolates.PLATFORM:
        return ()
    nodes = dict.fromkeys(line.scan.source.node for line in lines if line.witness)
    allocated = facts.context.nodes
    return tuple(node for node in nodes if node and (not allocated or node in allocated))


def holds(when: When, lines: Sequence[Line], facts: Facts) -> bool:
    """True when the circumstance is known to hold."""
    return _HOLDS[when](lines, facts)


def _at_end(_: Sequence[Line], facts: Facts) -> bool:
    last = facts.last
    return last is not None and last.total is not None and last.step >= last.total


def _first_collective(lines: Sequence[Line], _: Facts) -> bool:
    return any(line.match.fields.get("completed") == "-1" for line in lines)


def _too_many_workers(lines: Sequence[Line], _: Facts) -> bool:
    told = [line.match.fields for line in lines if "world" in line.match.fields]
    return any(int(each["workers"]) > int(each["world"]) for each in told)


def _first_steps(lines: Sequence[Line], facts: Facts) -> bool:
    step = next((line.match.fields["step"] for line in lines if "step" in line.match.fields), None)
    return facts.at_start or (step is not None and int(step) <= FEW_STEPS) or _early(facts)


def _early(facts: Facts) -> bool:
    earlier = any(prior.failed_step is not None for prior in facts.context.history)
    return not earlier and facts.last_step is not None and facts.last_step <= FEW_STEPS


_HOLDS: Mapping[When, Callable[[Sequence[Line], Facts], bool]] = {
    When.AT_START: lambda _, facts: facts.at_start,
    When.AFTER_PROGRESS: lambda _, facts: facts.ran_before,
    When.AT_END: _at_end,
    When.FIRST_COLLECTIVE: _first_collective,
    When.TOO_MANY_WORKERS: _too_many_workers,
    When.SOME_NODES: on_some_nodes,
    When.FIRST_STEPS: _first_steps,
}


def _summary(signature: Signature, lines: Sequence[Line], who: Implicated, facts: Facts) -> str:
    fields: dict[str, str] = {}
    for line in lines:
        fields = line.match.fields | fields
    words: dict[str, Any] = {
        "where": where(who) or _SOMEWHERE.get(signature.category, "a process that the log does not name"),
        "peer": ", ".join(who.nodes) or fields.get("peer") or "the other end",
        "exc": clip(lines[0].match.fields.get("exc", "an error"), 100),
        "msg": clip(fields.get("msg", "(no message)"), 200),
        "exit": fields.get("exit", "?"),
        "missing": "",
        "when": "",
    }
    if signature.blame is Blame.SILENT:
        words["missing"] = suspects(signature.id, facts).sentence
    if signature.id == WATCHDOG and facts.stall.time_of_day:
        words["when"] = f" (the stall began {facts.stall.time_of_day:%H:%M:%S})"
    text = signature.summary.format_map(words).strip()
    return text if text.startswith(who.nodes) else text[:1].upper() + text[1:]  # n2 is not N2


def where(who: Implicated) -> str:
    """`rank 5 on node n2 (GPU 1)`, as far as known; empty where nothing is."""
    parts = []
    if who.ranks:
        parts.append(f"rank{'s' * (len(who.ranks) > 1)} {few([str(rank) for rank in who.ranks])}")
    if who.nodes:
        parts.append(f"{'on ' if parts else ''}node{'s' * (len(who.nodes) > 1)} {few(who.nodes)}")
    if who.gpus:
        gpu = f"GPU{'s' * (len(who.gpus) > 1)} {few(who.gpus)}"
        parts.append(f"({gpu})" if parts else gpu)
    return " ".join(parts)
