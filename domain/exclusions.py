"""Nodes that a job's retries keep away from: for how long, on what proof, and which go first when too few are left.

Slurm keeps a job's ExcNodeList over requeues, so what was excluded once stays excluded until somebody takes it back.
Ours expire. Whose an entry is, the ledger tells: ours is what an intent of ours added to the list and an effect of ours
read back, and what the job's first attempt did not have. All else is the user's (or not known to be ours) and is never
taken back. What is ours by the ledger and no longer in the list was taken out by a person, and stays out.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value, few
from relight.domain.diagnosis import Hypothesis
from relight.domain.incidents import Incident
from relight.domain.ledger import Row, RowKind
from relight.domain.slurm import JobRecord, NodeFlag, NodeRecord

EXCLUDE, ALLOW = "exclude", "allow"
"""What an intent is called that adds nodes to a job's list, or takes ours out of it again."""
_SHOWN = "ExcNodeList="


class Proof(StrEnum):
    """What speaks against a node; the strongest first."""

    PLATFORM = "platform witness"
    REPEATED = "repeated"
    """Named in more than one incident of the job, by what the job itself printed."""
    JOB = "job evidence alone"


_STRENGTH = tuple(Proof)


class Exclusion(Value):
    """A node that Relight keeps one job away from."""

    node: str
    incident: str = ""
    """By which incident; empty where it is only proposed."""
    since: datetime
    until: datetime
    """When it is taken back, at the job's next restart."""
    proof: Proof = Proof.JOB


def by_proof(exclusions: Collection[Exclusion], lemons: Mapping[str, float] | None = None) -> tuple[Exclusion, ...]:
    """The best proven first; of those equally proven the worst node by its history, then the newest.

    From the end of this they are taken back where too few nodes are left.
    """
    score = lemons or {}
    newest = sorted(exclusions, key=lambda e: (e.since, e.node), reverse=True)
    return tuple(sorted(newest, key=lambda e: (_STRENGTH.index(e.proof), -score.get(e.node, 0.0))))


def proof_of(node: str, cause: Hypothesis | None, others: Sequence[Incident]) -> Proof:
    """What speaks against a node: the cause for which it is excluded, and the job's other incidents."""
    if cause is not None and node in cause.drain_nodes:
        return Proof.PLATFORM
    again = any(node in _named(incident.diagnosis.verdict) for incident in others if incident.diagnosis)
    return Proof.REPEATED if again else Proof.JOB


def _named(cause: Hypothesis) -> frozenset[str]:
    return frozenset((*cause.drain_nodes, *cause.implicated.nodes))


# --- what the ledger says of a job's list ---


def shown(nodes: Collection[str]) -> str:
    """A job's whole list, as an effect tells it."""
    return _SHOWN + ",".join(sorted(nodes))


def _listed(effect: Row) -> frozenset[str] | None:
    """What was read back; None where the list was not changed."""
    text = str(effect.body.get("done", {}).get("text", ""))
    if not text.startswith(_SHOWN):
        return None
    return frozenset(filter(None, text.removeprefix(_SHOWN).split(",")))


class Marked(NamedTuple):
    """One of our entries in a job's list, as the ledger has it."""

    incident: str
    since: datetime
    until: datetime | None
    """None: written by a version that did not say."""
    job_id: int


class Look(NamedTuple):
    """A job's whole list as it was seen at a time."""

    at: datetime
    job_id: int
    listed: Collection[str]
    intent: Row | None = None
    """What we had set out to change, where this is how it was read back."""


def ours(rows: Sequence[Row], cluster: str, snapshots: Sequence[Look]) -> dict[str, Marked]:
    """Nodes that we put into a job's list and have not taken back, and that were there whenever it was looked at since.

    Args:
        rows: intents and effects of the job's lineage.
        cluster: rows of another cluster say nothing of this one's nodes.
        snapshots: the list as each attempt had it when it turned RUNNING; the oldest is the user's own.
    """
    looks = sorted([*snapshots, *_read_back(rows, cluster)], key=lambda look: look.at)
    users_own = set(min(snapshots, key=lambda look: look.at).listed) if snapshots else set()
    found: dict[str, Marked] = {}
    for look in looks:
        found = {node: mark for node, mark in found.items() if node in look.listed or look.job_id != mark.job_id}
        if look.intent is not None:
            until = look.intent.body.get("until") or {}
            found |= {
                str(node): Marked(look.intent.incident, look.intent.at, _time(until.get(node)), look.job_id)
                for node in look.intent.body.get("nodes", ())
                if node in look.listed and node not in users_own
            }
    return found


def _read_back(rows: Sequence[Row], cluster: str) -> list[Look]:
    meant = {_step(row): row for row in rows if row.kind is RowKind.INTENT and row.body.get("what") == EXCLUDE}
    looks = []
    for row in rows:
        listed = _listed(row) if row.kind is RowKind.EFFECT and row.cluster == cluster else None
        if listed is not None:
            looks.append(Look(row.at, _job(row), listed, meant.get(_step(row))))
    return looks


