"""The diagnosis: bytes and evidence in, ranked hypotheses out. No server, no language model, no clock."""

from collections.abc import Iterable, Sequence
from functools import cache

from relight.attribution import fusion, scheduler, seen
from relight.attribution.blame import of_ranks
from relight.attribution.catalogue import Catalogue, When, load
from relight.attribution.collectives import stalled
from relight.attribution.excerpt import around
from relight.attribution.explain import explained
from relight.attribution.facts import Facts, gather
from relight.attribution.history import with_history
from relight.attribution.many_logs import read_logs
from relight.attribution.numerics import loss_jump
from relight.attribution.reading import LogScan, told_by_agents
from relight.attribution.scanner import Scanner
from relight.attribution.search import TIME_LIMIT, Candidate, hung, ranked
from relight.attribution.slowdown import slowed
from relight.attribution.sources import Context, LogSource, Recorded, Told
from relight.attribution.verdicts import holds, hypothesis, where
from relight.attribution.weights import weights
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.domain.evidence import Interruption

MOST_HYPOTHESES = 6
MOST_SUSPECTS = 16
LIKELY = 0.25
"""A log's candidate below this does not stand against a hang that nothing explains."""


def diagnose(
    sources: Sequence[LogSource],
    context: Context | None = None,
    scanner: Scanner | None = None,
    told: Iterable[Told] = (),
    recorded: Sequence[Recorded] = (),
) -> Diagnosis:
    """Find the cause of an interruption.

    Reads each source once, in bounded memory. A source that cannot be read or is empty is listed in
    `Diagnosis.unreadable`. Job logs may classify and name nodes to be left out of this job's retry;
    `Hypothesis.drain_nodes` is filled from kernel logs and agents within the window and from slurmctld only.
    `scanner` is a prepared one, for a site's own catalogue; the shipped catalogue's is prepared once.
    `told` is what node agents told: it stands beside the kernel logs, and what both have counts once.
    `recorded` is what flight-recorder dumps say: of a stall they know most.
    """
    scanner = scanner or _shipped_scanner()
    scans = [*read_logs(sources, scanner), *told_by_agents(told, scanner)]
    diagnosis = conclude(scans, context or Context(), scanner.catalogue, recorded)
    return diagnosis.model_copy(update={"around": around(diagnosis.verdict, sources, scans)})


@cache
def _shipped_scanner() -> Scanner:
    return Scanner(load(), lazy=True)


def conclude(
    scans: Sequence[LogScan],
    context: Context,
    catalogue: Catalogue,
    recorded: Sequence[Recorded] = (),
) -> Diagnosis:
    """The diagnosis from logs that have been read."""
    facts = gather(scans, context, catalogue, recorded)
    candidates = ranked(facts, catalogue)
    told = list(scheduler.hypotheses(facts, catalogue))
    found = _merge([hypothesis(one, facts) for one in candidates], told, candidates)
    if not found or not _answers(found[0], candidates, facts):
        found = [one for one in (loss_jump(facts), _silent_hang(facts), _finished(facts)) if one] + found
    if not found and (slower := slowed(facts)):
        found = [slower]
    found = _ended(_still_trains(found, facts), candidates, facts)
    found[0] = with_history(found[0], facts)
    against = fusion.points(found, candidates, facts, weights())
    found[0] = _do_not_requeue(fusion.judged(found[0], against, facts, weights()), facts)
    diagnosis = Diagnosis(
        hypotheses=tuple(found[:MOST_HYPOTHESES]),
        suspects=fusion.suspects(against, weights())[:MOST_SUSPECTS],
        unreadable=tuple(_unreadable(scan) for scan in scans if scan.error or scan.empty),
        failed_step=facts.last_step,
    )
    return explained(diagnosis, facts, catalogue)


def _merge(found: list[Hypothesis], told: list[Hypothesis], candidates: Sequence[Candidate]) -> list[Hypothesis]:
    """What Slurm says, put where its confidence belongs; the same kind from both is one hypothesis."""
    for said in told:
        same = next((one for one in found if one.signature == said.signature), None)
        if same is not None:
            found.remove(same)
            said = _joined(said, same)  # noqa: PLW2901
        tiers = {one.signature.id: one.tier for one in candidates}
        behind = [one for one in found if tiers.get(one.signature, 0) > 1 and one.confidence > said.confidence]
        place = max((found.index(one) + 1 for one in behind), default=0)
        found.insert(place, said)
    return found


def _joined(said: Hypothesis, read: Hypothesis) -> Hypothesis:
    who = said.implicated if said.implicated.nodes else read.implicated
    drain = tuple(dict.fromkeys(said.drain_nodes + read.drain_nodes))
    return said.model_copy(
        update={"implicated": who, "drain_nodes": drain, "evidence": (said.evidence + read.evidence)[:8]},
    )


def _answers(first: Hypothesis, candidates: Sequence[Candidate], facts: Facts) -> bool:
    """True when the first hypothesis is more than context, a launcher's teardown, or the limit of what had hung."""
    tier = next((one.tier for one in candidates if one.signature.id == first.signature), 2)
    return tier > 0 and first.confidence >= LIKELY and not (first.signature == TIME_LIMIT and hung(facts))


