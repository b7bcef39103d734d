"""What a person needs beside the verdict: echoes by kind, the ranks worth a look, and what would change it."""

from collections.abc import Iterator, Mapping

from relight.attribution.catalogue import Catalogue
from relight.attribution.collectives import stalled
from relight.attribution.facts import Facts
from relight.attribution.line import Line
from relight.attribution.nvlink5 import decode
from relight.attribution.signature import Tell
from relight.attribution.stall import WATCHDOG
from relight.domain.base import clip, few
from relight.domain.diagnosis import Action, Category, Diagnosis, Echo, Hypothesis, RankRow
from relight.domain.evidence import Interruption, Source

MOST_ECHOES, MOST_RANKS, MOST_CHANGES = 12, 64, 6
NAMED_NODES = 4


def explained(diagnosis: Diagnosis, facts: Facts, catalogue: Catalogue) -> Diagnosis:
    """The diagnosis with what explains it."""
    verdict = _decoded(diagnosis.verdict)
    echoes = {name: count for name, count in facts.counts.items() if name in catalogue and name != verdict.signature}
    return diagnosis.model_copy(
        update={
            "hypotheses": (verdict, *diagnosis.hypotheses[1:]),
            "echoes": sum(echoes.values()),
            "folded": tuple(_folded(echoes, facts)),
            "ranks": tuple(_ranks(verdict, facts)),
            "would_change": tuple(_changes(diagnosis, facts, catalogue))[:MOST_CHANGES],
        }
    )


def _decoded(verdict: Hypothesis) -> Hypothesis:
    """With what NVIDIA's table says about the words in hexadecimal of an NVLink 5 fault."""
    found = next((said for one in verdict.evidence if (said := decode(one.text))), None)
    if found is None:
        return verdict
    link = f", link {found.link}" if found.link is not None else ""
    words = f"NVIDIA's table: {found.unit}{link}, {found.severity.lower()}, {found.resolution}."
    return verdict.model_copy(update={"summary": f"{verdict.summary} {words}"})


def _folded(echoes: Mapping[str, int], facts: Facts) -> Iterator[Echo]:
    """The kinds of lines other than the verdict's, the most frequent first."""
    for name, count in sorted(echoes.items(), key=lambda kind: (-kind[1], kind[0]))[:MOST_ECHOES]:
        lines = facts.lines.get(name)
        example = clip(lines[0].match.text, 200) if lines else ""
        yield Echo(signature=name, lines=count, ranks=len(facts.printed(name)), example=example)


def _ranks(verdict: Hypothesis, facts: Facts) -> Iterator[RankRow]:
    """Those implicated, those a stall points at, those that failed; nobody in a job of one."""
    if facts.world < 2 and len(facts.seats) < 2:  # noqa: PLR2004 - a table of one
        return
    first = _first_lines(facts)
    told = stalled(facts)
    wanted = dict.fromkeys([*verdict.implicated.ranks, *(told.ranks if told else ()), *first])
    for rank in list(wanted)[:MOST_RANKS]:
        seat, line = facts.seats.get(rank), first.get(rank)
        yield RankRow(
            rank=rank,
            node=seat.node if seat else None,
            gpu=seat.gpu if seat else None,
            last_step=facts.steps_of_ranks.get(rank),
            said=line.match.signature if line else "",
        )


def _first_lines(facts: Facts) -> dict[int, Line]:
    """The first failure line of each rank, by place in its log and by clock, earliest known first."""
    first: dict[int, Line] = {}
    for lines in facts.lines.values():
        for line in lines:
            rank = line.speaker.rank
            if rank is not None and not line.survived and (rank not in first or line.before(first[rank])):
                first[rank] = line
    return dict(sorted(first.items(), key=lambda each: each[1].moment.at.timestamp() if each[1].moment else 0.0))


def _changes(diagnosis: Diagnosis, facts: Facts, catalogue: Catalogue) -> Iterator[str]:
    """What is not known, and would tell more: one sentence each, the most telling first."""
    verdict, context = diagnosis.verdict, facts.context
    if unread := [scan for scan in facts.scans if scan.error]:
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        yield f"What could not be read: {clip(unread[0].source.name, 120)}{more}."
    kernel = {scan.source.node for scan in facts.scans if scan.source.kind is Source.KERNEL_LOG}
    if _may_be_below(verdict, catalogue) and not verdict.drain_nodes:
        wanted = [node for node in (verdict.implicated.nodes or facts.nodes) if node not in kernel]
        if wanted or not facts.nodes:
            whose = f"{few(wanted, NAMED_NODES) or 'its nodes'}{_when(facts)}"
            yield f"The kernel log (dmesg -T) of {whose}: an Xid, a port error or an OOM kill there."
    if _stalls(verdict, facts) and not facts.recorded:
        yield "Flight-recorder dumps (TORCH_FR_BUFFER_SIZE above 0) would name the rank that did not take part."
    if verdict.action is Action.RESTART_EXCLUDING_NODE and not verdict.implicated.nodes:
        yield "The allocation (sacct -j JOB -o NodeList) and the job's earlier failures: the logs name no node."
    if context.state is None and verdict.category in {Category.SCHEDULER, Category.UNKNOWN, Category.HOST_MEMORY}:
        yield "How Slurm says it ended (sacct -j JOB -D -o State,ExitCode,Reason)."
    if not context.history and verdict.action_if_it_repeats is not verdict.action:
        yield f"If its last attempt failed in the same way: {_words(verdict.action_if_it_repeats)}."


def _may_be_below(verdict: Hypothesis, catalogue: Catalogue) -> bool:
    """True where the cause may be the hardware, and so stand in a kernel log."""
    tell = catalogue[verdict.signature].tell if verdict.signature in catalogue else None
    return verdict.category is Category.UNKNOWN or tell in {Tell.HARDWARE_OPS, Tell.NETWORK_OPS}


def _stalls(verdict: Hypothesis, facts: Facts) -> bool:
    return facts.context.interruption is Interruption.HANG or verdict.signature == WATCHDOG


def _when(facts: Facts) -> str:
    at = facts.stall.time_of_day or facts.context.interrupted_at
    return f" around {at:%H:%M:%S}" if at else ""


def _words(action: Action) -> str:
    return {
        Action.RESTART: "restart",
        Action.RESTART_EXCLUDING_NODE: "restart without the node",
        Action.STOP: "do not restart, mend the cause",
        Action.NONE: "nothing to do",
    }[action]
