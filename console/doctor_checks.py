"""What a check of `relight doctor` is."""

import difflib
from collections.abc import Sequence
from enum import StrEnum

from relight.domain.base import Value, clip


class Health(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"
    """Relight works, with something missing; also where nothing could be known."""
    FAIL = "fail"


class Check(Value):
    """One thing looked at."""

    name: str
    status: Health
    found: str
    advice: str = ""
    """What to do about it."""


def ok(name: str, found: str) -> Check:
    """All well."""
    return Check(name=name, status=Health.OK, found=found)


def warn(name: str, found: str, advice: str) -> Check:
    """Works, with something missing, or not known."""
    return Check(name=name, status=Health.WARN, found=found, advice=advice)


def fail(name: str, found: str, advice: str) -> Check:
    """Relight cannot do its work like this."""
    return Check(name=name, status=Health.FAIL, found=found, advice=advice)


def brief(error: Exception | str) -> str:
    """An outside program's error in one short line: its last word, where it names one as fatal."""
    line = " ".join(str(error).split())
    return clip(line.rpartition("fatal: ")[2], 160)


def nearest(word: str, known: Sequence[str]) -> str:
    """`Did you mean ...?`, or nothing where nothing comes near."""
    near = difflib.get_close_matches(word.upper(), known, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else ""
