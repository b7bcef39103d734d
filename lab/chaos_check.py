"""Checks Relight's invariants against Slurm's own record and the ledger. Pure.

What happened is told by who broke things and by slurmctld; what Relight says of it, by its ledger. Four things must not
be: an interruption without an incident that ended in an outcome (`lost`), something done twice for one interruption
(`doubled`), a change in Slurm that the ledger does not tell (`unrecorded`), a node set aside that nobody broke
(`healthy_drain`).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from relight.clients.slurm_parse import expand_hosts
from relight.domain.attempts import AttemptKey
from relight.domain.base import clip
from relight.domain.incidents import Outcome
from relight.domain.ledger import Row, RowKind
from relight.lab.chaos_record import Deed, Execution, What

FORGETS = timedelta(seconds=10)
"""slurmctld saves its state every 5 s: killed, it forgets what it did since, and does not know that it did (seen)."""
SLACK = timedelta(seconds=0.1)
"""Between the clocks of two processes of one machine, one of which writes milliseconds."""
NOTICED_WITHIN = timedelta(seconds=45)
"""An attempt that nobody saw running is known by then, and what broke one, whatever else broke meanwhile."""
SECOND = timedelta(seconds=1)
"""Slurm's own times have no parts of it."""
_SHOWN = 400
"""Characters of a row in a story."""


class Kind(StrEnum):
    """What must not be."""

    LOST = "lost"
    DOUBLED = "doubled"
    UNRECORDED = "unrecorded"
    HEALTHY_DRAIN = "healthy_drain"


class Violation(NamedTuple):
    """What is, and must not be."""

    kind: Kind
    trial: int | None
    """None: of none, or of all."""
    text: str


class Case(NamedTuple):
    """One trial, as who broke things knows it."""

    trial: int
    job: int
    interrupted: tuple[AttemptKey, ...]
    """The attempts that were interrupted on purpose."""
    until: datetime
    """When the job was cancelled. What a slurmctld that forgets that does with it afterwards is not the trial's."""


class Truth(NamedTuple):
    """All that is compared."""

    cases: Sequence[Case]
    broken: Mapping[str, Sequence[datetime]]
    """By node, when its GPU or the whole of it was broken."""
    crashes: Sequence[datetime]
    """When slurmctld was killed."""
    ours: int
    """The user id of Relight's service. Nodes it changes as root; everybody else does so as another user."""
    deeds: Sequence[Deed]
    executions: Sequence[Execution]
    rows: Sequence[Row]
    findings: Sequence[str] = ()
    """What `relight audit verify` finds."""


_ENDS = frozenset({What.ENDED, What.NODE_FAIL, What.CANCEL, What.REQUEUE})


class _Run(NamedTuple):
    """What slurmctld did with one job from one start to the next."""

    start: datetime
    deeds: tuple[Deed, ...]
    nodes: tuple[str, ...]
    until: datetime
    """The next start, or the trial's end."""

    def broke(self, truth: Truth, until: datetime) -> bool:
        """Whether it ended badly by then by Slurm's record, before anybody ended it and slurmctld remembers that.

        Or a node was broken under it: one that is back before slurmctld has missed it leaves a job that only hangs.
        """
        ends = [deed for deed in self.deeds if deed.what in _ENDS and deed.at <= until]
        over = min([until, self.until, *(deed.at for deed in ends)])
        if any(self.start <= at <= over for node in self.nodes for at in truth.broken.get(node, ())):
            return True
        known = [deed for deed in ends if not _forgotten(deed.at, truth.crashes)]
        return any(deed.what in {What.ENDED, What.NODE_FAIL} for deed in (known or ends)[:1])


class _Interrupted(NamedTuple):
    """A run that somebody or Slurm itself interrupted."""

    run: _Run
    key: AttemptKey | None
    """The attempt that Relight took it for."""
    undone: bool
    """slurmctld forgot that it had run, and so that it had ended, and ran the same attempt again."""


