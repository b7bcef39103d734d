"""The diagnosis: bytes and evidence in, ranked hypotheses out. No server, no language model, no clock."""

from collections.abc import Iterable, Sequence
from functools import cache

from relight.attribution import scheduler, seen
from relight.attribution.catalogue import Catalogue, When, load
from relight.attribution.facts import Facts, gather
from relight.attribution.history import with_history
from relight.attribution.numerics import loss_jump
from relight.attribution.reading import LogScan, read_log, told_by_agents
from relight.attribution.scanner import Scanner
from relight.attribution.search import Candidate, ranked
from relight.attribution.sources import Context, LogSource, Told
from relight.attribution.verdicts import holds, hypothesis, where
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
from relight.domain.evidence import Interruption
from relight.domain.slurm import ENDED_BADLY

MOST_HYPOTHESES = 6
LIKELY = 0.25
"""A log's candidate below this does not stand against a hang that nothing explains."""


def diagnose(
    sources: Sequence[LogSource],
    context: Context | None = None,
    scanner: Scanner | None = None,
    told: Iterable[Told] = (),
) -> Diagnosis:
    """Find the cause of an interruption.

    Reads each source once, in bounded memory. A source that cannot be read or is empty is listed in
    `Diagnosis.unreadable`. Job logs may classify and name nodes to be left out of this job's retry;
    `Hypothesis.drain_nodes` is filled from kernel logs and agents within the window and from slurmctld only.
    `scanner` is a prepared one, for a site's own catalogue; the shipped catalogue's is prepared once.
    `told` is what node agents told: it stands beside the kernel logs, and what both have counts once.
    """
    scanner = scanner or _shipped_scanner()
    scans = [*(read_log(source, scanner) for source in sources), *told_by_agents(told, scanner)]
    return conclude(scans, context or Context(), scanner.catalogue)


@cache
def _shipped_scanner() -> Scanner:
    return Scanner(load())


def conclude(scans: Sequence[LogScan], context: Context, catalogue: Catalogue) -> Diagnosis:
    """The diagnosis from logs that have been read."""
    facts = gather(scans, context)
    candidates = ranked(facts, catalogue)
    told = list(scheduler.hypotheses(facts, catalogue))
    found = _merge([hypothesis(one, facts) for one in candidates], told, candidates)
    if not found or not _answers(found[0], candidates):
        found = [one for one in (loss_jump(facts), _silent_hang(facts)) if one] + found
    found = _still_trains(found, facts) or [_finished(facts) or _unknown(facts)]
    found[0] = _do_not_requeue(with_history(found[0], facts), facts)
    return Diagnosis(
        hypotheses=tuple(found[:MOST_HYPOTHESES]),
        echoes=_echoes(facts, catalogue, found[0]),
        unreadable=tuple(_unreadable(scan) for scan in scans if scan.error or scan.empty),
        failed_step=facts.last_step,
    )


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


def _answers(first: Hypothesis, candidates: Sequence[Candidate]) -> bool:
    """True when the first hypothesis is more than context or a launcher's teardown."""
    tier = next((one.tier for one in candidates if one.signature.id == first.signature), 2)
    return tier > 0 and first.confidence >= LIKELY


def _silent_hang(facts: Facts) -> Hypothesis | None:
    if facts.context.interruption is not Interruption.HANG:
        return None
    evidence = seen.named(facts, seen.ODD)
    who = seen.implicated(evidence)
    history = facts.context.history
    same_node = bool(history and set(history[-1].nodes) & set(who.nodes))
    place = where(who)
    return Hypothesis(
        signature="HANG_NO_LOG",
        category=Category.UNKNOWN,
        action=Action.RESTART,
        # The same node again may be the node; the same step on another node is the program.
        action_if_it_repeats=Action.RESTART_EXCLUDING_NODE if same_node else Action.STOP,
        confidence=0.3,
        implicated=who,
        summary="Training stopped making progress and no log says why"
        + (f"; {place} stands out from the others." if place else "."),
    )


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
    bad_end = facts.context.interruption is not None or facts.context.state in ENDED_BADLY
    if bad_end or not holds(When.AT_END, (), facts):
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


def _echoes(facts: Facts, catalogue: Catalogue, verdict: Hypothesis) -> int:
    """Lines of other kinds than the verdict's."""
    return sum(count for name, count in facts.counts.items() if name in catalogue and name != verdict.signature)


def _unreadable(scan: LogScan) -> str:
    return f"{scan.source.name}: {scan.error or 'empty'}"
