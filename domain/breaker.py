"""The breaker: many nodes or many jobs at once have one cause, and it is not theirs. Pure.

A switch, a file system, power, an upgrade, or a fault of our own detectors shows as many incidents within minutes.
Each of them alone would be worth a restart or a drain; together they are worth a person. So the guard is told of
every confirmed and diagnosed incident, counts, and opens the breaker: from then on Relight only observes, until a
person resets it.

What is counted, each within `BreakerPolicy.within`:

- *nodes* that a platform witness speaks against. What only jobs say of a node is not counted: a program can print
  names.
- *jobs*. Failures that the job's own code, data or settings explain are not told at all. Where the cause is one of the
  platform's kinds each job counts; otherwise (unknown, framework, memory, slowness) each *user* counts once, since an
  array of a hundred tasks that fail alike is one script's fault.
- restarts for a platform's cause that did not get past the failure, of different jobs, within an hour;
- nodes of ours that people took back into service, within an hour.

Why 3 nodes and 7 jobs in 10 minutes: a cluster of 1,000 GPU nodes has 4 (Llama 3: 419 interruptions on 2,048 nodes in
54 days) to 7 (Meta RSC-1: 6.5 per 1,000 node-days) failures of the platform a day. Take 20 for a bad day, 12 of them
with a platform witness, and 60 failures of unknown cause by different users. Then three nodes meet in one window by
chance once in some 26 bad days, five jobs once in 6, seven once in 550 (`tests/domain/test_breaker.py` draws such
days). A common cause shows many more, and a false alarm costs automation until somebody has looked, so nodes may stay
at three: they are what leads to drains.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from relight.domain.base import Value, few
from relight.domain.diagnosis import Category
from relight.domain.evidence import Interruption
from relight.domain.human import spoken

MOST_REPORTS = 200
"""Reports kept: more within an hour have tripped the breaker long ago."""
MOST_NODES = 64
"""Nodes of one report that are named: more than any limit."""
AN_HOUR = timedelta(hours=1)
OWN_FAULT = frozenset({Category.USER_CODE, Category.CONFIG, Category.DATA, Category.NUMERICS, Category.CONTROL})
"""The job's own doing: never told."""
PLATFORM = frozenset({Category.GPU, Category.NODE, Category.NETWORK, Category.STORAGE, Category.SCHEDULER})


class BreakerPolicy(Value):
    """When the breaker opens."""

    nodes: int = Field(default=3, ge=2, le=10_000)
    """Different nodes with a platform witness against them within `within`."""
    jobs: int = Field(default=7, ge=2, le=10_000)
    """Different jobs within `within`; see the module for which."""
    within: timedelta = timedelta(minutes=10)
    failed_restarts: int = Field(default=2, ge=2, le=100)
    """Restarts for a platform's cause that did not help, of different jobs within an hour."""
    reversals: int = Field(default=2, ge=2, le=100)
    """Nodes that people took back into service within an hour after Relight had taken them out."""


class Sign(StrEnum):
    """What the guard is told."""

    INCIDENT = "incident"
    """Confirmed and diagnosed."""
    NOT_HELPED = "not_helped"
    """Restarted, and training did not get past the failure."""
    REVERSED = "reversed"
    """A person put a node back into service that Relight had taken out."""


class Report(Value):
    """One thing that the guard is told."""

    sign: Sign
    incident: str
    began: datetime
    """When the incident was detected: what began before a reset never counts."""
    at: datetime | None = None
    """When the guard heard of it, by the guard's own clock."""
    kind: Interruption | None = None
    category: Category = Category.UNKNOWN
    nodes: tuple[str, ...] = Field(default=(), max_length=MOST_NODES)
    """Those that a platform witness speaks against."""
    job: str = ""
    """The job's lineage."""
    user: str = ""
    partition: str = ""

    @property
    def counts_as(self) -> str:
        """Equal for what counts as one job."""
        return self.job if self.category in PLATFORM else f"a job of {self.user or self.job}"


class Trip(Value):
    """Why the breaker is open."""

    at: datetime
    why: str
    nodes: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()
    """Ids of the incidents that were counted, oldest first."""

    def __str__(self) -> str:
        """What happened and what to do, for a person."""
        where = f" ({few(self.nodes)})" if self.nodes else ""
        return f"{self.why}{where}; incidents {few(self.incidents)}. {WHAT_TO_DO}"


WHAT_TO_DO = (
    "Relight only observes now. Look for what they share (switch, file system, power, an upgrade, a detector of ours), "
    "then: relight breaker reset --reason ..."
)


class _Found(NamedTuple):
    why: str
    reports: tuple[Report, ...]


def kept(reports: Sequence[Report], policy: BreakerPolicy, now: datetime) -> tuple[Report, ...]:
    """Those that may still count, oldest first."""
    longest = max(policy.within, AN_HOUR)
    return tuple(r for r in reports if r.at is not None and now - r.at < longest)[-MOST_REPORTS:]


def with_report(reports: tuple[Report, ...], report: Report) -> tuple[Report, ...]:
    """The reports and this one, once: what is told twice counts once."""
    told = any((r.sign, r.incident, r.nodes) == (report.sign, report.incident, report.nodes) for r in reports)
    return reports if told else (*reports, report)[-MOST_REPORTS:]


def trips(
    reports: Sequence[Report], policy: BreakerPolicy, now: datetime, reset_at: datetime | None = None
) -> Trip | None:
    """Whether the breaker opens now, and why. What began before the last reset, or was told before it, never counts."""
    live = [r for r in kept(reports, policy, now) if reset_at is None or min(r.began, r.at or r.began) > reset_at]
    found = _common_cause(live, policy, now) or _regrets(live, policy, now)
    if found is None:
        return None
    return Trip(
        at=now,
        why=found.why,
        nodes=tuple(dict.fromkeys(n for r in found.reports for n in r.nodes))[:MOST_NODES],
        incidents=tuple(dict.fromkeys(r.incident for r in found.reports))[:MOST_NODES],
    )


def _common_cause(live: Sequence[Report], policy: BreakerPolicy, now: datetime) -> _Found | None:
    recent = tuple(r for r in live if r.sign is Sign.INCIDENT and r.at is not None and now - r.at < policy.within)
    against = tuple(r for r in recent if r.nodes)
    nodes = {n for r in against for n in r.nodes}
    if len(nodes) >= policy.nodes:
        return _Found(f"{len(nodes)} nodes found broken within {spoken(policy.within)}", against)
    jobs = {r.counts_as for r in recent}
    if len(jobs) >= policy.jobs:
        return _Found(f"{len(jobs)} jobs interrupted within {spoken(policy.within)}", recent)
    return None


def _regrets(live: Sequence[Report], policy: BreakerPolicy, now: datetime) -> _Found | None:
    recent = [r for r in live if r.at is not None and now - r.at < AN_HOUR]
    vain = tuple(r for r in recent if r.sign is Sign.NOT_HELPED and r.category in PLATFORM)
    jobs = {r.job for r in vain}
    if len(jobs) >= policy.failed_restarts:
        return _Found(f"restarts of {len(jobs)} jobs did not help within 1h", vain)
    reversed_ = tuple(r for r in recent if r.sign is Sign.REVERSED)
    nodes = {n for r in reversed_ for n in r.nodes}
    if len(nodes) >= policy.reversals:
        return _Found(f"people put {len(nodes)} nodes back within 1h that Relight had taken out", reversed_)
    return None