_WHATS = {
    What.REQUEUE: {"requeue"},
    What.EXCLUDE: {"exclude", "allow"},
    What.BEGIN: {"start"},
    What.PRIORITY: {"release", "hold"},
    What.CANCEL: {"cancel"},
    What.DRAIN: {"drain"},
    What.DOWN: {"down"},
    What.RESUME: {"undrain"},
}
"""By what the ledger names it."""


def check(truth: Truth) -> list[Violation]:
    """Return all violations."""
    found = [Violation(Kind.UNRECORDED, None, f"audit: {finding}") for finding in truth.findings]
    ledger = _Ledger(truth.rows)
    for case in truth.cases:
        runs = _runs(case, truth.deeds)
        found += _lost(case, runs, ledger, truth)
        found += _doubled(case, runs, ledger, truth)
    trials = {case.job: case.trial for case in truth.cases}
    found += _unrecorded(truth, ledger, trials)
    found += _nodes(truth, ledger)
    return found


def story(truth: Truth, trial: int) -> list[str]:
    """What was done to the trial's job, and what the ledger has of it, in order of time: to tell why it went wrong."""
    jobs = {case.job for case in truth.cases if case.trial == trial}
    told = [
        (deed.at, f"slurmctld: {deed.what} {deed.uid or ''} {deed.text}") for deed in truth.deeds if deed.job in jobs
    ]
    told += [(at, "slurmctld was killed") for at in truth.crashes]
    for row in truth.rows:
        if row.kind is RowKind.BLIND or (row.attempt and AttemptKey.parse(row.attempt).job_id in jobs):
            told.append((row.at, f"ledger: {row.kind} {row.id} {json.dumps(row.body)[:_SHOWN]}"))
    return [f"{at:%T.%f} {clip(text, 2 * _SHOWN)}" for at, text in sorted(told)]


class _Ledger:
    """The rows, by what they are about."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.attempts: defaultdict[int, list[AttemptKey]] = defaultdict(list)
        self.opened: dict[str, tuple[AttemptKey, datetime]] = {}
        """By incident, what it is about and since when."""
        self.went_on: dict[str, AttemptKey] = {}
        """By incident, the attempt that it has seen running next."""
        self.outcomes: dict[str, Outcome] = {}
        self.intents: list[Row] = []
        self.effects: set[str] = set()
        """Steps, as the intents' ids begin."""
        for row in rows:
            self._take(row)

    def _take(self, row: Row) -> None:
        key = AttemptKey.parse(row.attempt) if row.attempt else None
        if row.kind is RowKind.ATTEMPT_SEEN and key:
            self.attempts[key.job_id].append(key)
        elif row.kind is RowKind.OPENED and key:
            self.opened[row.incident] = (key, row.at)
        elif row.kind is RowKind.CLOSED:
            self.outcomes[row.incident] = Outcome(row.body["outcome"])
        elif row.kind is RowKind.VERIFIED and "attempt" in row.body:
            self.went_on[row.incident] = AttemptKey.parse(row.body["attempt"])
        elif row.kind is RowKind.INTENT:
            self.intents.append(row)
        elif row.kind is RowKind.EFFECT:
            self.effects.add(row.id.removesuffix("/effect"))

    def attempt_at(self, job: int, start: datetime, after: datetime | None) -> AttemptKey | None:
        """The attempt that began then, and was submitted after the start before; None when Relight never saw it."""
        fits = [key for key in self.attempts[job] if key.submit_time <= start + SECOND]
        newest = max(fits, key=lambda key: key.submit_time, default=None)
        return newest if newest and (after is None or newest.submit_time > after - SECOND) else None

    def ends(self, key: AttemptKey) -> list[Outcome]:
        """How the attempt's incidents ended, but for those that had nothing to do.

        An incident before it that ended because this attempt did not get on has told of it too.
        """
        nothing = {Outcome.NOT_CONFIRMED, Outcome.SUPERSEDED}
        ends = [self.outcomes.get(incident) for incident, (about, _) in self.opened.items() if about == key]
        stuck = {i for i, after in self.went_on.items() if after == key} & {
            i for i, end in self.outcomes.items() if end is Outcome.RESTARTED_NO_PROGRESS
        }
        told = [end for end in ends if end is not None and end not in nothing]
        return [*told, *(self.outcomes[i] for i in stuck)]

    def intended(self, deed: Deed) -> list[Row]:
        """The intents that a deed can be due to."""
        words = _WHATS.get(deed.what)
        return [
            row
            for row in self.intents
            if (row.body.get("job") == deed.job if deed.job else row.node == deed.node)
            and (words is None or row.body.get("what") in words)
            and row.at <= deed.at + SLACK
        ]


