"""All evidence against each node, added up, and what it makes of a verdict.

What the job, Slurm, the platform, dumps and history say is weighed by `weights.yaml`. The sum decides which nodes are
left out of this job's own retry; it never drains a node: that takes the platform's own word (`verdicts.hypothesis`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from relight.attribution import seen
from relight.attribution.absent import Suspects
from relight.attribution.blame import of_ranks, on_every_node
from relight.attribution.collectives import stalled
from relight.attribution.facts import Facts
from relight.attribution.history import same_again
from relight.attribution.search import ROOT_TIER, Candidate, hung
from relight.attribution.signature import Blame, Isolates
from relight.attribution.stall import WATCHDOG
from relight.attribution.weights import Weights
from relight.domain.diagnosis import Action, Category, Hypothesis, Suspect
from relight.domain.evidence import Source

_SOMEWHERE = frozenset({Category.UNKNOWN, Category.NETWORK, Category.NODE, Category.GPU, Category.FRAMEWORK})
"""Categories behind which a sick node may be."""
_SHARED = frozenset({Category.NETWORK, Category.STORAGE, Category.NODE, Category.UNKNOWN})
"""Categories of what all jobs share."""


class Point(NamedTuple):
    """One kind of evidence against one node."""

    node: str
    kind: str
    weight: float
    why: str
    signature: str = ""
    """Whose lines it is made of."""
    proves: bool = False
    """Enough by itself."""
    by_job_alone: bool = False
    """It proves only as the verdict: of another cause than the one found, what a job prints leaves nobody out."""


def points(found: Sequence[Hypothesis], candidates: Sequence[Candidate], facts: Facts, w: Weights) -> list[Point]:
    """What speaks against nodes of the allocation; of one kind the heaviest counts for a node."""
    by_kind: dict[tuple[str, str], Point] = {}
    for point in _all(found, candidates, facts, w):
        known = by_kind.get((point.node, point.kind))
        if (known is None or point.weight > known.weight) and (not facts.nodes or point.node in facts.node_set):
            by_kind[point.node, point.kind] = point
    return list(by_kind.values())


def suspects(against: Iterable[Point], w: Weights) -> tuple[Suspect, ...]:
    """The nodes, the most suspect first."""
    by_node: dict[str, list[Point]] = defaultdict(list)
    for point in against:
        by_node[point.node].append(point)
    result = [_suspect(node, each, w) for node, each in by_node.items()]
    return tuple(sorted(result, key=lambda one: (-one.score, one.node)))


def _suspect(node: str, against: Sequence[Point], w: Weights) -> Suspect:
    score = round(sum(point.weight for point in against), 3)
    enough = score >= w.isolate.from_score and len(against) >= w.isolate.kinds
    heaviest = sorted(against, key=lambda point: -point.weight)
    why = tuple(point.why for point in heaviest[:8])
    return Suspect(node=node, score=score, why=why, isolate=enough or any(point.proves for point in against))


def judged(verdict: Hypothesis, against: Sequence[Point], facts: Facts, w: Weights) -> Hypothesis:
    """The verdict with the nodes that enough speaks against, and no others, left out of the retry."""
    verdict = _on_its_own(verdict, against, w)
    if not facts.context.nodes:
        return verdict  # without the allocation there is nothing to leave a node out of: the words stand as they are
    isolated = {one.node for one in suspects(against, w) if one.isolate} | set(verdict.drain_nodes)
    several = {one.node for one in suspects([p for p in against if not p.by_job_alone], w) if one.isolate}
    others = _others_too(verdict, facts, w)
    if others and not verdict.drain_nodes:
        return _kept(verdict, others) if verdict.action is Action.RESTART_EXCLUDING_NODE else _said(verdict, others)
    if verdict.action is Action.RESTART_EXCLUDING_NODE and (named := verdict.implicated.nodes):
        nodes = tuple(node for node in named if node in isolated)
        if nodes:
            return _with_nodes(verdict, nodes)
        return _kept(verdict, f"Not enough speaks against {', '.join(named[:3])} to leave it out of the retry.")
    if verdict.action is Action.RESTART and verdict.category in _SOMEWHERE and several:
        nodes = tuple(sorted(several))
        if not on_every_node(nodes, facts):
            why = {one.node: ", ".join(one.why[:3]) for one in suspects(against, w)}
            words = "; ".join(f"{node} ({why[node]})" for node in nodes[:3])
            update = {"action": Action.RESTART_EXCLUDING_NODE, "summary": f"{verdict.summary} Left out: {words}."}
            return _with_nodes(verdict, nodes).model_copy(update=update)
    return verdict


def _on_its_own(verdict: Hypothesis, against: Iterable[Point], w: Weights) -> Hypothesis:
    """More confident where other kinds of evidence name the same nodes."""
    nodes = set(verdict.implicated.nodes)
    other = [p for p in against if p.node in nodes and p.signature != verdict.signature]
    backing = min(1.0, sum(point.weight for point in other) / max(len(nodes), 1))
    confidence = verdict.confidence + (1 - verdict.confidence) * w.support * backing
    return verdict.model_copy(update={"confidence": min(confidence, 0.99)})


def _with_nodes(verdict: Hypothesis, nodes: tuple[str, ...]) -> Hypothesis:
    return verdict.model_copy(update={"implicated": verdict.implicated.model_copy(update={"nodes": nodes[:32]})})


def _kept(verdict: Hypothesis, why: str) -> Hypothesis:
    """Restarted with all nodes."""
    return _said(_with_nodes(verdict, ()), why).model_copy(update={"action": Action.RESTART})


def _said(verdict: Hypothesis, more: str) -> Hypothesis:
    return verdict.model_copy(update={"summary": f"{verdict.summary} {more}"})


def _others_too(verdict: Hypothesis, facts: Facts, w: Weights) -> str:
    """Why it is no single node's fault: jobs of several users on other nodes were interrupted at the same time."""
    if verdict.category not in _SHARED:
        return ""
    mine = facts.node_set
    apart = [job for job in facts.context.spread if not mine & set(job.nodes)]
    if len({job.lineage for job in apart}) < w.spread.jobs or len({job.user for job in apart}) < w.spread.users:
        return ""
    return f"{len(apart)} jobs on other nodes were interrupted at the same time: what all share is behind it."


