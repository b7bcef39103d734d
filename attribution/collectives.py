"""Which ranks a stalled collective points at: the silent ones, those that are behind, those that never arrived."""

import re
from typing import NamedTuple

from relight.attribution.facts import WATCHDOG, Facts, Line

_GROUP = re.compile(r"\[PG (?:ID )?(\d+)[^\]]*Rank \d+\]")
NAMED_AT_MOST = 16


class Suspects(NamedTuple):
    """Ranks, and the sentence that says why."""

    ranks: tuple[int, ...] = ()
    sentence: str = ""


def suspects(signature: str, lines: list[Line], facts: Facts) -> Suspects:
    """The ranks that did not do their part; none when the logs do not say."""
    if signature == WATCHDOG:
        return _silent(facts) or _behind(lines) or Suspects(sentence="No rank stands out in the logs.")
    return _missing(lines, facts)


def _silent(facts: Facts) -> Suspects | None:
    printed = {rank for scan in facts.scans if WATCHDOG in scan.found for rank in scan.found[WATCHDOG].ranks}
    silent = tuple(sorted(set(facts.seats) - printed))
    if not printed or not silent or 2 * len(silent) > len(facts.seats):
        return None
    return Suspects(silent[:NAMED_AT_MOST], f"{_ranks(silent)} said nothing while the others waited.")


def _behind(lines: list[Line]) -> Suspects | None:
    """The minority with the lowest last completed work, within one process group."""
    groups: dict[str, dict[int, int]] = {}
    for line in lines:
        group = _GROUP.search(line.match.text)
        rank, completed = line.speaker.rank, line.match.fields.get("completed")
        if group and rank is not None and completed is not None:
            groups.setdefault(group[1], {})[rank] = int(completed)
    for done in groups.values():
        lowest = min(done.values())
        late = tuple(sorted(rank for rank, number in done.items() if number == lowest))
        if 2 * len(late) < len(done):
            return Suspects(late[:NAMED_AT_MOST], f"{_ranks(late)} completed less than the others.")
    return None


def _missing(lines: list[Line], facts: Facts) -> Suspects:
    fields = next((line.match.fields for line in lines if "world" in line.match.fields), None)
    if fields is None:
        return Suspects()
    world, workers = int(fields["world"]), int(fields["workers"])
    if workers > world:
        return Suspects(sentence=f"{workers} workers joined a world of {world}: two launches, or an old store.")
    arrived = {int(line.match.fields["arrived"]) for line in lines if "arrived" in line.match.fields}
    absent = tuple(sorted(set(facts.seats) - arrived))
    named = absent if len(absent) == world - workers and len(facts.seats) == world else ()
    who = f": {_ranks(named).lower()}" if named else ""
    return Suspects(named[:NAMED_AT_MOST], f"{world - workers} of {world} ranks never arrived{who}.")


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""  # noqa: PLR2004 - as many as are shown
    return f"Rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
