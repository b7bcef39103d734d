"""Rules of policy for some jobs: by cluster, partition, account, user and name. The first that says something counts.

Layers are asked in this order: the rules that fit the job, as they stand in the file, then the flat keys. For each key
the first layer that has it decides; for how far Relight may go, each detector and action is a key of its own.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from relight.domain.allowances import Backoff, Retries
from relight.domain.base import Value, canonical_json, short_hash
from relight.domain.evidence import Interruption
from relight.domain.permits import (
    NODE_RIGHTS,
    Act,
    Attempts,
    Modes,
    Permit,
    Permitted,
    Policy,
    Wait,
    least,
    mode_of,
    most,
    said,
)
from relight.domain.plan import Mode
from relight.domain.rights import Count, Right
from relight.domain.slurm import JobRecord, JobState

MOST_RULES = 200
MOST_GLOBS = 100
LONGEST_GLOB = 200
VERSION_DIGITS = 12


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _matches_something(globs: tuple[str, ...]) -> tuple[str, ...]:
    if not globs:
        raise ValueError("an empty list matches no job; leave the key out to match all")
    for glob in globs:
        if not glob or len(glob) > LONGEST_GLOB or not glob.isprintable() or glob != glob.strip():
            raise ValueError(f"{glob[:40]!r} is no name or pattern, like gpu-*")
    return globs


_GLOB_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MOST_GLOBS},
    ],
    "examples": ["gpu-*", ["debug", "interactive"]],
}
Globs = Annotated[
    tuple[str, ...],
    Field(max_length=MOST_GLOBS),
    BeforeValidator(_listed),
    AfterValidator(_matches_something),
    WithJsonSchema(_GLOB_SCHEMA),
]
"""A name or shell pattern (`*`, `?`, `[ab]`), or a list of them; upper and lower case differ."""


class Match(Value):
    """Which jobs: those that fit all keys that are given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: Globs | None = None
    partition: Globs | None = None
    account: Globs | None = None
    user: Globs | None = None
    name: Globs | None = None

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not any(True for _ in self.given()):
            raise ValueError("must name at least one of cluster, partition, account, user, name")
        return self

    def given(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The keys that are given, with their patterns."""
        for key in ("cluster", "partition", "account", "user", "name"):
            globs = getattr(self, key)
            if globs is not None:
                yield key, globs

    def fits(self, cluster: str, job: JobRecord) -> bool:
        """True when the job is one of these."""
        of = {
            "cluster": cluster,
            "partition": job.partition,
            "account": job.account,
            "user": job.user,
            "name": job.name,
        }
        return all(any(fnmatchcase(of[key], glob) for glob in globs) for key, globs in self.given())

    def covers(self, other: "Match") -> bool:
        """True when every job that fits the other fits this one; False where that is not certain."""
        theirs = dict(other.given())
        return all(
            key in theirs and all(any(_wider(mine, glob) for mine in globs) for glob in theirs[key])
            for key, globs in self.given()
        )

    def __str__(self) -> str:
        """For example `partition debug, user a*|b*`."""
        return ", ".join(f"{key} {'|'.join(globs)}" for key, globs in self.given())


def _wider(wide: str, narrow: str) -> bool:
    """True when what fits the narrow pattern surely fits the wide one."""
    if wide in {narrow, "*"}:
        return True
    if not _has_wildcard(narrow):
        return fnmatchcase(narrow, wide)
    prefix = wide.removesuffix("*")
    return wide.endswith("*") and not _has_wildcard(prefix) and narrow.startswith(prefix)


def _has_wildcard(glob: str) -> bool:
    return any(sign in glob for sign in "*?[")


class Changes(Value):
    """What a rule says; what it leaves out is as the next layer says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Permitted | None = None
    """For all detectors and actions that this rule's `modes` does not name."""
    modes: Modes = {}
    trust_temporal_ui: bool | None = None
    approval_expires: Wait | None = None
    execution_expires: Wait | None = None
    approvers: dict[Right, Count] = {}
    attempts_without_progress: Attempts | None = None
    retries: Retries = {}
    backoff: Backoff | None = None
    resubmit: Permitted | None = None
    exclusions_expire: Wait | None = None
    progress_within: Wait | None = None
    fall_back: Permitted | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.keys():
            raise ValueError(f"must set at least one of {', '.join(type(self).model_fields)}")
        return self

    def keys(self) -> frozenset[str]:
        """The keys that it decides, detectors and actions one by one, such as `hang.restart`."""
        cells = {f"{kind}.{act}" for kind, act in CELLS if said(self.mode, self.modes, kind, act) is not None}
        flat = {key for key in ("mode", *PLAIN) if getattr(self, key) is not None}
        named = {f"approvers.{right}" for right in self.approvers} | {f"retries.{cause}" for cause in self.retries}
        named |= {name for name in self.modes if name in NODE_RIGHTS}
        return frozenset(cells | flat | named)


CELLS = tuple((kind, act) for kind in Interruption for act in Act)
PLAIN = (
    "trust_temporal_ui",
    "approval_expires",
    "execution_expires",
    "attempts_without_progress",
    "backoff",
    "resubmit",
    "exclusions_expire",
    "progress_within",
    "fall_back",
)


class Rule(Value):
    """Another policy for some jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: Match
    set: Changes


class SitePolicy(Policy):
    """A policy with rules."""

    rules: tuple[Rule, ...] = Field(default=(), max_length=MOST_RULES)

    @property
    def ceiling(self) -> Mode:
        """The most that is done to any job."""
        ruled = [p for rule in self.rules for p in (rule.set.mode, *rule.set.modes.values()) if p is not None]
        return mode_of(most(Permit(super().ceiling), *ruled))


class InForce(NamedTuple):
    """The policy for one job."""

    policy: Policy
    version: str
    """Of the whole policy, rules included."""
    rules: tuple[str, ...] = ()
    """The rules that fit the job, in words."""


def version_of(policy: Policy) -> str:
    """The same for policies that say the same, wherever and however they are written."""
    return short_hash(canonical_json(policy.model_dump(mode="json")), VERSION_DIGITS)


def in_force(policy: Policy, cluster: str, job: JobRecord) -> InForce:
    """The policy for one job, rules applied."""
    rules = [r for r in policy.rules if r.match.fits(cluster, job)] if isinstance(policy, SitePolicy) else []
    return InForce(_merged(policy, [r.set for r in rules]), version_of(policy), tuple(str(r.match) for r in rules))


def _merged(policy: Policy, layers: list[Changes]) -> Policy:
    fields = {key: getattr(policy, key) for key in Policy.model_fields}
    for key in PLAIN:
        fields[key] = next((found for layer in layers if (found := getattr(layer, key)) is not None), fields[key])
    for layer in reversed(layers):
        fields["approvers"] = {**fields["approvers"], **layer.approvers}
        fields["retries"] = {**fields["retries"], **layer.retries}
    told = next((layer.mode for layer in layers if layer.mode is not None), Permit(policy.mode))
    fields["mode"] = mode = mode_of(told)
    permits = {f"{kind}.{act}": _permit(policy, layers, kind, act) for kind, act in CELLS}
    fields["modes"] = {cell: permit for cell, permit in permits.items() if permit != Permit(mode)}
    return Policy(**fields)


def _permit(policy: Policy, layers: list[Changes], kind: Interruption, act: Act) -> Permit:
    told = (said(layer.mode, layer.modes, kind, act) for layer in layers)
    return next((permit for permit in told if permit is not None), policy.permit(kind, act))


def node_permit(policy: Policy, cluster: str, partitions: Iterable[str], right: Right) -> Permit:
    """How far Relight may go with an action on a node in quarantine: in the strictest of the node's partitions.

    Of the rules only those count that name nothing but clusters and partitions: a node is nobody's job. The first
    that names the action decides; the modes of those before it, and the default, only lower.
    """
    permits = [_node_permit(policy, cluster, partition, right) for partition in partitions]
    return least(*permits) if permits else policy.node_permit(right)


def _node_permit(policy: Policy, cluster: str, partition: str, right: Right) -> Permit:
    never = datetime.min.replace(tzinfo=UTC)
    here = JobRecord(job_id=0, partition=partition, state=JobState.UNKNOWN, submit_time=never)
    caps: list[Permit] = []
    for rule in policy.rules if isinstance(policy, SitePolicy) else ():
        if {key for key, _ in rule.match.given()} <= {"cluster", "partition"} and rule.match.fits(cluster, here):
            if (named := rule.set.modes.get(str(right))) is not None:
                return least(named, *caps)
            caps += [rule.set.mode] if rule.set.mode is not None else []
    return least(policy.node_permit(right), *caps)


class Contradiction(NamedTuple):
    """A rule that cannot count."""

    rule: int
    """Its place among the rules, from 0."""
    text: str
    earlier: int | None = None
    """The rule that takes all its jobs."""


def contradictions(policy: SitePolicy) -> tuple[Contradiction, ...]:
    """Rules that can never count: an earlier one takes all their jobs, or none of their jobs is looked after."""
    found = []
    for number, rule in enumerate(policy.rules):
        earlier = [n for n, other in enumerate(policy.rules[:number]) if other.match.covers(rule.match)]
        decided = [policy.rules[n].set.keys() for n in earlier]
        if earlier and rule.set.keys() <= frozenset().union(*decided):
            whose = f"an earlier rule ({policy.rules[earlier[0]].match})"
            found.append(Contradiction(number, f"can never count: {whose} takes all its jobs", earlier[0]))
        elif policy.partitions and not _looked_after(rule.match, policy.partitions):
            named = ", ".join(policy.partitions)
            text = f"can never count: only jobs of policy.partitions ({named}) are looked after"
            found.append(Contradiction(number, text))
    return tuple(found)


def _looked_after(match: Match, partitions: tuple[str, ...]) -> bool:
    globs = match.partition
    return globs is None or any(fnmatchcase(name, glob) for glob in globs for name in partitions)
