"""The page of one incident: understood in ten seconds, decided with one click."""

from datetime import datetime

from relight.console.text import after, count, nodes, span
from relight.console.web.look import Child, Html, join, link, path, tag
from relight.console.web.look_parts import ago, badge, card, clock, facts, lasting, lines, notice, pill, until
from relight.console.web.pages.asked import View
from relight.console.web.pages.incident_cause import cause, ranks
from relight.console.web.pages.incident_words import doing, happened, tone_of, way
from relight.console.web.read_incident_values import (
    ApprovalView,
    IncidentPage,
    PlanView,
    Step,
    TryingPage,
)


def heading(page: IncidentPage, now: datetime) -> Html:
    """What happened, to which job, where, and what Relight does or did."""
    line = page.line
    length = (
        ["took ", span(line.closed_at - line.detected_at)]
        if line.closed_at
        else ["open for ", lasting(line.detected_at)]
    )
    crumbs = [
        link("/incidents", "Incidents"),
        tag("span", line.id, class_="mono"),
        badge(_state(page)),
        tag("span", length),
        tag("span", "detected ", ago(line.detected_at)),
    ]
    found = page.cause
    measure = f" ({found.category}, {found.confidence:.0%} sure)" if found else ""
    why = (
        (found.summary or found.signature) if found else "the cause is not known yet" if line.open else "not diagnosed"
    )
    told = [
        tag("div", crumbs, class_="crumbs"),
        tag("h1", happened(line)),
        tag("p", tag("span", "Why: ", class_="soft"), why, tag("span", measure, class_="soft"), class_="says"),
        tag("p", "Relight waits for a person to decide." if line.waiting else doing(line), class_="says strong"),
        [notice("warn", tag("strong", "To do: "), todo) for todo in page.todo],
    ]
    if page.approval and page.approval.waiting and page.approval.until and page.approval.until <= now:
        told.append(
            notice("bad", "It should have expired, and nobody has closed it: does the worker run? relight doctor")
        )
    return join(told)


def parts(
    page: IncidentPage,
    now: datetime,
    seen: str,
    *,
    answer: Html | None = None,
    sending: bool = False,
    beside: Html | None = None,
) -> View:
    """Its blocks.

    Args:
        page: the incident.
        now: the time.
        seen: digest of the plan that this person has before them; another one must be looked at first.
        answer: what became of the last word sent from here.
        sending: a word is on its way.
        beside: what is being tried right now.
    """
    waits = decision(page, seen, answer, sending=sending)
    return View(title(page), (heading(page, now), waits, beside or Html(), story(page, now)))


def title(page: IncidentPage) -> str:
    """For the browser's tab: what it is about, and whether it waits."""
    return f"{'! ' if page.line.waiting else ''}{happened(page.line)}"


def _state(page: IncidentPage) -> str:
    line = page.line
    return line.outcome or ("waiting for approval" if line.waiting else line.phase)


# --- the decision ----


def decision(page: IncidentPage, seen: str, answer: Html | None, *, sending: bool) -> Html:
    """What waits for a person, until when, what happens without an answer, and the two buttons; as for `parts`."""
    asked, plan = page.approval, page.plan
    told = tag("div", answer, class_="answer", role="status", id="answer") if answer else None
    if asked is None or plan is None or not asked.waiting:
        return join(told)
    if plan.digest != seen:
        again = tag("button", "Show me the new plan", type="button", class_="primary", data_send="look")
        body = notice(
            "bad", tag("strong", "The plan has changed while this page was open. "), "Look again before you decide."
        )
        return tag("section", body, tag("div", again, class_="form"), told, class_="decide", aria_label="Decision")
    left = tag("span", until(asked.until), class_="countdown") if asked.until else None
    ask = [tag("div", tag("div", "Proposed", class_="soft small"), tag("div", plan.words, class_="plan")), left]
    needs = [
        f"{asked.score}. " if asked.score else "",
        tag("span", f"Plan digest {plan.short_digest}. ", class_="soft"),
        asked.on_timeout,
    ]
    asks = [tag("div", ask, class_="ask"), tag("p", needs, class_="small")]
    return tag("section", asks, _buttons(asked, plan, sending=sending), told, class_="decide", aria_label="Decision")


