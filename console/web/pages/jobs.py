"""Jobs: what runs and what ran, and one job's attempts, progress, retries and checkpoints."""

from collections.abc import Mapping
from datetime import datetime

from relight.console.text import nodes, span
from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_parts import (
    ago,
    card,
    cell,
    choice,
    clock,
    counted,
    empty,
    facts,
    head,
    lasting,
    lines,
    notice,
    pager,
    pill,
    search,
    sub,
    table,
)
from relight.console.web.pages.asked import Asked, View
from relight.console.web.pages.curve import curve
from relight.console.web.pages.incidents import rows as incident_rows
from relight.console.web.read_incident_values import AttemptLine, JobPage
from relight.console.web.read_values import Ask, JobFilter, JobLine, Page

PER_PAGE = 50
_HEADINGS = (("Job", ""), ("Owner", ""), ("Progress", ""), ("Nodes", ""), ("Incidents", "r"), ("State", ""))
_STATES = [("", "Any state"), ("running", "Running"), ("ended", "Ended")]


async def view(asked: Asked) -> View:
    """The list."""
    found = await asked.desk.reading.jobs(asked.who, *wanted(asked.query))
    return View("Jobs", (show(found, asked.query),))


async def view_one(asked: Asked) -> View:
    """One job."""
    page = await asked.desk.reading.job(asked.who, asked.name)
    return View(f"Job {page.line.job}", (show_one(page, asked.now),))


def wanted(query: Mapping[str, str]) -> tuple[JobFilter, Ask]:
    """What the address asks for."""
    state = query.get("state", "")
    running = True if state == "running" else False if state == "ended" else None
    fits = JobFilter(text=query.get("q", "").strip()[:200], running=running)
    return fits, Ask(limit=PER_PAGE, cursor=query.get("after", "")[:500])


def show(found: Page[JobLine], query: Mapping[str, str]) -> Html:
    """The list."""
    line = search(
        "/jobs",
        query.get("q", ""),
        "Job id, name, owner or node",
        choice("state", "State", _STATES, query.get("state", "")),
    )
    kept = {key: query[key] for key in ("q", "state") if query.get(key)}
    if not found.items:
        none = "No job fits" if kept else "No job yet"
        more = [link("/jobs", "Show all")] if kept else ["Relight has seen none running on this cluster."]
        return join(head("Jobs"), line, empty(none, *more, fine=False))
    listed = table(_HEADINGS, (_row(each) for each in found.items), "Jobs, the newest first")
    return join(
        head("Jobs", counted(found.total)), line, listed, pager("jobs", kept, query.get("after", ""), found.next)
    )


def _row(line: JobLine) -> list[Html]:
    step = f"step {line.last_step:,}" if line.last_step is not None else "no step seen"
    last = sub(ago(line.last_step_at)) if line.last_step_at else None
    opened = sub(link(path("incidents", line.open_incident), "one is open")) if line.open_incident else None
    state = pill("running", "good") if line.running else pill("ended")
    since = (
        sub("for ", lasting(line.started_at)) if line.running else sub(ago(line.ended_at)) if line.ended_at else None
    )
    return [
        cell(
            link(path("jobs", line.job), line.job, class_="go mono", id=f"row-{line.lineage or line.job}"),
            f" {line.name}",
        ),
        cell(line.user, sub(line.partition)),
        cell(step, last),
        cell(nodes(line.nodes), sub(f"{len(line.nodes)} nodes") if len(line.nodes) > 1 else None),
        cell(
            line.incidents or "-",
            opened,
            sub(f"{line.attempts} attempts") if line.attempts > 1 else None,
            kind="r num",
            label="Incidents:",
        ),
        cell(state, since),
    ]


def show_one(page: JobPage, now: datetime) -> Html:
    """One job."""
    line = page.line
    incidents = [incident for attempt in page.attempts for incident in attempt.incidents]
    told = f"of {line.user or 'an unknown user'}, partition {line.partition or 'not known'}"
    state = (
        pill("running", "good")
        if line.running
        else pill(page.attempts[-1].how or "ended" if page.attempts else "ended")
    )
    picture = curve(page.curve, incidents, now)
    progress = card(
        "Progress",
        picture or tag("p", "Too few steps were seen to draw a curve.", class_="soft"),
        beside=f"last step {line.last_step:,}" if line.last_step is not None else None,
    )
    newest_first = sorted(incidents, key=lambda each: each.opened_at, reverse=True)
    listed = (
        incident_rows(newest_first, "Incidents of this job")
        if incidents
        else empty("No interruption", "None has been seen.")
    )
    attempts = [_attempt(each, now) for each in reversed(page.attempts)]
    older = (
        tag("p", f"{page.others} attempts under this id belong to an older job", class_="soft small")
        if page.others
        else None
    )
    left = tag(
        "div",
        progress,
        tag("section", tag("h2", "Incidents"), listed, class_="tight"),
        card("Attempts", *attempts, older, class_="stack"),
        class_="stack",
    )
    right = tag("div", _budget(page, now), _checkpoints(page, now), class_="stack")
    top = tag("div", tag("h1", f"Job {line.job} {line.name}"), state, tag("span", told, class_="right"), class_="head")
    return join(top, tag("div", left, right, class_="columns"))


def _attempt(each: AttemptLine, now: datetime) -> Html:
    length = ["ran ", span(each.ended_at - each.started_at)] if each.ended_at and each.started_at else []
    if each.running and each.started_at:
        length = ["running for ", lasting(each.started_at)]
    state = pill("running", "good") if each.running else pill(each.how or "ended, nobody saw how")
    pairs = [
        ("Ran on", nodes(each.nodes)),
        ("Last step", f"{each.last_step:,}" if each.last_step is not None else "none seen"),
    ]
    if each.started_at:
        pairs.insert(0, ("From", clock(each.started_at, now)))
    if each.step_seconds:
        pairs.append(("A step takes", f"{each.step_seconds:.2f} s"))
    if each.why_nothing and not each.incidents:
        pairs.append(("So", each.why_nothing))
    first = tag("div", tag("strong", f"Attempt {each.number} "), state, " ", tag("span", length, class_="soft small"))
    return tag("div", first, facts(pairs), class_="tight")


def _budget(page: JobPage, now: datetime) -> Html:
    spent = page.budget
    used = f"{spent.fruitless} of {spent.most_fruitless} restarts without progress used"
    told = [
        tag("p", used, class_="bad strong" if spent.fruitless >= spent.most_fruitless else "strong"),
        tag(
            "progress",
            used,
            max=spent.most_fruitless,
            value=min(spent.fruitless, spent.most_fruitless),
            aria_label=used,
        ),
        lines(spent.lines),
    ]
    if spent.exclusions:
        kept = [
            tag("div", each.node, [" until ", clock(each.until, now)] if each.until else "")
            for each in spent.exclusions
        ]
        told.append(facts([("Kept out", kept)]))
    told += [notice("", f"Its comment asks: {asked}") for asked in page.asks]
    return card("Retry budget", *told, class_="stack")


def _checkpoints(page: JobPage, now: datetime) -> Html:
    if not page.checkpoints:
        return card("Checkpoints", tag("p", "Its output has not told of any.", class_="soft"))
    pairs = [
        (clock(each.at, now) if each.at else "-", f"step {each.step:,}, attempt {each.attempt}")
        for each in page.checkpoints
    ]
    return card("Checkpoints", facts(pairs), beside="as its output tells")
