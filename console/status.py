"""`relight status`: who watches, and what is seen. From the ledger alone, so right also while Temporal is down."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from relight.clients.ledger import Ledger
from relight.config.reading import Document, read
from relight.config.settings import ConfigError, Settings, load, named_file, read_settings
from relight.console import escalations, guard, notify
from relight.console.guard import Guarded
from relight.console.incidents import look
from relight.console.output import Part, grid, joined, words
from relight.console.text import ago, clean, count, local, span
from relight.domain.attempts import AttemptKey
from relight.domain.audit import AnchorState, AnchorStates, anchors_cursor
from relight.domain.detectors import LEAST_WITHIN, ON_DEMAND, Sees, Sight, WorkerReport, WorkerReports, sights_cursor
from relight.domain.incidents import Phase
from relight.domain.ledger import Backlog
from relight.domain.notices_channel import Standing as ChannelStanding

_FETCHED = 200
_SHOWN = 5
_STYLES = {Sees.SEES: "green", Sees.BLIND: "bold red", Sees.OVERDUE: "bold red", Sees.WAITING: "yellow"}


class Status(NamedTuple):
    """A cluster's watch as the ledger shows it."""

    cluster: str
    mode: str
    now: datetime
    workers: tuple[WorkerReport, ...]
    """Those that work, or the last that did; none: no worker has ever written."""
    sights: dict[str, Sight]
    backlog: Backlog
    waiting: tuple[str, ...]
    """Ids of incidents that wait for a person, newest first."""
    running: int
    """Attempts that run."""
    scores: tuple[str, ...] = ()
    """How far the approvals of those that wait are, in the same order."""
    escalated: tuple[escalations.Escalation, ...] = ()
    """Incidents that ended with nothing done, and left to people."""
    guarded: Guarded | None = None
    """How the guard stands."""
    file_problem: str = ""
    """Why the policy of this shell's settings file cannot be used; empty: it can."""
    anchors: AnchorStates = AnchorStates()
    """How the anchoring of the ledger's head goes."""
    channels: dict[str, ChannelStanding | None] = {}
    """How the channels stand by which people are told: what is wrong there disturbs nothing else."""

    @property
    def works(self) -> bool:
        """True while a worker works."""
        return any(worker.lives(self.now) for worker in self.workers)

    @property
    def late(self) -> bool:
        """True when a detection has not reached its incident for too long."""
        oldest = self.backlog.oldest
        return oldest is not None and self.now - oldest > LEAST_WITHIN

    @property
    def unseen(self) -> tuple[str, ...]:
        """Detectors that are blind or overdue."""
        return tuple(name for name, sight in self.sights.items() if not sight.sees(self.now))

    @property
    def well(self) -> bool:
        """True when all is watched and delivered, by the newest policy."""
        return self.works and not (self.unseen or self.late or self.refused or self.stopped)

    @property
    def stopped(self) -> bool:
        """True while the breaker is open, the kill switch is on, or neither is known."""
        return self.guarded is not None and self.guarded.stopped

    @property
    def refused(self) -> tuple[str, ...]:
        """Why newer policies of settings files are not in force."""
        told = (*(each.policy_problem for each in self.workers), self.file_problem)
        return tuple(dict.fromkeys(filter(None, told)))


def settings_of(config: Path | None) -> tuple[Settings, str]:
    """The settings, and what is wrong with their policy: a file that workers refuse must not hide how they do.

    Raises:
        ConfigError: something else is wrong with them too.
    """
    try:
        return load(config), ""
    except ConfigError as error:
        problem = str(error)
    file = named_file(config)
    document = read(file) if file else Document()
    values = {key: value for key, value in document.values.items() if key != "policy"}
    return read_settings(file, document._replace(values=values)), problem


