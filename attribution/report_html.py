"""A diagnosis as one self-contained HTML file, to attach to a ticket. All that comes from logs is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from relight.attribution.catalogue import Catalogue
from relight.attribution.report import (
    HEADS,
    NODE_COLUMNS,
    RANK_COLUMNS,
    also_seen,
    folded,
    next_steps,
    node_rows,
    place,
    rank_rows,
    shown_line,
    unread,
)
from relight.domain.diagnosis import Category, Diagnosis

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --dim: #666; --bad: #b3261e; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --dim: #aaa; --bad: #ff8a80; --good: #7bd89b; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; color: var(--bad); } h1.good { color: var(--good); }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
.dim { color: var(--dim); } .summary { font-size: 1.15rem; margin: .75rem 0; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .75rem; overflow-x: auto;
  font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
pre b { color: var(--bad); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 0; } dd { margin: 0; }
dt { font-weight: 600; }
"""


def as_html(diagnosis: Diagnosis, catalogue: Catalogue) -> str:
    """The whole page: no script, nothing loaded from anywhere."""
    verdict = diagnosis.verdict
    good = ' class="good"' if verdict.category is Category.CONTROL else ""
    title = f"{HEADS[verdict.category]}: {verdict.signature}"
    body = [
        f"<h1{good}>{escape(HEADS[verdict.category])}</h1>",
        f'<div class="dim">{escape(verdict.signature)}, confidence {verdict.confidence:.0%}</div>',
        f'<p class="summary">{escape(verdict.summary)}</p>',
        _pairs(next_steps(diagnosis, catalogue)),
        _excerpt(diagnosis),
        _list("More lines that show it", [place(one) + one.text for one in verdict.evidence[1:]], code=True),
        _table("Nodes", NODE_COLUMNS, node_rows(diagnosis)),
        _table("Ranks", RANK_COLUMNS, rank_rows(diagnosis) if len(diagnosis.ranks) > 1 else []),
        _table(
            "Echoes, folded",
            ("kind", "lines", "ranks", "for example"),
            [(one.signature, str(one.lines), str(one.ranks or ""), one.example) for one in diagnosis.folded],
        ),
        _list("What would change this", diagnosis.would_change),
        _list("Also seen", also_seen(diagnosis, catalogue)),
        _list("Not read", unread(diagnosis)),
    ]
    content = "\n".join(part for part in body if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{content}\n</body></html>\n"
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
    return f"<dl>{rows}</dl>"


def _excerpt(diagnosis: Diagnosis) -> str:
    if not diagnosis.verdict.evidence:
        return ""
    first = shown_line(diagnosis) or diagnosis.verdict.evidence[0]
    lines = [
        f"<b>{near.line} {escape(near.text)}</b>" if near.line == first.line else f"{near.line} {escape(near.text)}"
        for near in diagnosis.around
    ] or [f"<b>{escape(first.text)}</b>"]
    told = escape(folded(diagnosis))
    title = escape(first.file or "What shows it")
    return f"<h2>{title}</h2><pre>{chr(10).join(lines)}</pre>" + (f'<div class="dim">{told}</div>' if told else "")


def _list(title: str, texts: Sequence[str], *, code: bool = False) -> str:
    if not texts:
        return ""
    if code:
        return f"<h2>{escape(title)}</h2><pre>{escape(chr(10).join(texts))}</pre>"
    return f"<h2>{escape(title)}</h2><ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
