"""Words for people: text that is safe on a terminal, times, spans, node lists. No I/O, no clock."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from relight.domain.base import clip

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)"  # OSC: titles, links, the clipboard
    r"|\x1b[ -/]*[0-Z\\^-~]",
)
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def clean(text: str, limit: int = 0) -> str:
    """The text as one line in which nothing can move the cursor, colour, reorder or hide what follows.

    Escape sequences are taken out; every other character that does not print becomes a space or `�`.
    """
    bare = _SEQUENCES.sub("", text)
    if not bare.isprintable():
        bare = "".join(_shown(character) for character in bare)
    return clip(bare, limit) if limit else bare


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "�"


def span(length: timedelta) -> str:
    """A length of time in at most eight characters: `0.4 s`, `48 s`, `12 min`, `5.2 h`, `3 d`."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 9.95:  # noqa: PLR2004 - below ten seconds the tenths matter
        return f"{seconds:.1f} s"
    if seconds < 3 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 1.5 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        hours = seconds / _HOUR
        return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"  # noqa: PLR2004 - as for seconds
    return f"{seconds / _DAY:.0f} d"


def after(length: timedelta) -> str:
    """How long after the detection, for a column of its own: `+2.1 s`, `-1.8 s`."""
    seconds = length.total_seconds()
    return f"{seconds:+.1f} s" if abs(seconds) < _HOUR else f"{'-' if seconds < 0 else '+'}{span(abs(length))}"


def local(at: datetime, now: datetime) -> str:
    """A time on this machine's clock, no longer than needed: the date only where it is not today's."""
    here, today = at.astimezone(), now.astimezone()
    if here.date() == today.date():
        return f"{here:%H:%M:%S}"
    return f"{here:%d %b %H:%M:%S}" if here.year == today.year else f"{here:%Y-%m-%d %H:%M:%S}"


def local_short(at: datetime, now: datetime) -> str:
    """As `local`, without the seconds."""
    return local(at, now)[:-3]


def zone(at: datetime) -> str:
    """The name of this machine's time zone at that time."""
    return at.astimezone().tzname() or "local time"


def ago(at: datetime, now: datetime) -> str:
    """How long ago, or how long until: `12 min ago`, `in 17 min`."""
    return f"{span(now - at)} ago" if at <= now else f"in {span(at - now)}"


def nodes(names: Iterable[str]) -> str:
    """Node names as Slurm writes them: `gpu-[001-004]`; names that do not fold are listed."""
    known = sorted({clean(name) for name in names})
    if len(known) < 2:  # noqa: PLR2004 - one name needs no folding
        return "".join(known)
    try:
        from ClusterShell.NodeSet import NodeSet

        return str(NodeSet.fromlist(known))
    except Exception:  # noqa: BLE001 - a strange name must not stop the telling
        return ",".join(known)


def count(number: int, thing: str) -> str:
    """A number of things: `1 incident`, `3 incidents`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
