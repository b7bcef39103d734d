"""`relight audit`: the audit trail checked, listed and exported. It works on what lies there, without Temporal."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from relight.clients.anchors import LINES, AnchorError, read_anchors
from relight.clients.ledger import LedgerError
from relight.clients.ledger_audit import LedgerAudit, Wanted
from relight.config.settings import Settings
from relight.console import context
from relight.console.context import check_there
from relight.console.errors import NotFoundStop, Stop
from relight.console.lookup import attempts_of, find_incident, parse_job
from relight.console.nodes import told_of
from relight.console.output import joined, words
from relight.console.standing import step_of
from relight.console.text import count, local
from relight.domain.audit import Anchor, Report
from relight.domain.audit_events import HAS_ACTOR, SERVICE, actor, as_cloudevent, as_row, is_of
from relight.domain.ledger import Row


class NotCheckedStop(Stop):
    """Nothing was found out: neither that it is whole, nor that it is not."""

    exit_code = 2


@contextmanager
def opened(settings: Settings) -> Iterator[LedgerAudit]:
    """The ledger, to be read only."""
    check_there(settings)
    audit = LedgerAudit.open(settings.ledger_url, settings.ledger_key)
    try:
        yield audit
    finally:
        audit.close()


def verify(settings: Settings, files: Iterable[Path], say: Any) -> Report:
    """Check all of it, by the anchors in these files and in those that the settings name.

    Raises:
        NotCheckedStop: the ledger, its key or an anchor's file cannot be read.
    """
    try:
        anchors = list(_anchors(settings, files))
        with opened(settings) as audit:
            return audit.verify(anchors, cluster=settings.cluster, say=say)
    except (LedgerError, AnchorError) as error:
        raise NotCheckedStop(f"not checked: {error}") from error
    except Stop as error:
        raise NotCheckedStop(f"not checked: {error.message}") from error


def _anchors(settings: Settings, files: Iterable[Path]) -> Iterator[tuple[str, Anchor]]:
    given = list(files)
    for each in settings.audit.anchor:
        path = Path(each.file or each.git).expanduser()
        # One that no anchor has come to yet is not there; one that is named here must be.
        if (each.file or each.git) and path not in given and (path / LINES if each.git else path).exists():
            given.append(path)
    for path in given:
        for anchor in read_anchors(path):
            yield str(path), anchor


def tell(console: Console, report: Report) -> None:
    """Print what was found, and what that rests on."""
    for finding in report.findings:
        where = f"row {finding.seq}" if finding.seq is not None else "end"
        pieces = [(where, "bold red"), (str(finding.rule), "red"), (finding.incident, "dim")]
        console.print(joined(pieces))
        console.print(words(f"  expected {finding.expected}", limit=500))
        console.print(words(f"  found    {finding.found}", limit=500))
    if report.found > len(report.findings):
        console.print(words(f"and {report.found - len(report.findings)} more", "red"))
    head = f"head {report.head[:16]}" if report.head else "empty"
    console.print(joined([(count(report.rows, "row"), ""), (head, "dim"), (count(report.anchors, "anchor"), "")]))
    if report.unproven:
        text = f"{count(report.unproven, 'decision')} of version 0.1, whose signatures were not kept: believed"
        console.print(words(text, "yellow"))
    if not report.anchors:
        text = (
            "No anchor was looked at: a ledger put back as a whole to an earlier state would not show (audit.anchor)."
        )
        console.print(words(text, "yellow"))
    if report.ok:
        console.print(words("Nothing was changed, and nothing was done that should not have been.", "green"))
    else:
        console.print(words(f"{count(report.found, 'finding')}: docs/audit.md says what to do.", "bold red"))


class Filters(NamedTuple):
    """Which rows are shown."""

    wanted: Wanted
    who: str = ""


_INCIDENT = re.compile(r"i[0-9a-f]{1,10}", re.IGNORECASE)


async def named(settings: Settings, incident: str, job: str) -> tuple[str, tuple[str, ...] | None]:
    """The incident and the attempts that are meant; None: of any job.

    Raises:
        NotFoundStop: there is no such incident or job.
    """
    if not incident and not job:
        return "", None
    async with context.opened(settings) as ledger:
        if _INCIDENT.fullmatch(incident):
            incident = (await find_incident(ledger, settings, incident)).id
        if not job:
            return incident, None
        name = parse_job(job)
        states = await attempts_of(ledger, settings.cluster, name) if name else ()
    if not states:
        raise NotFoundStop(f"no job {job} was ever seen running; accepted: 123, 123_4 (array task), 123+1 (component)")
    return incident, tuple(str(state.attempt.key) for state in states)


def rows(settings: Settings, filters: Filters, *, backwards: bool = False) -> Iterator[Row]:
    """Those that fit, in the order written, or the newest first."""
    wanted = filters.wanted
    if filters.who and filters.who != SERVICE and not wanted.kinds:
        wanted = wanted._replace(kinds=HAS_ACTOR)
    with opened(settings) as audit:
        for row in audit.rows(wanted, backwards=backwards):
            if not filters.who or is_of(row, filters.who):
                yield row


def line_of(row: Row, *, cloudevents: bool) -> str:
    """One line of an export, in pure ASCII."""
    return json.dumps(as_cloudevent(row) if cloudevents else as_row(row), ensure_ascii=True, separators=(",", ":"))


def print_rows(console: Console, found: Iterable[Row], now: datetime) -> None:
    """A table, the newest last."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("ROW", "TIME", "INCIDENT", "NODE", "WHO", "WHAT"):
        table.add_column(name, no_wrap=True)
    table.add_column("", overflow="fold")
    for row in found:
        name, text = step_of(row) or told_of(row)
        cells = (str(row.seq), local(row.at, now), row.incident, row.node, actor(row), name)
        table.add_row(*(words(cell, limit=60) for cell in cells), words(text, "", 200))
    console.print(table)


def as_json(report: Report) -> dict[str, Any]:
    """For other programs; keys are only ever added."""
    return {"ok": report.ok, **report.model_dump(mode="json")}
