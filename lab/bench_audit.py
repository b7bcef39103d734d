"""How long it takes to check the audit trail, and whether every change of a random row is found."""

import itertools
import os
import platform
import random
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from relight.clients.ledger_audit import LedgerAudit
from relight.clients.ledger_key import read_key
from relight.clients.ledger_schema import connect
from relight.domain.plan import Mode
from relight.lab.audit_edits import KINDS, drawn
from relight.lab.audit_story import Stored, Story, fill, stored

ROWS = 1_000_000
EDITS = 1_000
ASKED_EVERY = 10
"""Every tenth incident was approved by a person: its signature is verified."""


def audit_bench(
    rows: int = ROWS, edits: int = EDITS, say: Callable[[str], None] = lambda _: None, *, seed: int = 8
) -> dict[str, Any]:
    """Check a ledger of so many rows, and make so many edits on a small one.

    Returns:
        `audit_rows`, `audit_verify_s` (wall time), `audit_peak_mib` (the checking process and its child, the larger),
        `audit_edits_tried`, `audit_edits_found`, `audit_edits_by_kind`, `machine`.
    """
    folder = Path(tempfile.mkdtemp(prefix="relight-bench-audit-"))
    try:
        measured = _verified(folder, rows, say)
        return {**measured, **_edited(folder, edits, seed, say), "machine": _machine()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}


def _verified(folder: Path, rows: int, say: Callable[[str], None]) -> dict[str, Any]:
    url, key = f"sqlite:///{folder}/many.db", folder / "many.key"
    say(f"writing {rows} rows")
    fill(url, key, itertools.islice(_many(), rows))
    audit = LedgerAudit.open(url, key)
    began = time.perf_counter()
    report = audit.verify()
    took = time.perf_counter() - began
    audit.close()
    if not report.ok:
        raise RuntimeError(f"what was just written does not verify: {report.findings[0]}")
    say(f"checked in {took:.1f} s")
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"audit_rows": report.rows, "audit_verify_s": round(took, 2), "audit_peak_mib": max(usage) // 1024}


def _many() -> Iterator[Stored]:
    """Rows of one incident after the other; most are made from one that is made as the activities make it."""
    like = Story(0)
    template = list(stored(like.rows()))
    for number in itertools.count(1):
        if number % ASKED_EVERY == 0:
            yield from stored(Story(number, Mode.APPROVE).rows())
            continue
        attempt = like.attempt.model_copy(update={"job_id": 1_000_000_000 + number})
        names = {
            str(like.attempt): str(attempt),
            like.attempt.workflow_id: attempt.workflow_id,
            like.run_id: f"f{number:031x}",
            like.incident: f"i{number:010x}",
        }
        yield from (_renamed(row, names) for row in template)


def _renamed(row: Stored, names: dict[str, str]) -> Stored:
    made = dict(row)
    for column in ("id", "incident", "attempt", "body"):
        for old, new in names.items():
            made[column] = made[column].replace(old, new)
    return made


def _edited(folder: Path, edits: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    path, key = folder / "few.db", folder / "few.key"
    stories = (Story(1), Story(2, Mode.APPROVE), Story(3, Mode.APPROVE, needed=2))
    fill(f"sqlite:///{path}", key, stored(row for story in stories for row in story.rows()))
    dice, by_kind = random.Random(seed), {kind: {"tried": 0, "found": 0} for kind in KINDS}
    engine, secret = connect("sqlite://"), read_key(key)
    raw: Any = engine.raw_connection().driver_connection
    audit = LedgerAudit(engine, secret or b"")
    with closing(sqlite3.connect(path)) as whole:
        for name in ("ledger_no_update", "ledger_no_delete", "ledger_no_replace"):
            whole.execute(f"DROP TRIGGER {name}")
        whole.commit()
        for number in range(edits):
            whole.backup(raw)
            kind = KINDS[number % len(KINDS)]
            edit = drawn(kind, raw, dice)
            found = not audit.verify().ok
            by_kind[kind]["tried"] += 1
            by_kind[kind]["found"] += found
            if not found:
                say(f"NOT FOUND: {edit}")
    audit.close()
    total = sum(each["found"] for each in by_kind.values())
    return {"audit_edits_tried": edits, "audit_edits_found": total, "audit_edits_by_kind": by_kind}