def _runs(case: Case, deeds: Iterable[Deed]) -> list[_Run]:
    mine = [deed for deed in deeds if deed.job == case.job and deed.at <= case.until]
    starts = [number for number, deed in enumerate(mine) if deed.what is What.START]
    ends = [*(mine[number].at for number in starts[1:]), case.until]
    return [
        _Run(mine[a].at, tuple(mine[a:b]), expand_hosts(mine[a].node), end)
        for (a, b), end in zip(pairwise([*starts, len(mine)]), ends, strict=True)
    ]


def _interrupted(case: Case, runs: Sequence[_Run], ledger: _Ledger, truth: Truth) -> Iterator[_Interrupted]:
    before: datetime | None = None
    keys = []
    for run in runs:
        keys.append(ledger.attempt_at(case.job, run.start, before))
        # A start that slurmctld forgot and made again is of the same attempt.
        before = before if _forgotten(run.start, truth.crashes) else run.start
    for number, (run, key) in enumerate(zip(runs, keys, strict=True)):
        undone = key is not None and _forgotten(run.start, truth.crashes) and key in keys[number + 1 :]
        if run.broke(truth, case.until) or (key in case.interrupted and key not in keys[:number]):
            yield _Interrupted(run, key, undone)


def _lost(case: Case, runs: Sequence[_Run], ledger: _Ledger, truth: Truth) -> Iterator[Violation]:
    interrupted = list(_interrupted(case, runs, ledger, truth))
    for run, key, _ in interrupted:
        ended = max(deed.at for deed in run.deeds)
        if key is None and not _forgotten(run.start, truth.crashes) and case.until - ended > NOTICED_WITHIN:
            yield Violation(
                Kind.LOST, case.trial, f"job {case.job} ended at {ended:%T}, and nobody knew that it had run"
            )
    noticed = case.until - NOTICED_WITHIN
    stands = {each.key for each in interrupted if each.key and not each.undone and each.run.broke(truth, noticed)}
    undone = {each.key for each in interrupted if each.undone}
    for key in sorted(stands | (set(case.interrupted) - undone), key=str):
        if not ledger.ends(key):
            yield Violation(Kind.LOST, case.trial, f"{key} was interrupted, and no incident of it came to an end")
    for incident, (key, at) in ledger.opened.items():
        if key.job_id == case.job and at <= case.until and incident not in ledger.outcomes:
            yield Violation(Kind.LOST, case.trial, f"incident {incident} of {key} has no outcome")


