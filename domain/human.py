"""Durations and shares as people write them: `30m`, `1h30m`, `PT30M`; `25%`, `0.25`."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError, WithJsonSchema

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SHORT = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?)\s*{unit})?\s*" for unit in _UNITS))
_ISO = re.compile(r"P[0-9YMWDTHS.]+|[0-9]{1,4}:[0-9]{2}:[0-9]{2}")
_TIMEDELTA = TypeAdapter(timedelta)
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")
_FRACTION = re.compile(r"0?\.[0-9]{1,9}|[01](\.0{1,9})?")

ACCEPTED_DURATIONS = "30s, 30m, 2h, 1h30m, 7d or PT30M"
ACCEPTED_SHARES = "25% or 0.25"


def duration(value: Any) -> timedelta:
    """A length of time.

    Raises:
        ValueError: anything else, a bare number too: whether it means seconds or minutes would be a guess.
    """
    if isinstance(value, timedelta):
        return value
    text = value.strip() if isinstance(value, str) else ""
    found = _SHORT.fullmatch(text)
    try:
        if found and text:
            return timedelta(**{_UNITS[unit]: float(count) for unit, count in found.groupdict().items() if count})
        if _ISO.fullmatch(text):
            return _TIMEDELTA.validate_python(text)
    except (ValidationError, OverflowError):
        pass
    raise ValueError(f"must be a duration with its unit, like {ACCEPTED_DURATIONS}")


def share(value: Any) -> float:
    """A share of a whole, 0 to 1.

    Raises:
        ValueError: anything else; 25 without `%` too, which is neither.
    """
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"must be a share, like {ACCEPTED_SHARES}")  # noqa: TRY004 - pydantic's way to refuse
    text = str(value).strip()
    percent = _SHARE.fullmatch(text)
    if percent and float(percent[1]) <= 100:  # noqa: PLR2004
        return float(percent[1]) / 100
    if _FRACTION.fullmatch(text):
        return float(text)
    raise ValueError(f"must be a share between 0% and 100%, like {ACCEPTED_SHARES}")


def _schema(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


_DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?\s*[wdhms]\s*)+$|^P[0-9YMWDTHS.]+$|^[0-9]{1,4}:[0-9]{2}:[0-9]{2}$"

Duration = Annotated[timedelta, BeforeValidator(duration), _schema(_DURATION_PATTERN, "30m", "2h", "PT30M")]
"""A length of time; written as `ACCEPTED_DURATIONS` says."""

Share = Annotated[float, BeforeValidator(share), _schema(r"^[0-9]{1,3}(\.[0-9]+)?\s*%$|^0?\.[0-9]+$|^[01]$", "25%")]
"""A share of a whole as a number from 0 to 1; written as `ACCEPTED_SHARES` says."""


def between(least: timedelta, most: timedelta) -> Callable[[timedelta], timedelta]:
    """A check that a length of time lies within bounds, said in words that a person writes."""

    def check(value: timedelta) -> timedelta:
        if not least <= value <= most:
            raise ValueError(f"must be from {spoken(least)} to {spoken(most)}")
        return value

    return check


def spoken(value: timedelta) -> str:
    """The duration as one writes it, for example `1h30m`."""
    seconds = value.total_seconds()
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            parts.append(f"{int(seconds // size)}{unit}")
            seconds %= size
    if seconds or not parts:
        parts.append(f"{seconds:g}s")
    return "".join(parts)
