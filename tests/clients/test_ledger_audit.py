"""Checking the audit trail on real databases: whatever is changed in it is found, and named."""

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients import ledger_lives
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.ledger_audit import LedgerAudit, Wanted
from relight.clients.ledger_chain import COLUMNS, row_text
from relight.clients.ledger_key import read_key
from relight.clients.ledger_schema import connect
from relight.clients.ledger_sql import SqlLedger
from relight.domain.audit import Anchor, Report, Rule
from relight.domain.base import canonical_json
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.plan import Mode
from relight.lab.audit_edits import KINDS, drawn
from relight.lab.audit_story import Story, write

TRIALS = 1000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger of three incidents, its key, and no triggers: its owner may do what he likes."""
    folder = tmp_path_factory.mktemp("audit")
    stories = (Story(1), Story(2, Mode.APPROVE), Story(3, Mode.APPROVE, needed=2))
    write(f"sqlite:///{folder}/l.db", folder / "key", (row for story in stories for row in story.rows()))
    with closing(sqlite3.connect(folder / "l.db")) as raw, raw:
        for name in ("ledger_no_update", "ledger_no_delete", "ledger_no_replace"):
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute("PRAGMA journal_mode = DELETE")
    return folder


def checked(db: Path, key: Path, *anchors: Anchor) -> Report:
    audit = LedgerAudit.open(f"sqlite:///{db}", key)
    try:
        return audit.verify([("elsewhere", anchor) for anchor in anchors], cluster="main")
    finally:
        audit.close()


def anchored(db: Path, key: Path) -> Anchor:
    ledger = SqlLedger.open(f"sqlite:///{db}", key, clock=lambda: datetime(2026, 12, 1, tzinfo=UTC))
    try:
        anchor = asyncio.run(ledger.anchor("main"))
    finally:
        ledger.close()
    assert anchor
    return anchor


@given(st.lists(st.text(), min_size=10, max_size=10), st.integers())
def test_a_rows_text_is_its_canonical_json(values, seq):
    """The fast way and the plain one agree on every text; the hashes of version 0.1 stay as they are."""
    row = dict(zip(COLUMNS, [seq, *values], strict=False))
    assert row_text([seq, *values]) == canonical_json(row)


def test_a_whole_ledger_is_whole(small):
    """With and without an anchor, signatures and all."""
    report = checked(small / "l.db", small / "key", anchored(small / "l.db", small / "key"))
    assert (report.ok, report.rows, report.anchors, report.unproven) == (True, 51, 1, 0), report.findings


def test_every_edit_of_a_random_row_is_found(small):
    """1,000 edits of all kinds, each by somebody with full rights on the database, who lacks the key and the anchor."""
    dice = random.Random(8)  # noqa: S311
    anchors, tried = [("elsewhere", anchored(small / "l.db", small / "key"))], dict.fromkeys(KINDS, 0)
    engine, key = connect("sqlite://"), read_key(small / "key")
    raw = engine.raw_connection().driver_connection
    audit = LedgerAudit(engine, key)
    with closing(sqlite3.connect(small / "l.db")) as whole:
        for n in range(TRIALS):
            whole.backup(raw)
            kind = KINDS[n % len(KINDS)]
            edit = drawn(kind, raw, dice)
            report = audit.verify(anchors, cluster="main")
            assert not report.ok, edit
            near = [each.seq for each in report.findings if each.seq is not None]
            assert edit.seq is None or any(abs(seq - edit.seq) <= 1 for seq in near), (edit, report)
            tried[kind] += 1
    audit.close()
    assert min(tried.values()) >= TRIALS // len(KINDS)


def test_what_only_an_anchor_shows(small, tmp_path):
    """An older copy put back as a whole is sound by itself; so is one that was begun anew with the key."""
    older = tmp_path / "older.db"
    shutil.copy(small / "l.db", older)
    newer = tmp_path / "newer.db"
    shutil.copy(small / "l.db", newer)
    ledger = SqlLedger.open(f"sqlite:///{newer}", small / "key")
    entry = Entry(id="x", kind=RowKind.NOTE, at=datetime.now(UTC), cluster="main", body={"text": "later"})
    asyncio.run(ledger.commit(Change(entries=(entry,))))
    ledger.close()
    anchor = anchored(newer, small / "key")
    assert checked(newer, small / "key", anchor).ok
    assert checked(older, small / "key").ok
    (finding,) = checked(older, small / "key", anchor).findings
    assert (finding.rule, finding.seq, finding.found) == (Rule.ANCHOR, 52, "the ledger ends with row 51")
    shutil.copy(small / "key", tmp_path / "key")
    write(f"sqlite:///{tmp_path}/anew.db", tmp_path / "key", [*Story(1).rows(), *Story(2).rows(), *Story(4).rows() * 2])
    wrong = checked(tmp_path / "anew.db", small / "key", anchored(small / "l.db", small / "key")).findings
    assert {each.rule for each in wrong} == {Rule.ANCHOR}


def test_an_anchor_that_was_changed_is_told(small):
    """Its MAC is by the ledger's key; one of another cluster is of another ledger."""
    anchor = anchored(small / "l.db", small / "key")
    (finding,) = checked(small / "l.db", small / "key", anchor.model_copy(update={"seq": 3})).findings
    assert (finding.rule, finding.seq) == (Rule.ANCHOR, 3)
    other = checked(small / "l.db", small / "key", anchor.model_copy(update={"cluster": "east", "seq": 99}))
    assert (other.ok, other.anchors) == (True, 0)


