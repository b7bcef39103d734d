"""Texts of which every match of a pattern holds one: what a fast search looks for before it looks for patterns."""

import heapq
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

SHORTEST_LITERAL = 2
"""Shorter texts are everywhere: looking for them saves nothing."""
LONG_ENOUGH = 12
"""Characters beyond which a text tells no more; each alternative costs a quarter of one."""
SHORTEST, LONGEST = 5, 8
"""Characters of a keyword. Hyperscan is twice as fast with those of five as with those of four."""
SHORTEST_WORD = 4
"""Unless all of a text is shorter: `gpfs`."""

Clause = frozenset[str]
"""Texts in lower case; every match holds one of them."""
_Part = str | Clause | None
"""A character, or a clause of a group, or something unknown."""

_TOKEN = re.compile(
    r"""
    ( \(\?P<\w+> | \(\?i?: | \(\?i\) | \( )      # opens a group
    | ( \) )
    | ( [*?] | \{0?,\d*\} | \{0\} )              # what stands before may be missing
    | ( \+ | \{\d[\d,]*\} )                      # it may be repeated
    | ( \| )
    | ( \\b )                                    # takes no room
    | ( \[(?:\\.|[^\]\\])+\] | \\[A-Za-z0-9] | [.^$] )
    | \\?(.)                                     # stands for itself
    """,
    re.VERBOSE,
)
_EITHER_CASE = re.compile(r"\[(\w)(\w)\]")


@cache
def clauses(pattern: str) -> tuple[Clause, ...]:
    """What every match of the pattern holds: one text of each clause."""
    groups: list[list[list[list[_Part]]]] = [[[]]]  # open groups, their branches, their units, their parts
    for opens, closes, optional, repeated, either, nothing, unknown, plain in _TOKEN.findall(pattern):
        units = groups[-1][-1]
        if opens:
            groups += [[[]]] if opens != "(?i)" else []
        elif closes:
            branches = groups.pop()
            groups[-1][-1].append(_unit(branches))
        elif optional:
            units[-1] = [None]
        elif repeated:
            units[-1] = [*units[-1], None]
        elif either:
            groups[-1].append([])
        elif unknown:
            units.append([_one_letter(unknown)])
        elif not nothing:
            units.append([plain.lower()])
    return tuple(_held(_unit(groups[0])))


def _one_letter(text: str) -> str | None:
    """The letter that `[Tt]` stands for."""
    found = _EITHER_CASE.fullmatch(text)
    return found[1].lower() if found and found[1].lower() == found[2].lower() else None


def _unit(branches: Sequence[Sequence[Sequence[_Part]]]) -> list[_Part]:
    flat = [[part for unit in branch for part in unit] for branch in branches]
    if len(flat) == 1:
        return flat[0]
    each = [max(_held(branch), key=_worth, default=None) for branch in flat]
    known = [clause for clause in each if clause is not None]
    return [None, frozenset().union(*known), None] if len(known) == len(flat) else [None]


def _held(parts: Sequence[_Part]) -> list[Clause]:
    found: list[Clause] = []
    run = ""
    for part in (*parts, None):
        if isinstance(part, str):
            run += part
            continue
        if run:
            found.append(frozenset({run}))
        if part:
            found.append(part)
        run = ""
    return found


def _worth(clause: Clause) -> float:
    shortest = min(map(len, clause))
    return shortest if len(clause) == 1 else min(shortest, LONG_ENOUGH) - len(clause) / 4


@cache
def needed(pattern: str) -> tuple[bytes, ...]:
    """The best clause: every match holds one of these texts, in any case; empty when nothing is known."""
    best = max(clauses(pattern), key=_worth, default=frozenset[str]())
    texts = sorted(text.encode() for text in best)
    return tuple(texts) if texts and min(map(len, texts)) >= SHORTEST_LITERAL else ()


@cache
def literal(pattern: str) -> bytes:
    """The longest text, in lower case, that every match of the pattern holds; empty when there is none."""
    alone = [text for clause in clauses(pattern) if len(clause) == 1 for text in clause]
    best = max(alone, key=len, default="")
    return best.encode() if len(best) >= SHORTEST_LITERAL else b""


@cache
def as_written(pattern: str) -> bytes:
    """That text in the case in which the pattern has it; empty where it is not there in one piece."""
    at = pattern.lower().find(literal(pattern).decode())
    return pattern[at : at + len(literal(pattern))].encode() if at >= 0 else b""


def keywords(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """A few texts that together stand, in any case, in every match of the patterns; and the patterns without any.

    Texts that healthy logs are full of (`ordinary.txt`) are none: a line with a keyword has to be looked at.
    """
    ordinary = resources.files("relight.attribution").joinpath("ordinary.txt").read_text("utf-8").lower()
    texts: set[str] = set()
    without: list[str] = []
    for pattern in patterns:
        telling = [clause for clause in clauses(pattern) if all(_pieces(text, ordinary) for text in clause)]
        if telling:
            best: Clause = max(telling, key=_worth)
            texts |= best
        else:
            without.append(pattern)
    return _cover({text: _pieces(text, ordinary) for text in texts}), without


def _pieces(text: str, ordinary: str) -> set[str]:
    if len(text) < SHORTEST_WORD:
        return set()
    sizes = range(min(SHORTEST, len(text)), LONGEST + 1)
    pieces = {text[at : at + size] for size in sizes for at in range(len(text) - size + 1)}
    return {piece for piece in pieces if piece not in ordinary}


def _cover(pieces: dict[str, set[str]]) -> list[str]:
    """Pieces such that each text has one: greedily, the ones that many texts have first, and rather long ones."""
    texts: dict[str, set[str]] = {}
    for text, parts in pieces.items():
        for part in parts:
            texts.setdefault(part, set()).add(text)
    heap = [(-len(held) * len(part), part) for part, held in texts.items()]
    heapq.heapify(heap)
    left, chosen = set(pieces), list[str]()
    while left:
        gain, part = heapq.heappop(heap)
        now = -len(texts[part] & left) * len(part)
        if now == gain:
            chosen.append(part)
            left -= texts[part]
        elif now:
            heapq.heappush(heap, (now, part))
    return chosen
