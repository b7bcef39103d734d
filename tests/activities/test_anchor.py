"""The ledger's head is kept elsewhere at intervals; what fails is told, tried again, and stops nothing else."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from temporalio.testing import ActivityEnvironment

from relight.activities import contracts as c
from relight.activities.anchor import PERIOD, TRY_AGAIN, AnchorLedger
from relight.clients.anchors import AnchorError
from relight.clients.ledger_audit import LedgerAudit
from relight.clients.ledger_sql import SqlLedger
from relight.domain.audit import Anchor, AnchorStates, anchors_cursor, read_anchor
from relight.domain.ledger import Change, Entry, RowKind

BEGAN = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
EVERY = timedelta(minutes=5)


class Place:
    """Keeps lines in memory; a simulated place outside."""

    def __init__(self, name: str) -> None:
        self.name, self.lines, self.problem, self.tries = name, [], "", 0

    async def keep(self, line: str) -> None:
        self.tries += 1
        if self.problem:
            raise AnchorError(self.problem)
        self.lines.append(line)

    @property
    def anchors(self) -> list[Anchor | None]:
        return [read_anchor(line) for line in self.lines]


class Stage:
    """A real ledger, two places, and a clock that moves by the activity's own waiting."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder = BEGAN, folder
        self.ledger = SqlLedger.open(f"sqlite:///{folder}/l.db", folder / "key", clock=lambda: self.now)
        self.places = (Place("file:/a"), Place("git:/b"))
        site = SimpleNamespace(cluster="main", ledger=self.ledger, clock=lambda: self.now, sleep=self.sleep)
        self.anchoring = AnchorLedger(site, self.places, EVERY)  # type: ignore[arg-type]

    async def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def row(self, name: str) -> None:
        entry = Entry(id=name, kind=RowKind.NOTE, at=self.now, cluster="main")
        await self.ledger.commit(Change(entries=(entry,)))

    async def run(self, run_for: timedelta) -> None:
        arg = c.WatchInput(cluster="main", run_for=run_for)
        await ActivityEnvironment().run(self.anchoring.anchor_ledger, arg)

    async def states(self) -> AnchorStates:
        return AnchorStates.model_validate(await self.ledger.cursor(anchors_cursor("main")) or {})


@pytest.fixture
def stage(tmp_path):
    made = Stage(tmp_path)
    yield made
    made.ledger.close()


async def test_the_head_is_kept_at_each_place_when_it_has_moved(stage):
    """An empty ledger has none; one that has not grown is not anchored again; what is kept verifies."""
    await stage.run(EVERY)
    assert stage.places[0].lines == []
    await stage.row("a")
    await stage.run(3 * EVERY)
    await stage.row("b")
    await stage.run(2 * EVERY)
    assert [[anchor.seq for anchor in place.anchors] for place in stage.places] == [[1, 2], [1, 2]]
    audit = LedgerAudit.open(f"sqlite:///{stage.folder}/l.db", stage.folder / "key")
    report = audit.verify([("a", anchor) for anchor in stage.places[0].anchors], cluster="main")
    audit.close()
    assert (report.ok, report.anchors) == (True, 2)
    assert {name: state.seq for name, state in (await stage.states()).places.items()} == {"file:/a": 2, "git:/b": 2}


async def test_a_place_that_fails_is_told_and_tried_again_alone(stage, caplog):
    """The other gets its anchor in time; the failure is in the ledger and, once, in the log."""
    await stage.row("a")
    stage.places[1].problem = "push: no route"
    await stage.run(3 * TRY_AGAIN)
    failing = (await stage.states()).places["git:/b"]
    assert (failing.problem, failing.since, failing.seq) == ("push: no route", BEGAN, 0)
    assert (stage.places[0].tries, stage.places[1].tries) == (1, 3)
    assert [record.message.split(" (")[0] for record in caplog.records if "git:/b" in record.message] == [
        "the ledger's head is not anchored at git:/b: push: no route"
    ]
    stage.places[1].problem = ""
    await stage.run(TRY_AGAIN + PERIOD)
    now = (await stage.states()).places["git:/b"]
    assert (now.problem, now.since, now.seq) == ("", None, 1)


async def test_a_ledger_whose_end_was_changed_is_not_anchored(stage, caplog):
    """An anchor would bless it; the log tells, and the activity goes on."""
    await stage.row("a")
    await stage.row("b")
    with closing(sqlite3.connect(stage.folder / "l.db")) as raw, raw:
        raw.execute("DROP TRIGGER ledger_no_delete")
        raw.execute("DELETE FROM ledger WHERE seq = 2")
    await stage.run(3 * TRY_AGAIN)
    assert [place.lines for place in stage.places] == [[], []]
    assert ["sealed" in record.message for record in caplog.records] == [True]


async def test_without_places_it_waits(stage):
    """Nothing is read or written; the watchers' run ends as it does for all."""
    stage.anchoring._places = ()
    await stage.run(EVERY)
    assert stage.now >= BEGAN + EVERY
    assert await stage.ledger.cursor(anchors_cursor("main")) is None
