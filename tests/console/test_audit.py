"""`relight audit` and `relight ledger`, as people run them."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from relight.clients.anchors_places import append
from relight.clients.ledger_sql import SqlLedger
from relight.domain.audit_events import actor
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode
from relight.lab.audit_story import Story, write
from relight.workers.cli import main

ASKED = Story(2, Mode.APPROVE)


class Home:
    """A data folder with a ledger of two incidents, and settings that lead to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write({})
        write(f"sqlite:///{folder}/ledger.sqlite", folder / "ledger.key", [*Story(1).rows(), *ASKED.rows()])

    def write(self, audit: dict[str, object]) -> None:
        settings = {"cluster": "main", "data": str(self.folder), "audit": audit}
        (self.folder / "site.yaml").write_text(yaml.safe_dump(settings))

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--config", str(self.folder / "site.yaml")])

    def tamper(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / "ledger.sqlite")) as raw, raw:
            for name in ("ledger_no_update", "ledger_no_delete"):
                raw.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                raw.execute(statement)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_whole_ledger_ends_with_0_and_says_what_that_rests_on(home):
    """Without an anchor it says that one is missing."""
    done = home.run("audit", "verify")
    assert done.exit_code == 0, done.output
    assert "33 rows" in done.output
    assert "No anchor was looked at" in done.output
    assert "Nothing was changed" in done.output


def test_a_changed_row_ends_with_1_and_is_named(home):
    """With what was expected and what was found, for people and programs; also where it is the newest."""
    home.tamper("UPDATE ledger SET node = 'gpu-9' WHERE seq = 7", "UPDATE ledger SET at = 'x' WHERE seq = 33")
    done = home.run("audit", "verify")
    assert done.exit_code == 1
    assert "row 7  chain" in done.output
    assert "expected content that its hash fits" in done.output
    told = json.loads(home.run("audit", "verify", "--json").output)
    assert (told["ok"], told["rows"]) == (False, 33)
    assert [each["seq"] for each in told["findings"] if each["rule"] == "chain"] == [7, 33]


@pytest.mark.parametrize("named", ["settings", "argument"])
async def test_a_cut_end_is_found_by_the_anchors(home, named):
    """Those of the settings are read by themselves; others are named."""
    ledger = SqlLedger.open(f"sqlite:///{home.folder}/ledger.sqlite", home.folder / "ledger.key")
    anchor = await ledger.anchor("main")
    ledger.close()
    append(home.folder / "anchors", anchor.line)
    older = Home(home.folder / "older") if (home.folder / "older").mkdir() is None else home
    (older.folder / "ledger.sqlite").unlink()
    (older.folder / "ledger.key").write_bytes((home.folder / "ledger.key").read_bytes())
    write(f"sqlite:///{older.folder}/ledger.sqlite", older.folder / "ledger.key", Story(1).rows())
    if named == "settings":
        older.write({"anchor": [{"file": str(home.folder / "anchors")}, {"syslog": "/dev/log"}]})
    words = ("--anchors", str(home.folder / "anchors")) if named == "argument" else ()
    done = older.run("audit", "verify", *words)
    assert done.exit_code == 1
    assert "expected row 33, anchored" in done.output
    assert "found    the ledger ends with row 16" in done.output
    assert home.run("audit", "verify", "--anchors", str(home.folder / "anchors")).exit_code == 0


@pytest.mark.parametrize("missing", ["ledger.key", "ledger.sqlite", "anchors"])
def test_what_cannot_be_checked_ends_with_2(home, missing):
    """Neither whole nor changed: unknown."""
    if missing != "anchors":
        (home.folder / missing).unlink()
    done = home.run("audit", "verify", *(("--anchors", str(home.folder / "anchors")) if missing == "anchors" else ()))
    assert done.exit_code == 2
    assert done.output.startswith("relight: not checked: ")
    assert missing in done.output


def _rows(done: Result) -> list[int]:
    assert done.exit_code == 0, done.output
    return [each["seq"] for each in json.loads(done.output)]


