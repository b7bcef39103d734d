"""Faults that a training process commits upon itself: the rules in `<run>/faults.json`, read by every rank.

[{"rank": 5, "step": 40, "attempts": [0], "do": "raise"}]
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

FILE = "faults.json"


class Deed(StrEnum):
    """What a rank does to itself."""

    RAISE = "raise"
    """A Python exception in the code that loads data."""
    ECC = "ecc"
    """What PyTorch raises when a GPU reports an uncorrectable memory error."""
    NAN = "nan"
    """The loss becomes NaN and stays so; the job runs on."""
    EXIT = "exit"
    """Ends at once with exit code `code` and without a word."""
    HANG = "hang"
    """Computes for ever, inside a step."""
    SLOW = "slow"
    """Takes `times` as long for a step."""


class FaultRule(BaseModel):
    """One rule: who, when, what."""

    model_config = ConfigDict(frozen=True)

    rank: int
    do: Deed
    step: int | None = None
    """At this step. None: at the next one that begins."""
    attempts: tuple[int, ...] | Literal["all"] = "all"
    """Values of SLURM_RESTART_COUNT for which it holds; the first start is 0."""
    text: str | None = None
    """Message of the exception, where the deed raises one."""
    code: int = 1
    """Exit code, where the deed ends the process."""
    times: float = Field(default=1.5, ge=1)
    """How many times its usual step time, where the deed makes it slow."""


RULES = TypeAdapter(tuple[FaultRule, ...])


def due(rules: Sequence[FaultRule], rank: int, step: int, attempt: int) -> FaultRule | None:
    """Return the first rule that this rank follows at this step of this attempt."""
    for rule in rules:
        mine = rule.rank == rank and (rule.attempts == "all" or attempt in rule.attempts)
        if mine and (rule.step is None or rule.step == step):
            return rule
    return None


def slowness(rule: FaultRule | None) -> float:
    """How many times its usual step time a rank takes that follows this rule."""
    return rule.times if rule and rule.do is Deed.SLOW else 1.0


class FaultFile:
    """The rules of a run folder, read again whenever the file changes."""

    def __init__(self, run: Path) -> None:
        """Look at `<run>/faults.json`, which need not exist."""
        self._file = run / FILE
        self._stamp = math.nan
        self._rules: tuple[FaultRule, ...] = ()

    def rules(self) -> tuple[FaultRule, ...]:
        """Return the rules as they stand now; none when there is no file."""
        try:
            stamp = self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return ()
        if stamp != self._stamp:
            self._rules = RULES.validate_json(self._file.read_bytes())
            self._stamp = stamp
        return self._rules


def add(run: Path, rule: FaultRule) -> None:
    """Append a rule to a run folder's file, atomically: the ranks read it while they run."""
    file = run / FILE
    before = RULES.validate_json(file.read_bytes()) if file.exists() else ()
    fresh = file.with_suffix(".new")
    fresh.write_bytes(RULES.dump_json((*before, rule), indent=2) + b"\n")
    fresh.chmod(0o644)
    fresh.rename(file)