def test_a_row_forged_with_the_key_is_told_by_its_life(small, tmp_path):
    """Who holds key and database can make a row that the chain takes; not one that people have signed."""
    copy = tmp_path / "copy.db"
    shutil.copy(small / "l.db", copy)
    asked = Story(7, Mode.APPROVE)
    ledger = SqlLedger.open(f"sqlite:///{copy}", small / "key")
    asyncio.run(ledger.commit(Change(entries=(*asked.before(), *asked.after()))))
    ledger.close()
    report = checked(copy, small / "key")
    assert {each.rule for each in report.findings} == {Rule.APPROVAL}


def test_findings_are_bounded(small, tmp_path):
    """A ledger of which nothing fits gives a report of bounded size, and the whole number."""
    copy = tmp_path / "copy.db"
    shutil.copy(small / "l.db", copy)
    with closing(sqlite3.connect(copy)) as raw, raw:
        raw.execute("UPDATE ledger SET hash = 'x' || hash")
        big = [("n" * 9, n, f"p{n}") for n in range(52, 400)]
        raw.executemany(
            "INSERT INTO ledger SELECT ?2, ?1 || ?2, kind, at, cluster, '', '', '', '', body, ?3, '' FROM ledger"
            " WHERE seq = 1",
            big,
        )
    report = checked(copy, small / "key")
    assert len(report.findings) == 200
    assert report.found > 400


@pytest.mark.parametrize("missing", ["key", "ledger"])
def test_nothing_is_made_by_checking(tmp_path, missing):
    """Without the key nothing is proven, and what is no ledger does not become one."""
    if missing == "key":
        SqlLedger.open(f"sqlite:///{tmp_path}/l.db", tmp_path / "key").close()
        (tmp_path / "key").unlink()
    else:
        SqlLedger.open(f"sqlite:///{tmp_path}/other.db", tmp_path / "key").close()
    with pytest.raises(LedgerUnavailableError, match=missing):
        LedgerAudit.open(f"sqlite:///{tmp_path}/l.db", tmp_path / "key")
    assert (tmp_path / "key").exists() is (missing == "ledger")


@pytest.fixture(scope="module")
def audit(small) -> Iterator[LedgerAudit]:
    made = LedgerAudit.open(f"sqlite:///{small}/l.db", small / "key")
    yield made
    made.close()


SECOND = Story(2, Mode.APPROVE)


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ({}, range(1, 52)),
        ({"incident": SECOND.incident}, range(17, 34)),
        ({"attempts": (str(SECOND.attempt),)}, range(17, 34)),
        ({"attempts": ()}, []),
        ({"node": SECOND.node}, [25, 28, 29]),
        ({"kinds": (RowKind.DECISION,)}, [21, 38, 39]),
        ({"since": SECOND.at(76), "until": SECOND.at(78), "incident": SECOND.incident}, [30, 31]),
    ],
)
def test_rows_are_filtered(audit, wanted, rows):
    """By incident, job, node, kind and time; forwards or backwards."""
    assert [row.seq for row in audit.rows(Wanted(**wanted))] == list(rows)
    assert [row.seq for row in audit.rows(Wanted(**wanted), backwards=True)] == list(rows)[::-1]


def test_the_newest_row_is_anchored_only_where_it_fits(small, tmp_path):
    """A ledger whose end was changed gives no anchor that would bless it."""
    copy = tmp_path / "copy.db"
    shutil.copy(small / "l.db", copy)
    ledger = SqlLedger.open(f"sqlite:///{copy}", small / "key")
    with closing(sqlite3.connect(copy)) as raw, raw:
        raw.execute("DELETE FROM ledger WHERE seq = 51")
    with pytest.raises(Exception, match="sealed"):
        asyncio.run(ledger.anchor("main"))
    ledger.close()


def test_with_much_to_check_a_second_process_finds_the_same(small, tmp_path, monkeypatch):
    """What is wrong with a life cycle comes from there, what is wrong with the chain from here."""
    copy = tmp_path / "copy.db"
    shutil.copy(small / "l.db", copy)
    with closing(sqlite3.connect(copy)) as raw, raw:
        raw.execute("DELETE FROM ledger WHERE kind = 'decision'")
    alone = checked(copy, small / "key")
    monkeypatch.setattr(ledger_lives, "MUCH", 10)
    assert checked(copy, small / "key") == alone
    assert {each.rule for each in alone.findings} == {Rule.CHAIN, Rule.APPROVAL}
