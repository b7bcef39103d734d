"""`relight status`: who watches and what is seen, from the ledger alone: Temporal does not answer in these tests."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import Result

from relight.clients.ledger_sql import SqlLedger
from relight.domain.detectors import ON_DEMAND, Sight, WorkerReport, WorkerReports, sights_cursor
from relight.domain.evidence import Detection, Interruption

from .conftest import Night, ago, waiting

Relight = Callable[..., Result]
SECOND = timedelta(seconds=1)
NAMES = ("jobs", "nodes", "logs", "outbox")


def seen(seconds: float = 1, *, problem: str = "", within: timedelta = 15 * SECOND) -> Sight:
    at = datetime.now(UTC) - seconds * SECOND
    return Sight(within=within, since=at, looked=at, last=at, problem=problem)


@pytest.fixture
def written(night: Night) -> Callable[..., None]:
    """A worker has written so many seconds ago; detectors see where nothing else is said."""

    def write(seconds: float = 2, *, unreadable: dict[str, str] | None = None, **sights: Sight) -> None:
        at = datetime.now(UTC) - seconds * SECOND
        report = WorkerReport(
            worker="head/4711",
            version="0.1.0",
            mode="auto",
            started_at=at - timedelta(hours=3),
            written_at=at,
            sights={**dict.fromkeys(NAMES, seen(seconds)), **sights},
            unreadable=unreadable or {},
            unreadable_count=len(unreadable or {}),
        )
        body = WorkerReports(workers=(report,)).model_dump(mode="json")
        night.commit(cursors={sights_cursor("main"): body})

    return write


def line(out: str, first: str) -> str:
    return next(each for each in out.splitlines() if each.startswith(first))


def test_a_watched_cluster(night: Night, written: Callable[..., None], relight: Relight):
    """Each detector has its line, with the age of its last success; the mode is the worker's, not this shell's."""
    night.attempt(1, ago(hours=3))
    written(accounting=seen(86400, within=ON_DEMAND))
    found = relight("status")
    assert found.exit_code == 0
    assert "Cluster main  mode auto" in found.output
    assert "head/4711, 0.1.0  up 3.0 h, last sign 2." in found.output
    for name in NAMES:
        assert line(found.output, name).split()[1] == "sees"
    assert "looks only when asked" in line(found.output, "accounting")
    assert "1 running" in found.output
    assert found.output.rstrip().endswith("All detectors see.")


@pytest.mark.parametrize(
    ("sight", "state", "said"),
    [
        (seen(40), "overdue", "since "),
        (seen(1, problem="\x1b[2Jslurmctld does not\nanswer"), "blind", ": slurmctld does not answer"),
    ],
)
def test_a_detector_that_does_not_see(
    written: Callable[..., None], relight: Relight, sight: Sight, state: str, said: str
):
    """Named with since when and why, and the command ends with 1."""
    written(nodes=sight)
    found = relight("status")
    assert found.exit_code == 1
    assert line(found.output, "nodes").split()[1] == state
    assert said in line(found.output, "nodes")
    assert f"Not all is seen: nodes {state}." in found.output
    assert found.output.replace("\n", "").isprintable()


def test_a_worker_that_is_gone(written: Callable[..., None], relight: Relight):
    """Nobody watches, and that is what stands there."""
    written(180)
    found = relight("status")
    assert found.exit_code == 1
    assert "no worker has written for 3 min" in found.output
    assert "Nobody watches" in found.output
    assert line(found.output, "jobs").split()[1] == "overdue"


def test_a_new_ledger(ledger: SqlLedger, relight: Relight):
    """No worker has ever written: no empty table, and what to do."""
    found = relight("status")
    assert found.exit_code == 1
    assert "none has written to this ledger yet" in found.output
    assert "start `relight worker controller`" in found.output
    assert "DETECTOR" not in found.output


def test_no_ledger_at_all(relight: Relight):
    """As every command says it."""
    found = relight("status")
    assert (found.exit_code, "no ledger here yet" in found.output) == (1, True)


def test_what_waits_for_a_person(night: Night, written: Callable[..., None], relight: Relight):
    """With the command that shows it; waiting for a person is nobody's blindness."""
    waiting(night)
    written()
    found = relight("status")
    assert found.exit_code == 0
    assert "1 open  1 waiting for you: relight show i3fa9c1d2e4" in found.output


@pytest.mark.parametrize(("age", "code"), [(1, 0), (40, 1)])
def test_detections_that_reach_nobody(
    night: Night, written: Callable[..., None], relight: Relight, age: float, code: int
):
    """A second is on the way; forty are not."""
    attempt = night.attempt(7, ago(hours=1))
    at = datetime.now(UTC) - age * SECOND
    found = Detection(id="d", attempt=attempt.key, kind=Interruption.CRASH, detected_at=at)
    night.commit(detections=(found,))
    written()
    done = relight("status")
    assert done.exit_code == code
    assert "1 detection undelivered, the oldest of " in done.output
    assert ("detections are not delivered" in done.output) is bool(code)


def test_outputs_that_cannot_be_read(written: Callable[..., None], relight: Relight):
    """Each blinds its own job only: said, with a few of them named, and no reason to end with 1."""
    written(unreadable={f"main/{number}/20261130T092712Z": f"/home/a/{number}.out" for number in range(8)})
    found = relight("status")
    assert found.exit_code == 0
    assert "the output of 8 cannot be read" in found.output
    assert "job 4: /home/a/4.out" in found.output
    assert "and 3 more" in found.output


def test_json_for_programs(written: Callable[..., None], relight: Relight):
    """The same, with ISO times; the exit code too."""
    written(nodes=seen(1, problem="no route"), metrics=Sight(within=SECOND, since=ago(hours=1), looked=ago(hours=1)))
    found = relight("status", "-o", "json")
    told = json.loads(found.stdout)
    assert (found.exit_code, told["well"], told["mode"], told["workers"][0]["lives"]) == (1, False, "auto", True)
    assert {name: each["state"] for name, each in told["detectors"].items()} == {
        "jobs": "sees",
        "logs": "sees",
        "nodes": "blind",
        "outbox": "sees",
        "metrics": "overdue",
    }
    assert told["detectors"]["nodes"]["why"] == "no route"
    assert (told["detectors"]["metrics"]["last_success"], told["detectors"]["jobs"]["unseen_since"]) == (None, None)
    assert datetime.fromisoformat(told["workers"][0]["last_sign"]).tzinfo


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_it_fits(written: Callable[..., None], relight: Relight, width: str):
    """No line is wider than the terminal, whatever has to be said."""
    written(nodes=seen(1, problem="slurmctld does not answer: " + "Unable to contact slurm controller " * 4))
    found = relight("status", env={"COLUMNS": width})
    assert max(map(len, found.output.splitlines())) <= int(width)
    assert "\x1b" not in found.output
