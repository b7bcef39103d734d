"""The settings in force one by one, each with where it comes from; and what is odd about them, though valid."""

import json
import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from pydantic import BaseModel

from relight.config.problems import Source
from relight.config.reading import Place, field_name
from relight.config.settings import Settings
from relight.domain.human import spoken
from relight.domain.permits import Permit
from relight.domain.rights import APPROVERS, Right, able

_PASSWORD = re.compile(r"(?<=://)([^/@\s]*):[^/@\s]*@")
DEFAULT = "default"


class Setting(NamedTuple):
    """One setting in force."""

    field: str
    value: str
    """As one would write it; passwords in addresses are hidden."""
    origin: str
    """A variable's name, `<file>:<line>`, or `default`."""


class Note(NamedTuple):
    """Something valid that is hardly meant."""

    place: Place
    text: str


def settings_in_force(settings: Settings, source: Source) -> tuple[Setting, ...]:
    """All of them, in the order of `defaults.yaml`."""
    return tuple(
        Setting(field_name(place), _written(value), _origin(place, source)) for place, value in _leaves(settings)
    )


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Each value with its place; sections are walked through, rules are whole."""
    if isinstance(value, BaseModel) and "rules" not in place:
        for name in type(value).model_fields:
            yield from _leaves(getattr(value, name), (*place, name))
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*place, name))
    elif place == ("policy", "rules") and value:
        for number, rule in enumerate(value):
            yield (*place, number), rule
    else:
        yield place, value


def _origin(place: Place, source: Source) -> str:
    if variable := source.variable(place):
        return variable
    line = source.document.lines.get(place)
    return f"{source.file}:{line}" if line else DEFAULT


def _written(value: Any) -> str:
    if isinstance(value, timedelta):
        return spoken(value)
    if isinstance(value, BaseModel):
        return _PASSWORD.sub(r"\1:***@", json.dumps(_plain(value)))
    if isinstance(value, str):
        return _PASSWORD.sub(r"\1:***@", str(value)) or '""'
    if isinstance(value, tuple):
        return json.dumps([str(each) for each in value])
    return json.dumps(value, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        given = {name: getattr(value, name) for name in type(value).model_fields}
        return {name: _plain(each) for name, each in given.items() if each is not None and each != {}}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return spoken(value) if isinstance(value, timedelta) else value


def notes(settings: Settings) -> Iterator[Note]:
    """What is odd about the settings alone."""
    policy = settings.policy
    for number, rule in enumerate(policy.rules):
        clusters = rule.match.cluster
        if clusters is not None and not any(fnmatchcase(settings.cluster, glob) for glob in clusters):
            place: Place = ("policy", "rules", number, "match", "cluster")
            yield Note(place, f"no job of cluster {settings.cluster} fits")
    meant = {Permit.APPROVE, Permit.AUTO}
    if not policy.drains_per_hour and any(
        permit in meant for what, permit in policy.modes.items() if what.rpartition(".")[2] == "drain"
    ):
        yield Note(("policy", "drains_per_hour"), "0 lets no node be drained, whatever policy.modes says of drain")
    yield from _out_of_reach(settings)


def _out_of_reach(settings: Settings) -> Iterator[Note]:
    """Actions for which not enough people are listed; of a site that lists nobody only what it asks for itself."""
    policy, people = settings.policy, settings.approvals.people
    for right in Right:
        needed = policy.approvers_needed([right])
        there = len(able(people, (right,))) if people else 1
        if there < needed and (people or needed != APPROVERS[right]):
            text = f"{needed} people must approve, and only {there} may (approvals.approvers): it is never done"
            yield Note(("policy", "approvers", right), text)


def unknown_partitions(settings: Settings, known: Collection[str]) -> Iterator[Note]:
    """Partitions that the policy names and Slurm does not know."""
    policy = settings.policy
    asked: list[tuple[Place, tuple[str, ...]]] = [(("policy", "partitions"), policy.partitions)]
    asked += [
        (("policy", "rules", number, "match", "partition"), rule.match.partition)
        for number, rule in enumerate(policy.rules)
        if rule.match.partition is not None
    ]
    has = ", ".join(sorted(known)[:20])
    for place, globs in asked:
        for glob in globs:
            if not any(fnmatchcase(name, glob) for name in known):
                yield Note(place, f"{glob}: Slurm has no nodes in such a partition (it has {has})")
