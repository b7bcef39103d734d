"""Why: the verdict with its evidence, what only echoes it, and who is behind it among the ranks. Pure."""

from collections.abc import Sequence

from relight.console.text import count, nodes
from relight.console.web.look import Html, tag
from relight.console.web.look_parts import card, notice
from relight.console.web.read_incident_values import Cause, IncidentPage, Mark, RankLine

SHOWN_NODES = 32
"""Nodes of the map; a job's others have nothing against them that is known."""
SHOWN_MARKS = 4
_SHOWN_OPEN = 3
"""Fewer pieces of evidence than this stand open."""


def cause(page: IncidentPage) -> Html:
    """The verdict with the line that shows it; what only echoes it is folded."""
    found = page.cause
    if found is None:
        return card("Diagnosis", tag("p", "Not diagnosed" + (" yet." if page.line.open else "."), class_="soft"))
    root = found.evidence[0] if found.evidence else page.root
    others = [mark for mark in found.evidence if mark != root]
    body: list[Html | None] = [_root(root) if root else None, _around(page)]
    if others:
        listed = [tag("li", _root(mark)) for mark in others[:SHOWN_MARKS]]
        hidden = len(others) - SHOWN_MARKS
        more = tag("p", f"and {hidden} more", class_="small soft") if hidden > 0 else None
        body.append(
            tag(
                "details",
                tag("summary", f"{count(len(others), 'more piece')} of evidence"),
                tag("ul", listed, class_="evidence"),
                more,
                id="evidence",
                open=len(others) < _SHOWN_OPEN,
            )
        )
    body += [_echoes(page), _others(page.others)]
    body += [
        notice("warn", f"Could not be read, its silence proves nothing: {source}")
        for source in page.unreadable[:SHOWN_MARKS]
    ]
    if page.would_change:
        changes = tag("ul", [tag("li", text) for text in page.would_change], class_="small soft")
        body.append(tag("details", tag("summary", "What would change this verdict"), changes, id="change"))
    return card(
        "Diagnosis", *body, beside=f"{found.signature} · {found.category} · {found.confidence:.0%} sure", class_="stack"
    )


def _root(mark: Mark) -> Html:
    place = f"{mark.file}:{mark.line}" if mark.file and mark.line else mark.file or str(mark.source).replace("_", " ")
    where = [place]
    where += [f"node {mark.node}"] if mark.node and mark.node not in place else []
    where += [f"rank {mark.rank}"] if mark.rank is not None else []
    where += [f"GPU {mark.gpu}"] if mark.gpu else []
    where += ["seen by the platform" if mark.trust == "platform" else "said by the job"]
    return tag("div", tag("span", " · ".join(where), class_="place"), mark.text, class_="root")


def _around(page: IncidentPage) -> Html | None:
    if len(page.around) <= 1:
        return None
    lines = [
        tag(
            "li",
            tag("span", near.line, class_="no"),
            tag("span", near.text),
            class_="hit" if page.root and near.line == page.root.line else None,
        )
        for near in page.around
    ]
    listed = tag("ol", lines, class_="around", tabindex=0, aria_label="Lines around the cause")
    return tag("details", tag("summary", "The lines around it"), listed, id="around")


def _echoes(page: IncidentPage) -> Html | None:
    if not page.echoes:
        return None
    kinds = [
        tag("li", tag("strong", f"{echo.lines} x {echo.signature}"), f" {echo.example}" if echo.example else "")
        for echo in page.folded
    ]
    head = f"{count(page.echoes, 'further line')} only echo it, and {'are' if page.echoes > 1 else 'is'} folded"
    return tag("details", tag("summary", head), tag("ul", kinds, class_="small wrap"), id="echoes")


def _others(others: Sequence[Cause]) -> Html | None:
    if not others:
        return None
    listed = [
        tag(
            "li",
            f"{each.signature}, {each.category} ({each.confidence:.0%})",
            f": {each.summary}" if each.summary else "",
        )
        for each in others
    ]
    return tag("details", tag("summary", "Less likely causes"), tag("ul", listed, class_="small wrap"), id="others")


def ranks(page: IncidentPage) -> Html | None:
    """Ranks by node: who is behind it, who said what, who stands where."""
    if not page.ranks:
        return None
    by_node: dict[str, list[RankLine]] = {}
    for rank in page.ranks:
        by_node.setdefault(rank.node or "node not known", []).append(rank)
    rest = [name for name in page.job_nodes if name not in by_node]
    rows = [
        tag(
            "div",
            tag("span", node, class_="name"),
            tag("span", [_rank(each, page.failed_step) for each in ranks], class_="cells"),
            class_="node",
        )
        for node, ranks in list(by_node.items())[:SHOWN_NODES]
    ]
    quiet = f"Nothing speaks against the job's other {count(len(rest), 'node')}: {nodes(rest)}" if rest else ""
    key = [
        tag("span", tag("span", "✕", class_="rank bad"), "behind it"),
        tag("span", tag("span", "!", class_="rank warn"), "printed a failure"),
        tag("span", tag("span", "0", class_="rank"), "nothing against it"),
    ]
    body = [tag("div", rows, class_="ranks"), tag("div", key, class_="key")]
    return card("Ranks and nodes", *body, quiet and tag("p", quiet, class_="small soft wrap"))


def _rank(rank: RankLine, failed_step: int | None) -> Html:
    kind, sign = ("bad", "✕") if rank.implicated else ("warn", "!") if rank.said else ("", "")
    behind = f", last step {rank.last_step}" if rank.last_step is not None else ""
    stuck = (
        " (behind the others)" if failed_step and rank.last_step is not None and rank.last_step < failed_step else ""
    )
    gpu, said = f", GPU {rank.gpu}" if rank.gpu else "", f", said {rank.said}" if rank.said else ""
    told = f"rank {rank.rank}{gpu}{said}{behind}{stuck}"
    return tag("span", f"{sign}{rank.rank}", class_=f"rank {kind}", title=told)
