"""Python's exceptions in one log: of a chain the last ended the process; what the interpreter ignored ended nothing.

Source: Python library reference, traceback; `sys.unraisablehook`.
"""

import re
from collections.abc import Sequence

from relight.attribution.line import Line
from relight.attribution.origin import Speaker

CHAINED, IGNORED = "PY_CHAINED", "PY_IGNORED"
_LINES_OF_IGNORED = 30
"""A traceback that follows "Exception ignored in" ends within so many lines."""
_CHILD = re.compile(r"-- Process (\d+) terminated with the following error")
_RAISED = "multiprocessing.spawn.ProcessRaisedException:"
_LINES_OF_CHILD = 200
"""What torch.multiprocessing prints of a process that it started: its traceback, within so many lines."""


def sorted_out(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines of one log without those that the interpreter ignored, with `chained` set and children named.

    An exception's traceback belongs to one rank: the next line of that rank decides.
    """
    kinds = {line.match.signature for line in lines}
    children = [line for line in lines if "local_rank" in line.match.fields and _CHILD.search(line.match.text)]
    if not children and not kinds & {CHAINED, IGNORED}:
        return lines
    ordered = sorted((line for line in lines if not _passed_on(line)), key=lambda each: each.order)
    if children:
        ordered = _of_children(ordered)
    last: dict[Speaker, Line] = {}
    ignoring: dict[Speaker, int] = {}
    chained: set[tuple[int, int]] = set()
    ignored: set[tuple[int, int]] = set()
    for line in ordered:
        who, number = line.speaker, line.match.line_no
        if line.match.signature == IGNORED:
            ignoring[who] = number
        elif line.match.signature == CHAINED:
            if who in last:
                chained.add(last.pop(who).order)
        elif number - ignoring.pop(who, -_LINES_OF_IGNORED) < _LINES_OF_IGNORED:
            ignored.add(line.order)
        else:
            last[who] = line
    kept = [line for line in ordered if line.order not in ignored]
    return [line._replace(chained=True) if line.order in chained else line for line in kept]


def _passed_on(line: Line) -> bool:
    """True for the parent's own exception about a child's, which follows."""
    return _RAISED in line.match.text and "msg" not in line.match.fields


def _of_children(lines: Sequence[Line]) -> list[Line]:
    """The lines after `-- Process 1 terminated with the following error` are that child's, by its local rank."""
    children: dict[Speaker, tuple[int, int]] = {}
    result = []
    for line in lines:
        who, number = line.speaker, line.match.line_no
        if found := _CHILD.search(line.match.text):
            children[who] = int(found[1]), number
        elif who in children and who.rank is None:
            local, since = children[who]
            if number - since <= _LINES_OF_CHILD:
                line = line._replace(speaker=who._replace(local_rank=local))  # noqa: PLW2901
        result.append(line)
    return result