def _buttons(asked: ApprovalView, plan: PlanView, *, sending: bool) -> Html:
    if not (asked.may_approve or asked.may_reject):
        who = f" These may: {', '.join(asked.able)}." if asked.able else ""
        return notice("", f"You can look, not decide: {asked.why_not or 'your role may not approve here'}.{who}")
    hint = "Reason: goes into the ledger; needed to reject"
    field = tag(
        "input",
        type="text",
        id="reason",
        name="reason",
        maxlength=2000,
        placeholder=hint,
        aria_label=hint,
        autocomplete="off",
    )
    yes = tag(
        "button",
        "Sending…" if sending else "Approve",
        type="button",
        class_="primary",
        id="approve",
        data_send="approve",
        data_digest=plan.digest,
        disabled=sending,
    )
    no = tag(
        "button",
        "Reject",
        type="button",
        class_="danger",
        id="reject",
        data_send="reject",
        data_digest=plan.digest,
        disabled=sending,
    )
    more = None
    if not asked.may_approve:
        more = tag("p", f"You may reject, not approve: {asked.why_not}", class_="small soft")
    return join(tag("div", field, asked.may_approve and yes, asked.may_reject and no, class_="form"), more)


# --- the story ----


def story(page: IncidentPage, now: datetime) -> Html:
    """Everything that does not change while one decides."""
    why, when = (cause(page), ranks(page)), _timeline(page, now)
    left = [*why, when] if page.line.waiting else [when, *why]
    right = [_job(page, now), _plan(page), _people(page, now), _links(page)]
    return tag("div", tag("div", left, class_="stack"), tag("div", right, class_="stack"), class_="columns")


def _timeline(page: IncidentPage, now: datetime) -> Html:
    legs = [
        tag(
            "li",
            tag("span", class_="bar"),
            tag("span", leg.name, class_="name"),
            tag(
                "span",
                span(leg.took) if leg.took is not None else lasting(leg.since) if leg.since else "-",
                class_="took",
            ),
            class_=leg.state or None,
        )
        for leg in way(page.line, page.steps)
    ]
    steps = [_step(step) for step in page.steps]
    return card(
        "Timeline",
        tag("ol", legs, class_="phases", aria_label="From the failure to verified progress"),
        tag("ol", steps, class_="line"),
        beside=["detected ", clock(page.line.detected_at, now)],
    )


def _step(step: Step) -> Html:
    took = tag("span", f"after {span(step.took)}" if step.took.total_seconds() > 0 else "", class_="took")
    what = tag("span", tag("strong", step.name.replace("_", " ")), f" {step.text}" if step.text else "", class_="what")
    offset = tag("span", after(step.since_detection), class_="off", title=f"{step.at:%Y-%m-%d %H:%M:%S} UTC")
    return tag("li", offset, what, took, class_=tone_of(step.name) or None)


def _job(page: IncidentPage, now: datetime) -> Html:
    line = page.line
    ran = (
        [nodes(page.job_nodes), tag("span", f" ({count(len(page.job_nodes), 'node')})", class_="soft")]
        if page.job_nodes
        else "not known"
    )
    pairs: list[tuple[Child, Child]] = [
        ("Job", link(path("jobs", line.job), f"{line.job} {line.job_name}")),
        ("Owner", line.user or "not known"),
        ("Cluster", f"{page.cluster}{f', partition {page.partition}' if page.partition else ''}"),
        ("Ran on", ran),
        ("Detected", [clock(line.detected_at, now), tag("span", f" as {line.kind}", class_="soft")]),
    ]
    if page.failed_step is not None:
        pairs.append(("Last step", page.failed_step))
    if page.restarts:
        pairs.append(("Restarts", page.restarts))
    suspects = [link(path("nodes", node), node) for node in line.nodes]
    if suspects:
        pairs.append(("Implicated", join(*suspects, between=" ")))
    return card("Job", facts(pairs))


