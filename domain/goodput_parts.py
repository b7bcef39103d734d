"""What the time of a disruption was spent on: from an attempt's last step to the next one's start, divided. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from relight.domain.base import Value

ZERO = timedelta(0)


class Part(StrEnum):
    """What the time of a disruption was spent on: `STALL` up to an attempt's end and `RECOVERY` after it, divided."""

    DETECTION = "detection"
    DECISION = "decision"
    """Diagnosis and plan."""
    APPROVAL = "approval wait"
    ENDING = "ending"
    """Until Slurm had ended the attempt and the next one's start was set."""
    UNATTENDED = "until queued again"
    """Where Relight has no incident of it that acted: until somebody queued the job again."""
    QUEUE = "queue wait"
    STALL = "stall"
    """Silence that no incident explains."""


class Moments(Value):
    """When what was done about an attempt's interruption; None: not, or not known."""

    detected: datetime | None = None
    planned: datetime | None = None
    approved: datetime | None = None
    started: datetime | None = None
    """When its next start was set, or its requeue."""


Marks = Sequence[tuple[Part, datetime | None]]


def marks_of(moments: Moments | None, queued_at: datetime | None) -> Marks:
    """Until when each part of a disruption lasted, in order."""
    if moments is None:
        return ((Part.UNATTENDED, queued_at),)
    acted = moments.started
    return (
        (Part.DETECTION, moments.detected),
        (Part.DECISION, moments.planned),
        (Part.APPROVAL, moments.approved),
        (Part.ENDING, acted),
        (Part.UNATTENDED, queued_at if acted is None else None),
    )


def divided(begin: datetime, end: datetime, marks: Marks, rest: Part) -> dict[Part, timedelta]:
    """That time, divided at the moments that are known; one that is not is passed over, so that nothing is left out."""
    parts: dict[Part, timedelta] = {}
    at = begin
    for part, until in marks:
        if until is not None and until > at:
            reached = min(until, end)
            parts[part] = reached - at
            at = reached
    parts[rest] = parts.get(rest, ZERO) + (end - at)
    return {part: time for part, time in parts.items() if time > ZERO}


def joined(one: Mapping[Part, timedelta], other: Mapping[Part, timedelta]) -> dict[Part, timedelta]:
    """Both together, in order."""
    both = {part: one.get(part, ZERO) + other.get(part, ZERO) for part in Part}
    return {part: time for part, time in both.items() if time > ZERO}
