"""What a pattern of the catalogue becomes for hyperscan."""

import re
from functools import cache

_ATOM = r"(?:\.|\\[wdS]|\[(?:\\.|[^\]\\])+\])"
_ANY, _SOME = r"(?:\*|\?|\{0?,\d+\})", r"(?:\+|\{1,\d*\})"
_TAIL = re.compile(rf"(?<!\\)(?:\((?:\?P<\w+>|\?:)?{_ATOM}{_ANY}\)|{_ATOM}{_ANY})$")
_TAIL_ONE = re.compile(rf"(?<!\\)(?:\((?:\?P<\w+>|\?:)?({_ATOM}){_SOME}\)|({_ATOM}){_SOME})$")


@cache
def detector(pattern: str) -> str:
    r"""The pattern without what it only captures at its end.

    Lines that match are the same. Hyperscan reports every end that a match can have: `(?P<seq>\d+)$` would be hit once
    for each digit, `.{0,200}$` two hundred times.
    """
    while True:
        shorter = _TAIL_ONE.sub(lambda found: found[1] or found[2], _TAIL.sub("", pattern))
        if shorter in {"", pattern}:
            return pattern
        pattern = shorter


_CLASS = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])+\]", re.DOTALL)
_LINE_ONLY = {r"\s": r"[^\S\n]", r"\W": r"[^\w\n]", r"\D": r"[^\d\n]"}


def one_line(pattern: str) -> str:
    """The pattern, unable to match a line end: catalogues mean one line, and a block holds many."""
    return _CLASS.sub(_without_newline, pattern)


def _without_newline(found: re.Match[str]) -> str:
    text = found[0]
    if text.startswith("[^"):
        return rf"[^\n{text[2:]}"
    if text.startswith("["):
        return text.replace(r"\s", r" \t\r\f\x0b")
    return _LINE_ONLY.get(text, text)