def _all(
    found: Sequence[Hypothesis],
    candidates: Sequence[Candidate],
    facts: Facts,
    w: Weights,
) -> Iterator[Point]:
    yield from _told(found, candidates, w)
    yield from _named(candidates, facts, w)
    yield from _stalled(candidates, facts, w)
    yield from _from_history(found[0], facts, w)


def _told(found: Sequence[Hypothesis], candidates: Sequence[Candidate], w: Weights) -> Iterator[Point]:
    """Root lines on a node, the platform's and Slurm's word."""
    weights, roots = w.against_a_node, {one.signature.id: one for one in candidates}
    for one in found:
        for node in one.drain_nodes:
            yield Point(node, "proven", weights.self_proving, f"{one.signature} (platform)", one.signature, proves=True)
        candidate = roots.get(one.signature)
        by_slurm = any(each.source is Source.SLURMCTLD for each in one.evidence)
        own = candidate is not None and candidate.tier >= ROOT_TIER  # neither explained by another nor survived
        peer = candidate is not None and candidate.signature.blame in {Blame.PEER, Blame.SILENT}
        if peer or not (own or by_slurm):
            continue
        for node in one.implicated.nodes:
            if one.action is Action.RESTART_EXCLUDING_NODE:
                job = not by_slurm and one is not found[0]
                why = one.signature
                yield Point(node, "proven", weights.self_proving, why, why, proves=True, by_job_alone=job)
            elif candidate is not None and candidate.signature.isolates_node is not Isolates.NEVER:
                yield Point(node, "root line", weights.root_line, one.signature, signature=one.signature)


def _named(candidates: Sequence[Candidate], facts: Facts, w: Weights) -> Iterator[Point]:
    """Nodes that others name as the end that does not answer."""
    votes: dict[str, set[str]] = defaultdict(set)
    by = ""
    for one in candidates:
        if one.signature.blame is Blame.PEER and not one.lines[0].survived:
            by = by or one.signature.id
            for peer, reporters in facts.named(one.signature.id, "peer").items():
                votes[facts.node_name(peer)] |= reporters
    for node, reporters in votes.items():
        count = len(reporters - {node})
        if count:
            weight = min(w.against_a_node.named_by_each * count, w.against_a_node.named_at_most)
            why = f"named by {count} other{'s' * (count > 1)}"
            yield Point(node, "named", weight, why, signature=by)


def _stalled(candidates: Sequence[Candidate], facts: Facts, w: Weights) -> Iterator[Point]:
    """Where the ranks run that a stall points at, and what its watchers saw stand out."""
    weights = w.against_a_node
    waited = any(one.signature.blame is Blame.SILENT for one in candidates)
    if waited or hung(facts):
        told = stalled(facts) or Suspects()
        kind, weight = ("recorded", weights.recorded) if told.recorded else ("silent", weights.silent_or_behind)
        for node in dict.fromkeys(place.node for place in of_ranks(told.ranks, facts) if place.node):
            yield Point(node, kind, weight, told.sentence, signature=WATCHDOG)
    if hung(facts):
        for node in seen.implicated(seen.named(facts, seen.ODD)).nodes:
            yield Point(
                node, "stands out", weights.silent_or_behind, "stands out from the others", signature="HANG_NO_LOG"
            )


def _from_history(verdict: Hypothesis, facts: Facts, w: Weights) -> Iterator[Point]:
    weights, history = w.against_a_node, facts.context.history
    earlier = [failure.node for failure in facts.context.node_history if failure.own or failure.proven]
    earlier += [node for prior in history[-1:] for node in prior.nodes]
    for node in dict.fromkeys(earlier):
        yield Point(node, "earlier", weights.earlier_incident, "behind an earlier incident")
    if history and same_again(verdict, history[-1]):
        for node in verdict.implicated.nodes:
            if node in history[-1].nodes:
                yield Point(node, "again", weights.same_again, "the same failure as the last time")