async def collect(ledger: Ledger, settings: Settings, now: datetime, file_problem: str = "") -> Status:
    """Read it."""
    cluster = settings.cluster
    known = WorkerReports.model_validate(await ledger.cursor(sights_cursor(cluster)) or {})
    workers = known.counted(now)
    opened = await ledger.incidents(cluster=cluster, open_only=True, limit=_FETCHED)
    listed = await asyncio.gather(*(look(ledger, incident) for incident in opened))
    waiting = [each for each in listed if each.standing.phase is Phase.WAITING]
    return Status(
        cluster=cluster,
        mode=workers[0].mode if workers else str(settings.policy.ceiling),
        now=now,
        workers=workers,
        sights=known.sights(now),
        backlog=await ledger.backlog(cluster),
        waiting=tuple(each.incident.id for each in waiting),
        scores=tuple(each.standing.short_score for each in waiting),
        escalated=await escalations.collect(ledger, cluster, now),
        running=len(await ledger.running_attempts(cluster)),
        guarded=await guard.collect(ledger, settings, now),
        file_problem=file_problem,
        anchors=AnchorStates.model_validate(await ledger.cursor(anchors_cursor(cluster)) or {}),
        channels=await notify.standings(ledger, settings),
    )


def as_json(status: Status) -> dict[str, Any]:
    """For other programs; keys are only ever added."""
    now, backlog = status.now, status.backlog
    return {
        "cluster": status.cluster,
        "mode": status.mode,
        "at": now.isoformat(),
        "well": status.well,
        "workers": [
            {
                "worker": each.worker,
                "version": each.version,
                "started_at": each.started_at.isoformat(),
                "last_sign": each.written_at.isoformat(),
                "lives": each.lives(now),
                "policy": each.policy or None,
                "policy_problem": each.policy_problem or None,
            }
            for each in status.workers
        ],
        "detectors": {
            name: {
                "state": str(sight.state(now)),
                "last_success": sight.last.isoformat() if sight.last else None,
                "unseen_since": None if sight.sees(now) else sight.unseen_since().isoformat(),
                "why": "" if sight.sees(now) else sight.why(),
            }
            for name, sight in status.sights.items()
        },
        "guard": guard.as_json(status.guarded) if status.guarded else None,
        "incidents": {
            "open": backlog.open_incidents,
            "waiting": list(status.waiting),
            "approvals": dict(zip(status.waiting, status.scores, strict=True)),
            "escalated": escalations.as_json(status.escalated),
        },
        "refused": list(status.refused),
        "anchors": status.anchors.model_dump(mode="json")["places"],
        "channels": notify.as_json(status.channels),
        "outbox": {
            "undelivered": backlog.undelivered,
            "oldest": backlog.oldest.isoformat() if backlog.oldest else None,
        },
        "attempts": {
            "running": status.running,
            "unreadable": sum(each.unreadable_count for each in status.workers),
            "unreadable_outputs": {key: files for each in status.workers for key, files in each.unreadable.items()},
        },
    }


def tell(console: Console, status: Status) -> None:
    """Print it."""
    console.print(picture(status))


def picture(status: Status) -> RenderableType:
    """All of it, fit for 80 columns."""
    head = joined([(f"Cluster {status.cluster}", "bold"), (f"mode {status.mode}", "")])
    parts = [
        Part("Worker", _workers(status)),
        Part("Policy", _policies(status)),
        Part("Guard", guard.lines(status.guarded) if status.guarded else ()),
        Part("Incidents", (_incidents(status), *escalations.lines(status.escalated, status.now))),
        Part("Outbox", (_outbox(status),)),
        Part("Jobs", _jobs(status)),
        Part("Anchors", tuple(_anchor(name, state, status.now) for name, state in status.anchors.places.items())),
        Part("Notices", notify.lines(status.channels, status.now)),
    ]
    pieces: list[RenderableType] = [head, Text(), grid(parts), Text()]
    if status.sights:
        pieces += [_detectors(status), Text()]
    return Group(*pieces, sum_of(status))


def _workers(status: Status) -> tuple[Text, ...]:
    if not status.workers:
        return (words("none has written to this ledger yet", "bold red"),)
    return tuple(_worker(each, status.now) for each in status.workers)


def _worker(worker: WorkerReport, now: datetime) -> Text:
    sign = f"last sign {ago(worker.written_at, now)}"
    if not worker.lives(now):
        return joined(
            [(f"no worker has written for {span(now - worker.written_at)}", "bold red"), (worker.worker, "dim")]
        )
    return joined([(f"{worker.worker}, {worker.version}", ""), (f"up {span(now - worker.started_at)}, {sign}", "dim")])