def _plan(page: IncidentPage) -> Html | None:
    plan = page.plan
    if plan is None:
        return None
    rules = "; ".join(f"rule for {rule}" for rule in plan.policy_rules) or "no rule fits the job"
    pairs = [
        ("Actions", tag("span", plan.words, class_="strong")),
        ("Because", plan.reason),
        ("Mode", [pill(str(plan.mode), "soft"), f" {plan.mode_reason}"]),
        ("Needs", ", ".join(plan.rights) or "nobody"),
        ("Policy", f"{plan.policy_version or 'not told'}; {rules}"),
        ("Digest", tag("span", plan.digest[:12], class_="mono", title=plan.digest)),
    ]
    if plan.requeue_until:
        pairs.append(("Requeue", ["Slurm can requeue it: ", until(plan.requeue_until)]))
    if plan.fresh:
        pairs.append(("After that", tag("code", plan.fresh, class_="wrap")))
    return card("Plan", facts(pairs))


def _people(page: IncidentPage, now: datetime) -> Html | None:
    """What was said, allowed, done and read back."""
    said = page.approval.said if page.approval else ()
    pairs: list[tuple[Html, Html]] = []
    for each in said:
        verb = tag("span", "approved" if each.approved else "rejected", class_="good" if each.approved else "warn")
        bad = None if each.counts else tag("strong", f" not counted: {each.remark}", class_="bad")
        pairs.append(
            (
                clock(each.at, now),
                join(verb, f" by {each.by or 'an unverified sender'}{f': {each.reason}' if each.reason else ''}", bad),
            )
        )
    for leave in page.leaves:
        verb = tag("span", "granted" if leave.granted else "refused", class_="good" if leave.granted else "warn")
        pairs.append((clock(leave.at, now), join(f"guard: drain {leave.node} ", verb, f", {leave.reason}")))
    for deed in page.deeds:
        if not deed.intent:
            told = join(deed.name, tag("span", f" nothing written: {deed.effect}", class_="soft"))
        elif deed.effect is None:
            told = join(deed.intent, tag("strong", " meant, and not (yet) read back", class_="warn"))
        else:
            told = join(deed.intent, tag("span", f" → {deed.effect}", class_="good"))
        pairs.append((clock(deed.at, now), told))
    if not pairs and not page.verified:
        return None
    proof = [notice("good", f"Verified: {text}") for text in page.verified]
    return card("Decided and done", facts(pairs) if pairs else None, *proof, class_="stack")


def _links(page: IncidentPage) -> Html:
    line = page.line
    listed = [
        link(path("jobs", line.job), f"All of job {line.job}"),
        link(path("audit", incident=line.id), "Its rows in the audit trail"),
        page.temporal_url and link(page.temporal_url, "Workflow in the Temporal web UI", rel="noopener noreferrer"),
        page.previous and link(path("incidents", page.previous), f"The job's incident before: {page.previous}"),
        page.following and link(path("incidents", page.following), f"The job's next incident: {page.following}"),
    ]
    files = [
        tag("div", tag("span", "Log ", class_="soft"), tag("code", output, class_="wrap")) for output in page.outputs
    ]
    files += [
        tag("div", tag("span", "Kept ", class_="soft"), tag("code", output, class_="wrap")) for output in page.kept
    ]
    slurm = tag("div", tag("span", "Slurm ", class_="soft"), tag("code", f"scontrol show job {line.job}"))
    cli = tag("div", tag("span", "Here ", class_="soft"), tag("code", f"relight show {line.id}"))
    return card("Links", tag("div", listed, files, slurm, cli, class_="links"))


def trying(found: TryingPage) -> Html:
    """What is being tried right now, which Temporal alone knows."""
    return tag("div", lines(found.lines), class_="small") if found.lines else Html()
