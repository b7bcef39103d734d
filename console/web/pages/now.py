"""*Now*: what waits for a person, what is open, and whether anything is unseen or stopped."""

from relight.console.text import count
from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_parts import ago, card, empty, facts, head, lasting, lines, notice, pill, until
from relight.console.web.pages.asked import Asked, View
from relight.console.web.pages.incident_words import doing, happened
from relight.console.web.pages.incidents import rows
from relight.console.web.read_values import DetectorLine, IncidentLine, NowPage


async def view(asked: Asked) -> View:
    """The page."""
    page = await asked.desk.reading.now(asked.who)
    waits = f"{len(page.waiting)} waiting" if page.waiting else page.cluster
    return View(f"Now: {waits}", show(page))


def show(page: NowPage) -> tuple[Html, ...]:
    """Its blocks; what a person must do comes first."""
    waiting = [_waiting(line) for line in page.waiting]
    going = [line for line in page.opened if not line.waiting]
    busy = rows(going, "Open incidents, newest first") if going else None
    quiet = _quiet(page) if not (waiting or going) else None
    return (
        join(
            head(f"Cluster {page.cluster}", pill("all seen", "good") if page.well else pill("not all is seen", "bad")),
            notice("bad", page.problem) if page.problem and not page.well else None,
        ),
        _titled(f"{count(len(waiting), 'decision')} for you", tag("div", waiting, class_="stack"))
        if waiting
        else Html(),
        _titled("Relight is at work on", busy) if busy else quiet or Html(),
        _escalated(page) or Html(),
        tag("div", _standing(page), _detectors(page), _guard(page), class_="cards"),
        _titled("Ended within a day", rows(page.recent, "Incidents that ended, newest first"))
        if page.recent
        else Html(),
    )


def _titled(title: str, body: Html) -> Html:
    return tag("section", tag("h2", title), body, class_="tight")


def _waiting(line: IncidentLine) -> Html:
    left = tag("span", until(line.decide_until), class_="countdown") if line.decide_until else None
    ask = [link(path("incidents", line.id), happened(line), class_="go plan", id=f"row-{line.id}"), left]
    why = f"{line.summary or line.cause}. " if line.summary or line.cause else ""
    told = tag("p", why, tag("strong", doing(line)), f" {line.approvals}." if line.approvals else "")
    to = link(path("incidents", line.id), "Look and decide", class_="button", tabindex="-1")
    return tag("article", tag("div", ask, class_="ask"), told, tag("div", to, class_="form"), class_="decide")


def _quiet(page: NowPage) -> Html:
    last = page.recent[0] if page.recent else None
    told = [f"{count(page.running, 'job')} running, none interrupted."]
    if last and last.closed_at:
        told += [
            " The last incident, ",
            link(path("incidents", last.id), last.id),
            ", ended ",
            ago(last.closed_at),
            ".",
        ]
    title = "All quiet" if page.well else "No open incident, but not all is seen"
    return empty(title, told, fine=page.well)


def _escalated(page: NowPage) -> Html | None:
    if not page.escalated:
        return None
    lines = [
        notice(
            "warn", link(path("incidents", each.incident), f"Job {each.job_id}"), " ", ago(each.at), f": {each.todo}"
        )
        for each in page.escalated
    ]
    return _titled(f"{count(len(lines), 'incident')} ended with nothing done, and left to people", tag("div", lines))


def _standing(page: NowPage) -> Html:
    workers = [
        tag(
            "div",
            f"{each.worker}, {each.version} ",
            tag("span", "last sign ", ago(each.last_sign), class_="soft" if each.lives else "bad"),
        )
        for each in page.workers
    ]
    outbox = f"{count(page.undelivered, 'detection')} undelivered" if page.undelivered else "empty"
    pairs = [
        ("Mode", page.mode),
        ("Jobs", f"{page.running} running"),
        ("Incidents", f"{page.open} open"),
        ("Outbox", tag("span", outbox, class_="warn" if page.undelivered else None)),
        ("Worker", workers or tag("strong", "none has written to this ledger yet", class_="bad")),
    ]
    return card("Standing", facts(pairs))


def _detectors(page: NowPage) -> Html:
    if not page.detectors:
        return card("Detectors", tag("p", "No detector has reported yet.", class_="soft"))
    seen = [each for each in page.detectors if each.state == "sees"]
    bad = [_detector(each) for each in page.detectors if each.state != "sees"]
    fine = tag("p", f"{', '.join(each.name for each in seen)} see.", class_="soft") if seen else None
    return card("Detectors", tag("ul", bad, class_="tight"), fine)


def _detector(each: DetectorLine) -> Html:
    kind = "warn" if each.state == "waiting" else "bad"
    since = [" for ", lasting(each.since)] if each.since else []
    return tag(
        "li", pill(str(each.state), kind), " ", tag("strong", each.name), since, f": {each.why}" if each.why else ""
    )


def _guard(page: NowPage) -> Html | None:
    guard = page.guard
    if guard is None:
        return None
    state = "breaker not known" if guard.unknown else "breaker open" if guard.breaker_open else "breaker closed"
    told = [pill(state, "good" if state == "breaker closed" else "bad")]
    if guard.kill_switch:
        told.append(pill("kill switch on", "bad"))
    told += [pill(f"paused: {pause.where}", "warn") for pause in guard.pauses]
    return card("Guard", tag("p", join(*told, between=" ")), lines(guard.lines), class_="stack")