def _policies(status: Status) -> tuple[Text, ...]:
    versions = dict.fromkeys(each.policy for each in status.workers if each.policy)
    differ = "; workers differ" if len(versions) > 1 else ""
    told = f"{', '.join(versions)}{differ}" if versions else "not told by any worker"
    lines = [words(told, "bold red" if differ else "" if versions else "dim")]
    return (*lines, *(words(f"the settings file is refused: {each}", "bold red", 400) for each in status.refused))


def _incidents(status: Status) -> Text:
    opened, waiting = status.backlog.open_incidents, len(status.waiting)
    if not opened:
        return words("none open")
    first = f"relight show {status.waiting[0]} ({status.scores[0]})" if waiting else ""
    more = f"{waiting} waiting for you: {first}" if waiting else "none waits for you"
    return joined([(f"{opened} open", ""), (more, "bold yellow" if waiting else "dim")])


def _outbox(status: Status) -> Text:
    backlog = status.backlog
    if not backlog.undelivered or backlog.oldest is None:
        return words("empty: every detection has reached its incident")
    text = f"{count(backlog.undelivered, 'detection')} undelivered, the oldest of {ago(backlog.oldest, status.now)}"
    return words(text, "bold red" if status.late else "")


def _anchor(name: str, state: AnchorState, now: datetime) -> Text:
    """One place where the ledger's head is kept."""
    last = f"row {state.seq} {ago(state.at, now)}" if state.at else "none yet"
    failing = f"failing for {span(now - state.since)}: {state.problem}" if state.since else ""
    return joined([(name, ""), (last, "dim"), (failing, "bold red")])


def _jobs(status: Status) -> tuple[Text, ...]:
    lines = [words(f"{status.running} running")]
    unreadable = sum(each.unreadable_count for each in status.workers)
    if unreadable:
        lines.append(words(f"the output of {unreadable} cannot be read:", "yellow"))
        named = [item for each in status.workers for item in each.unreadable.items()]
        lines += [words(f"job {_job_of(key)}: {files}", "yellow", 300) for key, files in named[:_SHOWN]]
        if unreadable > _SHOWN:
            lines.append(words(f"and {unreadable - _SHOWN} more", "yellow"))
    return tuple(lines)


def _job_of(attempt: str) -> str:
    try:
        return str(AttemptKey.parse(attempt).job_id)
    except ValueError:
        return attempt


def _detectors(status: Status) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("DETECTOR", no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    table.add_column("LAST SUCCESS", no_wrap=True)
    table.add_column("", overflow="fold")
    for name, sight in status.sights.items():
        state = sight.state(status.now)
        last = ago(sight.last, status.now) if sight.last else "never"
        table.add_row(words(name), words(state, _STYLES[state]), words(last), _remark(sight, status.now))
    return table


def _remark(sight: Sight, now: datetime) -> Text:
    if not sight.sees(now):
        since = f"since {local(sight.unseen_since(), now)}"
        return words(f"{since}: {sight.problem}" if sight.problem else since, limit=300)
    if sight.within >= ON_DEMAND:
        return words("looks only when asked", "dim")
    return words("its first look is still to come" if sight.state(now) is Sees.WAITING else "", "dim")


def sum_of(status: Status) -> Text:
    """Whether all is seen, in a sentence."""
    if status.well:
        return words("All detectors see.", "green")
    if not status.works:
        return words(
            "Nobody watches: start `relight worker controller`. Jobs run on as if Relight were not there.", "bold red"
        )
    told = [f"{clean(name)} {status.sights[name].state(status.now)}" for name in status.unseen]
    told += ["detections are not delivered"] if status.late else []
    if not told and status.stopped:
        return words("All detectors see, but Relight only observes: relight breaker", "bold red")
    if not told:
        return words("All detectors see, but the newest settings are refused: relight config check", "bold red")
    return words(f"Not all is seen: {', '.join(told)}.", "bold red")
