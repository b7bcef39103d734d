"""What the console's pages and its HTTP API read: the one place where it is decided who may see what.

Everything comes from the ledger but what an open incident is trying right now, which Temporal alone knows. Lists are
cut in SQL; what reads a whole page does not grow with the ledger.

Raises everywhere: `Refused` and `NotThere` (console.web.errors), and `Unreachable` or a `LedgerError` while the
database is away.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from relight.clients.ledger import LedgerError
from relight.clients.ledger_pages import Counted, Key, LedgerPages, Wanted, WantedJobs, WantedRows
from relight.clients.ledger_rows import stamp
from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import Settings
from relight.console import escalations, explain, guard, pending
from relight.console.context import web_link
from relight.console.errors import NotFoundStop
from relight.console.explain import Try
from relight.console.lookup import JobName, parse_job
from relight.console.status import Status, sum_of
from relight.console.web import read_cluster as cluster
from relight.console.web import read_feed
from relight.console.web.decisions_judge import Judge
from relight.console.web.errors import NotThere, Refused, Unreachable
from relight.console.web.read_feed import Feed
from relight.console.web.read_incident import approval_of, page
from relight.console.web.read_incident_values import IncidentPage, JobPage, Trying, TryingPage
from relight.console.web.read_jobs import job_line, job_page
from relight.console.web.read_lines import STANDS_BY, cursor, key_of, line, number_of
from relight.console.web.read_nodes import Nodes, node_page
from relight.console.web.read_shelf import Shelf
from relight.console.web.read_values import (
    Ask,
    AuditFilter,
    AuditLine,
    Changes,
    IncidentFilter,
    IncidentLine,
    JobFilter,
    JobLine,
    NodeFilter,
    NodeLine,
    NodePage,
    NowPage,
    Page,
    SettingsPage,
    Told,
)
from relight.console.web.roles import Identity, May
from relight.domain.attempts import AttemptState
from relight.domain.detectors import WorkerReports, sights_cursor
from relight.domain.incidents import Incident, Phase

MOST_WAITING = 500
"""Open incidents that are looked through for those that wait for people."""
MOST_OPEN, MOST_RECENT = 50, 20
_RECENT = timedelta(days=1)


class Reading:
    """Reads for one cluster."""

    def __init__(
        self,
        shelf: Shelf,
        settings: Settings,
        judge: Judge,
        *,
        now: Callable[[], datetime],
        config: Path | None = None,
    ) -> None:
        self._shelf = shelf
        self._settings = settings
        self._cluster = settings.cluster
        self._judge = judge
        self._now = now
        self._config = config
        self._nodes = Nodes(shelf, settings.cluster)
        self.feed = Feed(shelf)

    @property
    def ledger(self) -> SqlLedger:
        """The ledger.

        Raises:
            Unreachable: it is not open (yet).
        """
        return self._shelf.ledger

    async def warm(self) -> None:
        """Read ahead what takes long the first time; where it cannot be read, it is when it is asked for."""
        with suppress(Unreachable, LedgerError):
            await self._nodes.warm(self._now())

    @property
    def _ledger(self) -> SqlLedger:
        return self._shelf.ledger

    @property
    def _pages(self) -> LedgerPages:
        return self._shelf.pages

    # --- the cluster --------------------------------------------------------------------------------------------------

    async def now(self, who: Identity) -> NowPage:
        """The cluster now; of what concerns all, a `user` sees whether all is well."""
        at, all_of_it = self._now(), who.may(May.SEE_ALL)
        waiting = await self.waiting(who)
        status = await self._status(at, waiting)
        mine = Wanted(cluster=self._cluster, users=_own(who))
        open_ones = mine._replace(open=True)
        opened = await self._pages.incidents(open_ones, MOST_OPEN)
        recent = await self._pages.incidents(mine._replace(open=False, closed_since=at - _RECENT), MOST_RECENT)
        lines = await self._lines([*opened, *recent])
        left = await escalations.collect(self._ledger, self._cluster, at)
        if not all_of_it:
            known = [await self._ledger.incident(each.incident) for each in left]
            left = tuple(e for e, i in zip(left, known, strict=True) if i and who.sees(i.user))
        problem = "" if status.well else sum_of(status).plain
        return NowPage(
            cluster=self._cluster,
            mode=status.mode,
            at=at,
            well=status.well,
            problem=problem
            if all_of_it or not problem
            else "Not all is well with the watch: your administrators see what.",
            workers=cluster.worker_lines(status) if all_of_it else (),
            detectors=cluster.detector_lines(status) if all_of_it else (),
            guard=cluster.guard_view(status.guarded) if all_of_it and status.guarded else None,
            open=await self._pages.count_incidents(open_ones),
            waiting=waiting,
            opened=lines[: len(opened)],
            recent=lines[len(opened) :],
            escalated=cluster.escalation_lines(left),
            undelivered=status.backlog.undelivered if all_of_it else 0,
            oldest_undelivered=status.backlog.oldest if all_of_it else None,
            running=await self._pages.count_running(self._cluster, _own(who)),
            unreadable_outputs=sum(each.unreadable_count for each in status.workers) if all_of_it else 0,
        )

    async def _status(self, at: datetime, waiting: Sequence[IncidentLine]) -> Status:
        known = WorkerReports.model_validate(await self._ledger.cursor(sights_cursor(self._cluster)) or {})
        workers = known.counted(at)
        return Status(
            cluster=self._cluster,
            mode=workers[0].mode if workers else str(self._settings.policy.ceiling),
            now=at,
            workers=workers,
            sights=known.sights(at),
            backlog=await self._ledger.backlog(self._cluster),
            waiting=tuple(each.id for each in waiting),
            running=0,
            guarded=await guard.collect(self._ledger, self._settings, at),
        )

    async def settings(self, who: Identity) -> SettingsPage:
        """The settings in force in this process."""
        _need(who, May.SEE_SETTINGS)
        return await asyncio.to_thread(cluster.settings_page, self._settings, self._config)

    async def changes(self, who: Identity, after: int, limit: int = read_feed.MOST) -> Changes:
        """What was written since; a `user` is told that something was, not what."""
        new = await read_feed.since(self._pages, after, limit)
        return new if who.may(May.SEE_ALL) else Changes(cursor=new.cursor, more=new.any)

    # --- incidents ----------------------------------------------------------------------------------------------------

    async def incidents(self, who: Identity, wanted: IncidentFilter, ask: Ask) -> Page[IncidentLine]:
        """Those that fit, newest first."""
        users = _users(who, wanted.user)
        if users is None:
            return Page(total=0)
        fields = wanted.model_dump(include=set(IncidentFilter.model_fields) - {"user", "job"})
        asked = Wanted(cluster=self._cluster, users=users, job_id=wanted.job, **fields)
        found = await self._pages.incidents(asked, ask.limit + 1, key_of(ask.cursor))
        shown = found[: ask.limit]
        last = Key(stamp(shown[-1].opened_at), shown[-1].id) if len(found) > ask.limit else None
        total = await self._pages.count_incidents(asked)
        return Page(items=await self._lines(shown), next=cursor(last), total=total)

    async def waiting(self, who: Identity) -> tuple[IncidentLine, ...]:
        """Those that wait for people, the soonest time-out first."""
        asked = Wanted(cluster=self._cluster, open=True, phase=Phase.PLANNING, users=_own(who))
        lines = await self._lines(await self._pages.incidents(asked, MOST_WAITING))
        waiting = [each for each in lines if each.waiting]
        return tuple(sorted(waiting, key=lambda each: (each.decide_until is None, each.decide_until, each.id)))

    async def _lines(self, incidents: Sequence[Incident]) -> tuple[IncidentLine, ...]:
        open_ones = [incident.id for incident in incidents if incident.open]
        rows = await self._pages.rows_of(open_ones, STANDS_BY)
        names = await self._pages.display_ids([incident.attempt for incident in incidents])
        return tuple(line(each, rows.get(each.id, ()), names.get(each.attempt, "")) for each in incidents)

    async def incident(self, who: Identity, name: str) -> IncidentPage:
        """All that is told of one, by its id or an unambiguous beginning of it."""
        incident = await self._found(who, name)
        rows = await self._ledger.rows(incident=incident.id)
        attempt = await self._ledger.attempt(incident.attempt)
        stands = approval_of(incident, rows)
        approval = self._judge.seen_by(who, incident, rows, stands) if stands else None
        link = web_link(self._settings, incident) if who.may(May.SEE_ALL) else ""
        beside = await self._pages.beside(incident)
        return page(incident, rows, attempt, beside=beside, temporal_url=link, approval=approval)

    async def _found(self, who: Identity, name: str) -> Incident:
        incident = await self._ledger.incident(name.strip().lower())
        # To whom it is not shown it is not there: that there is one is a fact about somebody else's job.
        if incident is None or incident.attempt.cluster != self._cluster or not who.sees(incident.user):
            raise NotThere(f"no incident {name[:40]}")
        return incident

    async def trying(self, who: Identity, name: str) -> TryingPage:
        """What an open incident is trying right now: asked of Temporal, for 3 s at most."""
        incident = await self._found(who, name)
        if not incident.open:
            return TryingPage()
        known = await pending.ask(self._settings, incident)
        lines = tuple(Told(text=text, tone="warn" if bad else "quiet") for text, bad in pending.sentences(known))
        return TryingPage(
            trying=tuple(Trying(**each._asdict()) for each in known.trying), unknown=known.unknown, lines=lines
        )

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def jobs(self, who: Identity, wanted: JobFilter, ask: Ask) -> Page[JobLine]:
        """Those that fit, the one last begun first."""
        users = _users(who, wanted.user)
        if users is None:
            return Page()
        asked = WantedJobs(self._cluster, wanted.running, users, wanted.job, wanted.text)
        found = await self._pages.jobs(asked, ask.limit + 1, key_of(ask.cursor))
        shown = found[: ask.limit]
        last = shown[-1].attempt if len(found) > ask.limit else None
        following = cursor(Key(stamp(last.seen_at), str(last.key)) if last else None)
        return Page(items=await self._job_lines(shown), next=following)

    async def _job_lines(self, states: Sequence[AttemptState]) -> tuple[JobLine, ...]:
        counted = await self._pages.counted([state.attempt.lineage for state in states])
        progress = await self._pages.progress([state.attempt.key for state in states])
        return tuple(
            job_line(state, progress.get(state.attempt.key), counted.get(state.attempt.lineage, Counted()))
            for state in states
        )

    async def job(self, who: Identity, name: str) -> JobPage:
        """All that is told of one: `123`, `123_4`, `123+1`, or a lineage."""
        asked = await self._job_named(name)
        missing = NotThere(f"no job {name[:40]} that Relight saw running")
        if asked is None:
            raise missing
        try:
            life = await explain.collect(self._ledger, self._settings, asked)
        except NotFoundStop:
            raise missing from None
        newest = next((each.state for each in reversed(life.tries) if each.state), None)
        if newest is None or not who.sees(newest.attempt.record.user):
            raise missing
        if not who.may(May.SEE_ALL):
            life = life._replace(tries=tuple(_only(each, who) for each in life.tries if each.state))
        lineage = newest.attempt.lineage
        told = job_page(life, (await self._pages.counted([lineage]))[lineage], self._now())
        if told is None:
            raise missing
        return told

    async def _job_named(self, name: str) -> JobName | None:
        if job := parse_job(name):
            return job
        state = await self._pages.of_lineage(name.strip())
        # A lineage's attempts keep their Slurm id: the job is told by it, its newest lineage first.
        return parse_job(state.attempt.record.display_id) if state else None

    # --- nodes and rows -----------------------------------------------------------------------------------------------

    async def nodes(self, who: Identity, wanted: NodeFilter, ask: Ask) -> Page[NodeLine]:
        """Those that are or were in care, those in care first."""
        _need(who, May.SEE_ALL)
        key = key_of(ask.cursor)
        found = await self._nodes.page(wanted, ask, key.id if key else "", self._now())
        return found.model_copy(update={"next": cursor(Key("", found.next)) if found.next else ""})

    async def node(self, who: Identity, name: str) -> NodePage:
        """All that is told of one."""
        _need(who, May.SEE_ALL)
        found = await self._nodes.story(name, self._now())
        if found is None:
            raise NotThere(f"the ledger knows nothing of a node {name[:80]} on cluster {self._cluster}")
        return node_page(found)

    async def audit(self, who: Identity, wanted: AuditFilter, ask: Ask) -> Page[AuditLine]:
        """Rows of the audit trail, newest first."""
        _need(who, May.SEE_ALL)
        asked = WantedRows(cluster=self._cluster, **wanted.model_dump(include=set(AuditFilter.model_fields)))
        found = await self._pages.rows(asked, ask.limit + 1, number_of(ask.cursor))
        shown = found[: ask.limit]
        following = str(shown[-1].seq) if len(found) > ask.limit else ""
        return Page(items=tuple(map(cluster.audit_line, shown)), next=following)


def _only(attempt: Try, who: Identity) -> Try:
    """Without incidents of another user's job that had the same Slurm id."""
    return attempt._replace(cases=tuple(case for case in attempt.cases if who.sees(case.incident.user)))


def _need(who: Identity, what: May) -> None:
    if not who.may(what):
        raise Refused(f"{who.name} is {who.role} here: that role may not {what}")


def _own(who: Identity) -> tuple[str, ...]:
    """Whose jobs this person sees: empty for everybody's."""
    return () if who.may(May.SEE_ALL) else (who.name,)


def _users(who: Identity, wanted: str) -> tuple[str, ...] | None:
    """Whose jobs are shown where one user's are wanted: empty for everybody's, None for nobody's."""
    if not wanted:
        return _own(who)
    return (wanted,) if who.sees(wanted) else None
