"""Where time went as a picture: one bar for all and one for each attempt (or job), as SVG that needs nothing else.

Dark and light by the reader's own setting; every colour has a name beside it, and what is not known is hatched.
"""

from collections.abc import Sequence
from datetime import timedelta
from html import escape
from typing import NamedTuple

from relight.console.goodput_text import NAMES, lasted, percent
from relight.console.text import clean, span
from relight.domain.goodput import Account, Badput
from relight.domain.goodput_report import Report

MOST_BARS = 40
_WIDTH, _LEFT, _RIGHT = 960, 190, 110
_ROW, _BAR, _TOP = 34, 20, 118
_KINDS: tuple[Badput | None, ...] = (
    None,
    Badput.SAVE,
    Badput.STARTUP,
    Badput.WASTED,
    Badput.RECOVERY,
    Badput.STALL,
    Badput.UNKNOWN,
)
"""In this order in every bar; None: productive."""
_COLOURS = {
    None: "good",
    Badput.SAVE: "save",
    Badput.STARTUP: "startup",
    Badput.WASTED: "wasted",
    Badput.RECOVERY: "recovery",
    Badput.STALL: "stall",
    Badput.UNKNOWN: "unknown",
}
# Okabe and Ito's palette, which people who cannot tell red from green tell apart.
_STYLE = """
  .goodput { --ground: #ffffff; --ink: #1b1f24; --faint: #6a737d; --rest: #eaeef2;
    font: 13px system-ui, sans-serif; background: var(--ground); }
  .goodput text { fill: var(--ink); }
  .goodput .faint { fill: var(--faint); }
  .goodput .title { font-size: 17px; font-weight: 600; }
  .goodput .ground { fill: var(--ground); }
  .goodput .rest { fill: var(--rest); }
  .goodput .good { fill: #009e73; }
  .goodput .save { fill: #f0e442; }
  .goodput .startup { fill: #e69f00; }
  .goodput .wasted { fill: #d55e00; }
  .goodput .recovery { fill: #0072b2; }
  .goodput .stall { fill: #cc79a7; }
  .goodput .unknown { fill: url(#goodput-hatch); }
  .goodput .hatch { stroke: var(--faint); }
  @media (prefers-color-scheme: dark) {
    .goodput { --ground: #0d1117; --ink: #e6edf3; --faint: #9198a1; --rest: #21262d; }
  }
"""
_HATCH = """<defs><pattern id="goodput-hatch" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6" stroke-width="3"/></pattern></defs>"""


class Bar(NamedTuple):
    """One bar."""

    label: str
    below: str
    account: Account


def bars(told: Report) -> tuple[Bar, ...]:
    """All together first; then the attempts of a single job, or the jobs that lost most."""
    whole = Bar("all together", f"{percent(told.total.goodput)} goodput", told.total)
    if told.jobs_in_all == 1 and told.jobs:
        each = [
            Bar(f"attempt {attempt.number}", _steps(attempt.first_step, attempt.last_step), attempt.account)
            for attempt in told.jobs[0].attempts[-MOST_BARS:]
        ]
    else:
        each = [Bar(f"job {job.facts.job}", job.facts.name, job.total) for job in told.jobs[:MOST_BARS]]
    return (whole, *each)


def _steps(first: int | None, last: int | None) -> str:
    if last is None:
        return "no step seen"
    return f"steps {first if first is not None else '?'} to {last}"


def chart(told: Report) -> str:
    """One `<svg>` element: bars as long as their time, the first one scaled for itself."""
    drawn = bars(told)
    height = _TOP + _ROW * len(drawn) + 26
    longest = max((bar.account.elapsed for bar in drawn[1:]), default=timedelta(0))
    rows = [_row(bar, index, drawn[0].account.elapsed if index == 0 else longest) for index, bar in enumerate(drawn)]
    title = f"Where the time of {told.scope} went"
    ratios = f"goodput {percent(told.total.goodput)}, ETTR {percent(told.total.ettr)}"
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="goodput" role="img" aria-label="{_safe(title)}" {size}>',
        f"<style>{_STYLE}</style>",
        _HATCH,
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="20" y="32">{_safe(title)}</text>',
        f'<text class="faint" x="20" y="53">{_safe(f"{ratios}, until {told.until:%Y-%m-%d %H:%M} UTC")}</text>',
        *_legend(told.total),
        *rows,
        f'<text class="faint" x="{_LEFT}" y="{height - 10}">{_safe(_scale(longest))}</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def page(told: Report) -> str:
    """The same as a page of its own."""
    title = _safe(f"Where the time of {told.scope} went")
    ground = "body{margin:0;background:#fff}@media(prefers-color-scheme:dark){body{background:#0d1117}}"
    head = f'<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>{title}</title>'
    body = f"<body>\n{chart(told)}\n</body>"
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{ground}</style></head>{body}</html>\n'


def _scale(longest: timedelta) -> str:
    return f"The first bar is all of the time; of the others the longest is {span(longest)}." if longest else ""


def _legend(account: Account) -> Sequence[str]:
    found, x = [], 20.0
    for kind in _KINDS:
        if kind is not None and kind not in account.lost:
            continue
        name = NAMES[kind] if kind else "productive"
        found.append(f'<rect class="{_COLOURS[kind]}" x="{x:.0f}" y="74" width="12" height="12" rx="2"/>')
        found.append(f'<text x="{x + 18:.0f}" y="85">{name}</text>')
        x += 40 + 7.0 * len(name)
    return found


def _row(bar: Bar, index: int, whole: timedelta) -> str:
    y = _TOP + _ROW * index
    width = _WIDTH - _LEFT - _RIGHT
    x, cells = float(_LEFT), list[str]()
    for kind in _KINDS:
        time = bar.account.lost.get(kind, timedelta(0)) if kind else bar.account.productive
        length = width * (time / whole) if whole else 0.0
        if length <= 0:
            continue
        name = NAMES[kind] if kind else "productive"
        told = f"{bar.label}: {name} {span(time)}"
        cells.append(
            f'<rect class="{_COLOURS[kind]}" x="{x:.2f}" y="{y}" width="{length:.2f}" height="{_BAR}">'
            f"<title>{_safe(told)}</title></rect>"
        )
        x += length
    return "\n".join(
        [
            f'<text x="20" y="{y + 9}">{_safe(clean(bar.label, 24))}</text>',
            f'<text class="faint" x="20" y="{y + 23}" font-size="11">{_safe(clean(bar.below, 28))}</text>',
            f'<rect class="rest" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}"/>',
            *cells,
            f'<text class="faint" x="{_WIDTH - _RIGHT + 12}" y="{y + 15}">{_safe(lasted(bar.account.elapsed))}</text>',
        ]
    )


def _safe(text: str) -> str:
    return escape(clean(text))
