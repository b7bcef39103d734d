"""The text that a node is handed over with: all that who repairs it will ask for, and nothing else. Pure.

Plain text, for a ticket system, a mail or a terminal.
"""

from collections.abc import Iterator
from datetime import datetime

from relight.domain.base import Value, clip, few
from relight.domain.care import CareSituation, CareVerdict, Next, Remedy, open_repairs
from relight.domain.evidence import Evidence
from relight.domain.lemons import LEMON
from relight.domain.reports import GpuCard
from relight.domain.slurm import NodeRecord

MOST_LINES = 12
MAX_TICKET = 16_000
ASKED = {
    Remedy.NONE: "look at it",
    Remedy.RESET: "reset the GPU, or reboot the node",
    Remedy.REBOOT: "reboot the node",
    Remedy.REPLACE: "open a case with the maker, or replace the node",
}


class TicketFacts(Value):
    """All that a ticket tells."""

    cluster: str
    care: str
    incident: str
    cls: str = ""
    summary: str = ""
    jobs: tuple[str, ...] = ()
    """Which jobs were hit, for example `4711 llama-70b of alice`."""
    evidence: tuple[Evidence, ...] = ()
    cards: tuple[GpuCard, ...] = ()
    faults: tuple[str, ...] = ()
    """What its agent told since it was set aside, with times."""
    folder: str = ""
    since: datetime


def ticket(facts: TicketFacts, situation: CareSituation, verdict: CareVerdict) -> str:
    """The whole text, at most `MAX_TICKET` characters."""
    name = situation.node.name if situation.node else "the node"
    # What is asked is said once, at the top: whoever gets forty of these reads no further.
    head = [f"{name} ({facts.cluster}): {_asked(verdict)}", "", f"Why now:    {verdict.reason}"]
    lines = [*head, *_story(facts), *_hardware(facts, situation), *_checked(situation), *_slurm(situation.node)]
    lines += [*_history(situation), *_what_next(name, verdict), *_places(facts)]
    return clip("\n".join(lines) + "\n", MAX_TICKET)


def _asked(verdict: CareVerdict) -> str:
    if verdict.next is Next.RETURN:
        return "checked and well; it waits for leave to return"
    return ASKED[verdict.remedy] if verdict.next is Next.HAND_OVER or verdict.remedy else "not proven healthy"


def _story(facts: TicketFacts) -> Iterator[str]:
    yield f"Set aside:  {_time(facts.since)}, incident {facts.incident}"
    yield f"Because:    {facts.cls}: {facts.summary}".rstrip(": ")
    if facts.jobs:
        yield f"Jobs:       {few(facts.jobs, 6)}"
    if facts.evidence:
        yield ""
        yield "Told by the platform"
        for each in facts.evidence[:MOST_LINES]:
            at = f"{_time(each.at)}  " if each.at else ""
            yield f"  {at}{each.source}: {each.text}"
    if facts.faults:
        yield ""
        yield "Told by the node's agent since"
        yield from (f"  {line}" for line in facts.faults[-MOST_LINES:])


def _hardware(facts: TicketFacts, situation: CareSituation) -> Iterator[str]:
    open_ = open_repairs(situation)
    named = {repair.gpu for repair in open_ if repair.gpu} | {e.gpu for e in facts.evidence if e.gpu}
    if open_:
        yield ""
        yield "Asked for by the maker"
        yield from (f"  {_time(repair.at)}  {repair.text}: {ASKED[repair.remedy]}" for repair in open_[:MOST_LINES])
    if facts.cards:
        yield ""
        yield "GPUs"
        for card in sorted(facts.cards, key=lambda card: (card.gpu not in named, card.index)):
            mark = "* " if card.gpu in named else "  "
            names = [card.model, f"serial {card.serial or 'not told'}", f"uuid {card.uuid or 'not told'}"]
            yield f"{mark}{card.index}  {card.gpu}  {'  '.join(name for name in names if name)}"


def _checked(situation: CareSituation) -> Iterator[str]:
    yield ""
    at = f" {_time(situation.checked_at)}" if situation.checked_at else ""
    yield f"Checked{at}"
    for check in situation.checks:
        yield f"  {check.name:<9} {check.result:<13} {check.text}"
    if not situation.checks:
        yield f"  nothing: {situation.problem or 'no agent of this node is heard'}"


def _slurm(node: NodeRecord | None) -> Iterator[str]:
    yield ""
    if node is None:
        yield "Slurm       could not be asked"
        return
    flags = "".join(f"+{flag}" for flag in sorted(node.flags))
    yield f"Slurm       {node.state}{flags}; reason: {node.reason or 'none'}"
    more = [f"boot {_time(node.boot_time)}" if node.boot_time else "", f"gres {node.gres}" if node.gres else ""]
    if any(more):
        yield f"            {'; '.join(each for each in more if each)}"


def _history(situation: CareSituation) -> Iterator[str]:
    if situation.score > 0:
        lemon = " - a lemon" if situation.score >= LEMON else ""
        yield f"History     score {situation.score:.1f}{lemon}: {', '.join(situation.score_why)}"


def _what_next(name: str, verdict: CareVerdict) -> Iterator[str]:
    yield ""
    yield "What to do"
    if verdict.next is Next.RETURN:
        yield f"  relight approve node/{name}             to return it"
    else:
        yield f'  relight release {name} --reason "..."   once it is repaired: it is checked, and returned if well'
    yield f'  relight keep {name} --reason "..."      to leave it out'
    yield f"  scontrol update NodeName={name} State=RESUME   returns it unchecked; Relight then ends its care"


def _places(facts: TicketFacts) -> Iterator[str]:
    yield ""
    yield f"Evidence    {facts.folder or 'not kept'}"
    yield f"Story       relight nodes (care {facts.care}); relight show {facts.incident}"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
