"""The cluster as a whole, the settings in force, and rows of the audit trail, as values."""

import os
from pathlib import Path

from relight.config.origins import notes, settings_in_force
from relight.config.problems import Source
from relight.config.reading import ConfigError, Document, field_name, read
from relight.config.settings import Settings, named_file
from relight.console import guard
from relight.console.escalations import Escalation
from relight.console.guard import Guarded
from relight.console.nodes import told_of
from relight.console.standing import step_of
from relight.console.status import Status
from relight.console.web.read_jobs import told
from relight.console.web.read_values import (
    ApproverLine,
    AuditLine,
    DetectorLine,
    EscalationLine,
    GuardView,
    PartitionLine,
    PauseLine,
    SettingRow,
    SettingsPage,
    WorkerLine,
)
from relight.domain.base import clip
from relight.domain.guard import NodeAct, part, recent
from relight.domain.ledger import Row
from relight.domain.policy_rules import version_of
from relight.domain.rights import Right, fingerprint

_SUMMARY = 300


def audit_line(row: Row) -> AuditLine:
    """A row of the audit trail with what it says in a few words."""
    name, text = step_of(row) or told_of(row)
    summary = text if name == row.kind or not text else f"{name}: {text}"
    return AuditLine(**row.model_dump(), summary=clip(summary or _first_words(row), _SUMMARY))


def _first_words(row: Row) -> str:
    """Of a row that no one tells in a line: what its body has of text."""
    return "; ".join(f"{key} {value}" for key, value in row.body.items() if isinstance(value, str | int) and value)


def worker_lines(status: Status) -> tuple[WorkerLine, ...]:
    """Those that work, or the last that did."""
    return tuple(
        WorkerLine(
            worker=each.worker,
            version=each.version,
            started_at=each.started_at,
            last_sign=each.written_at,
            lives=each.lives(status.now),
            policy=each.policy,
            policy_problem=each.policy_problem,
        )
        for each in status.workers
    )


def detector_lines(status: Status) -> tuple[DetectorLine, ...]:
    """The detectors; those that do not see first."""
    lines = (
        DetectorLine(
            name=name,
            state=str(sight.state(status.now)),
            sees=sight.sees(status.now),
            last=sight.last,
            since=None if sight.sees(status.now) else sight.unseen_since(),
            why="" if sight.sees(status.now) else sight.why(),
        )
        for name, sight in status.sights.items()
    )
    return tuple(sorted(lines, key=lambda line: (line.sees, line.name)))


def escalation_lines(found: tuple[Escalation, ...]) -> tuple[EscalationLine, ...]:
    """What is left to people."""
    return tuple(EscalationLine(incident=e.incident, job_id=e.job_id, at=e.at, todo=e.todo) for e in found)


def guard_view(guarded: Guarded) -> GuardView:
    """How the guard stands."""
    standing, policy, now = guarded.standing, guarded.policy, guarded.now
    grants = recent(standing.grants, now)
    trip = standing.trip
    return GuardView(
        breaker_open=trip is not None,
        breaker_since=trip.at if trip else None,
        breaker_why=str(trip) if trip else "",
        kill_switch=bool(standing.killed),
        kill_file=str(guarded.kill_file),
        unknown=standing.unknown,
        pauses=tuple(
            PauseLine(where=pause.where, by=pause.by, until=pause.until, reason=pause.reason)
            for pause in standing.paused(now)
        ),
        drains_used=sum(grant.action is NodeAct.DRAIN for grant in grants),
        drains_of=policy.drains_per_hour,
        downs_used=sum(grant.action is NodeAct.DOWN for grant in grants),
        downs_of=policy.downs_per_hour,
        partitions=tuple(
            PartitionLine(name=p.name, nodes=p.nodes, out=p.out, limit=part(policy.most_unavailable, p.nodes))
            for p in standing.partitions
        ),
        seen_at=standing.seen_at,
        lines=tuple(told(line) for line in guard.lines(guarded)),
    )


def settings_page(settings: Settings, config: Path | None) -> SettingsPage:
    """The settings in force here; blocks, as it reads the file again to tell where each comes from."""
    file, problem = named_file(config), ""
    document = Document()
    try:
        document = read(file) if file else document
    except ConfigError as error:
        problem = str(error)
    source = Source(file, document, os.environ)
    rows = settings_in_force(settings, source)
    policy = settings.policy
    return SettingsPage(
        cluster=settings.cluster,
        mode=str(policy.mode),
        policy_version=version_of(policy),
        rows=tuple(SettingRow(key=row.field, value=row.value, origin=row.origin) for row in rows),
        approvers=tuple(
            ApproverLine(
                name=each.name,
                may=tuple(map(str, each.may)),
                fingerprint=fingerprint(each.key),
                vouches_for=each.vouches_for,
                owner_may=tuple(map(str, each.owner_may)),
            )
            for each in settings.approvals.people
        ),
        needed={str(right): policy.approvers_needed([right]) for right in Right},
        notes=tuple(f"{field_name(note.place)}: {note.text}" for note in notes(settings)),
        file_problem=problem,
    )