def _doubled(case: Case, runs: Sequence[_Run], ledger: _Ledger, truth: Truth) -> Iterator[Violation]:
    broken = {each.run.start for each in _interrupted(case, runs, ledger, truth)}
    for run in runs:
        requeues = [d for d in run.deeds if d.what is What.REQUEUE and d.uid == truth.ours]
        for first, second in pairwise(requeues):
            if not _forgotten(first.at, truth.crashes, second.at):
                yield _twice(case, f"job {case.job} was requeued at {first.at:%T} and again at {second.at:%T}")
        if requeues and run.start not in broken:
            yield _twice(case, f"job {case.job} was requeued at {requeues[0].at:%T}, and nothing had interrupted it")
        cancels = [d for d in run.deeds if d.what is What.CANCEL and d.uid == truth.ours]
        if len(cancels) > 1:
            yield _twice(case, f"job {case.job} was cancelled {len(cancels)} times")
    forgotten = sum(_forgotten(run.start, truth.crashes) for run in runs)
    allowed = 1 + len(broken) + forgotten
    executions = (each for each in truth.executions if each.job == case.job and each.submit <= case.until)
    rows = sum(execution.start is None or execution.start <= case.until for execution in executions)
    # Accounting keeps what a requeue that slurmctld has forgotten had queued, though it never ran.
    queued = sum(_forgotten(d.at, truth.crashes) for run in runs for d in run.deeds if d.what is What.REQUEUE)
    for number, most, where in ((len(runs), allowed, "slurmctld's log"), (rows, allowed + queued, "accounting")):
        if number > most:
            yield _twice(case, f"job {case.job} ran {number} times by {where}, and was interrupted {len(broken)} times")


def _twice(case: Case, text: str) -> Violation:
    return Violation(Kind.DOUBLED, case.trial, text)


def _forgotten(at: datetime, crashes: Iterable[datetime], before: datetime | None = None) -> bool:
    """Whether slurmctld may have forgotten what it did then."""
    return any(at <= crash <= at + FORGETS and (before is None or crash <= before) for crash in crashes)


def _unrecorded(truth: Truth, ledger: _Ledger, trials: Mapping[int, int]) -> Iterator[Violation]:
    made = {What.REQUEUE, What.EXCLUDE, What.BEGIN, What.PRIORITY, What.CANCEL, What.OTHER}
    for deed in truth.deeds:
        node_of_ours = deed.what in {What.DRAIN, What.DOWN, What.RESUME} and _by_wrapper(deed)
        if node_of_ours or (deed.what in made and deed.uid == truth.ours):
            problem = _not_told(deed, ledger)
            if problem:
                target = f"job {deed.job}" if deed.job else deed.node
                text = f"{deed.what} of {target} at {deed.at:%T}: {problem}"
                yield Violation(Kind.UNRECORDED, trials.get(deed.job), text)


def _not_told(deed: Deed, ledger: _Ledger) -> str:
    intents = ledger.intended(deed)
    if not intents:
        return "no intent before it"
    if not any(row.id.removesuffix("/intent") in ledger.effects for row in intents):
        return "an intent, and no word of what became of it"
    return ""


def _by_wrapper(deed: Deed) -> bool:
    return deed.uid == 0 if deed.uid is not None else deed.text.startswith("relight:")


def _nodes(truth: Truth, ledger: _Ledger) -> Iterator[Violation]:
    trials = {case.job: case.trial for case in truth.cases}
    marks: dict[str, tuple[str, datetime]] = {}
    repaired: dict[str, datetime] = {}
    for deed in truth.deeds:
        if deed.what is What.RESUME:
            marks.pop(deed.node, None)
            repaired[deed.node] = deed.at
        elif deed.what in {What.DRAIN, What.DOWN} and _by_wrapper(deed):
            incident = deed.text.split(":")[1] if deed.text.count(":") > 1 else ""
            opened = ledger.opened.get(incident)
            trial = trials.get(opened[0].job_id) if opened else None
            since = repaired.get(deed.node)
            if not any((since is None or since <= at) and at <= deed.at for at in truth.broken.get(deed.node, ())):
                yield Violation(Kind.HEALTHY_DRAIN, trial, f"{deed.node}: {deed.what} at {deed.at:%T}: {deed.text}")
            again = f"{deed.what} {deed.text}"
            last, at = marks.get(deed.node, ("", deed.at))
            if last == again and not _forgotten(at, truth.crashes, deed.at):
                yield Violation(Kind.DOUBLED, trial, f"{deed.node}: a second time: {again}")
            marks[deed.node] = (again, deed.at)
