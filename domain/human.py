"""Durations, percentages and sizes as people write them: `30m`, `1h30m`, `PT30M`; `15%`; `20GB`."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import core_schema

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SHORT = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?)\s*{unit})?\s*" for unit in _UNITS))
_ISO = re.compile(r"P[0-9YMWDTHS.]+|[0-9]{1,4}:[0-9]{2}:[0-9]{2}")
_TIMEDELTA = TypeAdapter(timedelta)

ACCEPTED_DURATIONS = "30s, 30m, 2h, 1h30m, 7d or PT30M"


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


def _schema(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


_DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?\s*[wdhms]\s*)+$|^P[0-9YMWDTHS.]+$|^[0-9]{1,4}:[0-9]{2}:[0-9]{2}$"

Duration = Annotated[timedelta, BeforeValidator(duration), _schema(_DURATION_PATTERN, "30m", "2h", "PT30M")]
"""A length of time; written as `ACCEPTED_DURATIONS` says."""


def between(least: timedelta, most: timedelta) -> Callable[[timedelta], timedelta]:
    """A check that a length of time lies within bounds, said in words that a person writes."""

    def check(value: timedelta) -> timedelta:
        if not least <= value <= most:
            raise ValueError(f"must be from {spoken(least)} to {spoken(most)}")
        return value

    return check


class Share(float):
    """A part of a whole, from 0 to 1; written and printed in percent, for example `15%`."""

    def __str__(self) -> str:
        """As a person writes it."""
        return f"{round(self * 100, 4):g}%"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        """Read by `share`, written as text."""
        return core_schema.no_info_plain_validator_function(share, serialization=core_schema.to_string_ser_schema())


_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,4})?)\s*%")
_WHOLE = 100.0


def share(value: Any) -> Share:
    """A share.

    Raises:
        ValueError: anything but a percentage, a bare number too: whether 1 means all or a hundredth would be a guess.
    """
    if isinstance(value, Share):
        return value
    found = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not 0 < float(found[1]) <= _WHOLE:
        raise ValueError("must be a percentage above 0% and up to 100%, like 5% or 12.5%")
    return Share(float(found[1]) / _WHOLE)


Percentage = Annotated[Share, _schema(r"^[0-9]{1,3}(\.[0-9]{1,4})?\s*%$", "5%", "12.5%")]
"""A share of a whole; written in percent."""


_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([KMGTP]?)(i?)B", re.IGNORECASE)


def size(value: Any) -> int:
    """A number of bytes, read from `20GB` or `512MiB`.

    Raises:
        ValueError: anything else, a bare number too: whether it means bytes or gigabytes would be a guess.
    """
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or (found[3] and not found[2]):
        raise ValueError("must be a size with its unit, like 500MB, 20GB or 2TiB")
    unit = _SIZES[found[2].upper()]
    factor = 1024 ** list(_SIZES).index(found[2].upper()) if found[3] else unit
    return round(float(found[1]) * factor)


Size = Annotated[
    int,
    BeforeValidator(size),
    PlainSerializer(lambda number: f"{number}B", return_type=str, when_used="json"),
    _schema(r"^[0-9]+(\.[0-9]+)?\s*[KMGTPkmgtp]?i?[Bb]$", "500MB", "20GB", "2TiB"),
]
"""A number of bytes; written with its unit."""


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