def _ended(found: list[Hypothesis], candidates: Sequence[Candidate], facts: Facts) -> list[Hypothesis]:
    """Unknown, where there is no more than a notice of what ended badly, or a line that was survived says to stop."""
    survived = {one.signature.id for one in candidates if one.lines[0].survived}
    notices = {one.signature.id for one in candidates if one.tier == 0}
    if (
        not found
        or (found[0].signature in survived and (facts.ended_badly or found[0].action is Action.STOP))
        or (found[0].signature in notices and facts.ended_badly and found[0].action is Action.NONE)
    ):
        return [_unknown(facts), *found]
    return found


def _silent_hang(facts: Facts) -> Hypothesis | None:
    if not hung(facts):
        return None
    evidence = seen.named(facts, seen.ODD)
    told = stalled(facts)
    who = _joined_places(seen.implicated(evidence), told.ranks if told else (), facts)
    history = facts.context.history
    same_node = bool(history and set(history[-1].nodes) & set(who.nodes))
    odd = f"{where(who)} stands out from the others." if evidence and who else ""
    return Hypothesis(
        signature="HANG_NO_LOG",
        category=Category.UNKNOWN,
        action=Action.RESTART,
        # The same node again may be the node; the same step on another node is the program.
        action_if_it_repeats=Action.RESTART_EXCLUDING_NODE if same_node else Action.STOP,
        confidence=0.3,
        implicated=who,
        summary="Training stopped making progress and no log says why"
        + (f"; {odd}" if odd else "." + (f" {told.sentence}" if told else "")),
    )


def _joined_places(who: Implicated, ranks: Sequence[int], facts: Facts) -> Implicated:
    """What the watchers saw; where they saw nobody, the ranks that logs or dumps point at."""
    if who or not ranks:
        return who
    nodes = dict.fromkeys(place.node for place in of_ranks(ranks, facts) if place.node)
    return Implicated(ranks=tuple(sorted(ranks)), nodes=tuple(nodes))


def _still_trains(found: list[Hypothesis], facts: Facts) -> list[Hypothesis]:
    """Of an attempt that trains, slowly or for nothing, no line tells the end: what the watcher saw comes first.

    Unless a line is about the very thing: a platform's about a node, or one about numbers.
    """
    kind, evidence = facts.context.interruption, seen.named(facts, seen.SLOW)
    if kind is Interruption.STRAGGLER and not (found and found[0].drain_nodes):
        why = f": {evidence[0].text}" if evidence else ", and no log says why."
        told = ("SLOW_NO_LOG", Category.STRAGGLER, f"Training has become slower than it was{why}")
    elif kind is Interruption.NUMERICS and not (found and found[0].category is Category.NUMERICS):
        told = ("NUMERICS_NO_LOG", Category.NUMERICS, "The loss or its gradients went wrong, and no log says why.")
    else:
        return found
    signature, category, summary = told
    first = Hypothesis(
        signature=signature,
        category=category,
        action=Action.NONE,
        action_if_it_repeats=Action.NONE,
        confidence=0.3,
        implicated=seen.implicated(evidence if kind is Interruption.STRAGGLER else ()),
        summary=summary,
    )
    return [first, *found]


def _finished(facts: Facts) -> Hypothesis | None:
    """All steps done, no failure in any log, and nobody reported an interruption: nothing failed."""
    if facts.ended_badly or not holds(When.AT_END, (), facts):
        return None
    return Hypothesis(
        signature="TRAINING_DONE",
        category=Category.CONTROL,
        action=Action.NONE,
        action_if_it_repeats=Action.NONE,
        confidence=0.6,
        summary="All training steps were done and nothing in the logs is a failure.",
    )


def _unknown(facts: Facts) -> Hypothesis:
    why = "Nothing in the logs is a known failure"
    if all(scan.error or scan.empty for scan in facts.scans):
        unread = any(scan.error for scan in facts.scans)
        why = "The logs could not be read" if unread else "The logs are empty" if facts.scans else "There is no log"
    return Hypothesis(
        signature="UNKNOWN",
        category=Category.UNKNOWN,
        action=Action.RESTART,
        action_if_it_repeats=Action.STOP,
        confidence=0.1,
        summary=f"{why}: restart once, stop if it happens again.",
    )


def _do_not_requeue(verdict: Hypothesis, facts: Facts) -> Hypothesis:
    if facts.context.exit_code != scheduler.DO_NOT_REQUEUE:
        return verdict
    summary = f"{verdict.summary} The job itself asks not to be requeued (exit code {scheduler.DO_NOT_REQUEUE})."
    category = Category.USER_CODE if verdict.category is Category.UNKNOWN else verdict.category
    stop = {"action": Action.STOP, "action_if_it_repeats": Action.STOP, "category": category, "summary": summary}
    return verdict.model_copy(update=stop)


def _unreadable(scan: LogScan) -> str:
    return f"{scan.source.name}: {scan.error or 'empty'}"