def standing(
    marked: Mapping[str, Marked],
    incidents: Sequence[Incident],
    listed: Collection[str],
    job_id: int,
    expire: timedelta,
) -> tuple[Exclusion, ...]:
    """Our exclusions that stand: they are in the job's list, or were made for the same work under another job id.

    Args:
        marked: by the ledger (`ours`).
        incidents: of the job's lineage.
        listed: the job's list as Slurm shows it.
        job_id: of the job now; what a person took out of its list is not put back.
        expire: how long one lasts that does not say so itself.
    """
    causes = {i.id: i.diagnosis.verdict for i in incidents if i.diagnosis}
    return by_proof(
        [
            Exclusion(
                node=node,
                incident=mark.incident,
                since=mark.since,
                until=mark.until or mark.since + expire,
                proof=proof_of(node, causes.get(mark.incident), [i for i in incidents if i.id != mark.incident]),
            )
            for node, mark in marked.items()
            if node in listed or mark.job_id != job_id
        ]
    )


def _step(row: Row) -> str:
    """A row's id is `<workflow>/<run>/<step>/<phase>`."""
    return row.id.rpartition("/")[0]


def _job(row: Row) -> int:
    return AttemptKey.parse(row.attempt).job_id if row.attempt else 0


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


# --- a job that waits ---

UNPLACEABLE = "BadConstraints"
"""Slurm's reason when no nodes at all would fit; it is there at the first scheduling pass (seen on 22.05)."""
MAYBE_UNPLACEABLE = ("ReqNodeNotAvail", "Reservation")
"""Its reasons where nodes that would fit are drained, down or reserved; an exclusion of ours may be among the causes:
with a reservation anywhere, a job that lacks a feature's last node shows `Reservation` (seen on 22.05)."""


def in_the_way(record: JobRecord, nodes: Sequence[NodeRecord], ours: Collection[str], needed: int) -> bool:
    """Whether a job that waits for nodes which are not available has too few of them because of our exclusions.

    Args:
        record: the job, waiting.
        nodes: all nodes, freshly read.
        ours: what we exclude; the rest of its list is its user's.
        needed: how many nodes it needs.
    """
    shut = {NodeFlag.MAINTENANCE, NodeFlag.RESERVED}
    mine = {record.partition} - {""}
    usable = {n.name for n in nodes if n.eligible and not (n.flags & shut) and (not mine or mine & set(n.partitions))}
    return len(usable - set(record.excluded_nodes)) < needed and bool(usable & set(record.excluded_nodes) & set(ours))


# --- what to do about it ---


class Chosen(NamedTuple):
    """Which nodes the next attempt keeps away from."""

    exclude: tuple[Exclusion, ...]
    """New ones and those that still hold, the best proven first."""
    allow: tuple[str, ...]
    """Ours that are taken back: expired, or too few nodes would be left."""
    remark: str
    """Empty where all went as it should."""


def choose(
    proposed: Sequence[Exclusion],
    known: Sequence[Exclusion],
    now: datetime,
    *,
    usable: Collection[str],
    needed: int,
    lemons: Mapping[str, float] | None = None,
) -> Chosen:
    """Nodes to keep out of the retry, less the expired ones, and less the least proven where too few would be left.

    An exclusion that leaves too few nodes is accepted by Slurm and then pends for ever as BadConstraints (seen).

    Args:
        proposed: by this incident.
        known: ours that stand.
        now: when this is asked.
        usable: nodes that could run the job, without those that its user excludes.
        needed: how many it needs.
        lemons: how bad a node's history is, where that is known.
    """
    valid = {e.node: e for e in known if e.until > now}
    for e in proposed:
        old = valid.get(e.node)
        if old is None or _STRENGTH.index(e.proof) < _STRENGTH.index(old.proof):
            valid[e.node] = e if old is None else old.model_copy(update={"proof": e.proof})
    kept = list(by_proof(valid.values(), lemons))
    free = set(usable)
    if len(free) < needed:  # it waits for other nodes: to give up what holds would not help
        kept = [e for e in kept if e.incident]
    while len(free) >= needed and len(free - {e.node for e in kept}) < needed:
        kept.pop()
    names = {e.node for e in kept}
    allow = tuple(e.node for e in known if e.node not in names)
    dropped = [e.node for e in proposed if e.node not in names]
    expired = [e.node for e in known if e.until <= now and e.node not in names]
    again = [node for node in allow if node not in {*dropped, *expired}]
    remarks = (
        f"{few(dropped)} not excluded: too few nodes would be left" if dropped else "",
        f"{few(again)} allowed again: too few nodes would be left" if again else "",
        f"{few(expired)} allowed again: the exclusion has expired" if expired else "",
    )
    return Chosen(tuple(kept), allow, "; ".join(filter(None, remarks)))