def test_log_lists_the_newest_and_filters(home):
    """By node, person, kind and time; for people in a table."""
    assert _rows(home.run("audit", "log", "-n", "3", "-o", "json")) == [31, 32, 33]
    decided = home.run("audit", "log", "--kind", "decision", "--who", "ada", "-o", "json")
    assert _rows(decided) == [21]
    assert _rows(home.run("audit", "log", "--node", ASKED.node, "-o", "json")) == [25, 28, 29]
    assert _rows(home.run("audit", "log", "--since", "2026-11-30T09:31:03Z", "-o", "json")) == [33]
    assert _rows(home.run("audit", "log", "--until", "2026-11-30T09:27:33Z", "-o", "json")) == [1]
    assert _rows(home.run("audit", "log", "--who", "nobody", "-o", "json")) == []
    table = home.run("audit", "log", "--kind", "decision").output
    assert "ada" in table
    assert "approved" in table


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--since", "yesterday"), 2, "is no time; accepted: 2026-11-30"),
        (("--job", "7"), 4, "no job 7 was ever seen running"),
        (("--incident", "i99"), 4, "no incident i99"),
        (("--kind", "decisions"), 2, "decision"),
    ],
)
def test_filters_that_name_nothing_are_told(home, words, code, says):
    """In a line, with what is accepted."""
    done = home.run("audit", "log", *words)
    assert done.exit_code == code
    assert says in done.output


def test_export_gives_whole_rows_or_cloudevents(home):
    """One JSON object a line; an event has the required attributes, and extensions named as the standard allows."""
    whole = [json.loads(line) for line in home.run("audit", "export").output.splitlines()]
    assert [row["seq"] for row in whole] == list(range(1, 34))
    assert Row.model_validate(whole[20]).body["proof"]["signed"]
    done = home.run("audit", "export", "--format", "cloudevents", "--kind", "intent")
    events = [json.loads(line) for line in done.output.splitlines()]
    assert len(events) == 8
    first = events[0]
    assert first["specversion"] == "1.0"
    assert first["type"] == "relight.ledger.intent"
    assert first["source"] == "/relight/main/ledger"
    assert datetime.fromisoformat(first["time"]) == Story(1).at(71)
    assert len({(each["source"], each["id"]) for each in events}) == 8
    assert sorted(each["sequence"] for each in events) == [each["sequence"] for each in events]
    assert all(name.isascii() and name.isalnum() and name.islower() and value != "" for name, value in first.items())


@pytest.mark.parametrize(
    ("kind", "body", "who"),
    [
        (RowKind.DECISION, {"decision": {"by": "ada (by the site key)"}}, "ada (by the site key)"),
        (RowKind.DECISION, {"decision": {"by": ""}}, "unverified"),
        (RowKind.CARE, {"word": {"by": "bob"}}, "bob"),
        (RowKind.CARE, {"step": "judged"}, "relight"),
        (RowKind.GUARD, {"by": "carol"}, "carol"),
        (RowKind.EFFECT, {"by": "x"}, "relight"),
    ],
)
def test_who_it_was(kind, body, who):
    """A person where a person said it, and Relight otherwise."""
    row = Row(id="a", kind=kind, at=datetime.now(UTC), cluster="c", body=body, seq=1, prev_hash="", hash="")
    assert actor(row) == who


def test_ledger_upgrade_says_what_it_did(home, tmp_path):
    """Made anew, or nothing to do."""
    run: Callable[..., Result] = home.run
    assert run("ledger", "upgrade").output == "the ledger has schema 0002: nothing to do\n"
    made = run("ledger", "upgrade", "--url", f"sqlite:///{tmp_path}/other.db")
    assert made.output == "the ledger has schema 0002 now, made anew\n"


def test_ledger_grants_prints_sql(home):
    """For one role; what is no name is refused."""
    done = CliRunner().invoke(main, ["ledger", "grants", "relight_worker"])
    assert 'GRANT INSERT ON ledger TO "relight_worker";' in done.output
    assert "UPDATE" not in CliRunner().invoke(main, ["ledger", "grants", "auditor", "--read-only"]).output
    assert CliRunner().invoke(main, ["ledger", "grants", "a b"]).exit_code == 1
