"""The progress curve of a job, with its incidents on it: one SVG picture, no script. Pure."""

from collections.abc import Sequence
from datetime import datetime

from relight.console.text import local_short
from relight.console.web.look import Html, tag
from relight.console.web.read_incident_values import Point
from relight.console.web.read_values import IncidentLine

_WIDE, _HIGH, _LEFT, _LOW, _TOP, _RIGHT = 760, 220, 58, 24, 14, 12
MOST_POINTS = 400
"""Points that are drawn: more do not show."""


def curve(points: Sequence[Point], incidents: Sequence[IncidentLine], now: datetime) -> Html | None:
    """Steps over time, one line an attempt; None where there is too little to draw."""
    if len(points) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    marks = [line for line in incidents if points[0].at <= line.detected_at <= points[-1].at]
    start, end = points[0].at, points[-1].at
    length = max((end - start).total_seconds(), 1.0)
    low, high = min(p.step for p in points), max(p.step for p in points)

    def x(at: datetime) -> float:
        return round(_LEFT + (_WIDE - _LEFT - _RIGHT) * (at - start).total_seconds() / length, 1)

    def y(step: int) -> float:
        return round(_HIGH - _LOW - (_HIGH - _LOW - _TOP) * (step - low) / max(high - low, 1), 1)

    drawn = points[:: max(1, len(points) // MOST_POINTS)]
    lines = [
        tag(
            "polyline", points=" ".join(f"{x(p.at)},{y(p.step)}" for p in drawn if p.attempt == attempt), class_="curve"
        )
        for attempt in dict.fromkeys(p.attempt for p in drawn)
    ]
    floor = _HIGH - _LOW
    axes = [
        tag("line", x1=_LEFT, y1=floor, x2=_WIDE - _RIGHT, y2=floor, class_="axis"),
        tag("line", x1=_LEFT, y1=_TOP, x2=_LEFT, y2=floor, class_="axis"),
        tag("text", f"{high:,}", x=_LEFT - 8, y=_TOP + 4, text_anchor="end"),
        tag("text", f"{low:,}", x=_LEFT - 8, y=floor, text_anchor="end"),
        tag("text", local_short(start, now), x=_LEFT, y=_HIGH - 6),
        tag("text", local_short(end, now), x=_WIDE - _RIGHT, y=_HIGH - 6, text_anchor="end"),
    ]
    crosses = [
        [
            tag("line", x1=x(m.detected_at), x2=x(m.detected_at), y1=_TOP, y2=floor, class_="mark"),
            tag("text", m.kind.replace("_", " "), x=min(x(m.detected_at) + 4, _WIDE - 60), y=_TOP + 8),
        ]
        for m in marks
    ]
    told = f"Steps {low} to {high}, from {local_short(start, now)} to {local_short(end, now)}; {len(marks)} incidents"
    picture = tag("svg", axes, lines, crosses, viewBox=f"0 0 {_WIDE} {_HIGH}", role="img", aria_label=told)
    return tag("figure", picture, class_="chart")
