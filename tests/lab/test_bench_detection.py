"""The benchmark of detection: what it refuses, how trials become numbers, what it prints, and a small run for real."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from relight.activities.follow_lines import Lines
from relight.activities.ingest import Ingest
from relight.activities.site import Site
from relight.attribution.progress_marks import StepMark
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger_sql import SqlLedger
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.config.settings import IngestSettings
from relight.domain.policy import Policy
from relight.domain.reports import Report
from relight.lab import bench_cost, bench_job, bench_load, bench_trials, packages
from relight.lab.bench_detection_report import Kind, Trial, kinds, report, summary, wrong
from relight.lab.bench_trials import FATAL_LINES
from relight.lab.cli import lab
from relight.lab.cluster import Cluster, ClusterError, ClusterSpec
from relight.lab.nvml_stub import NoCompilerError, build
from relight.workers.ingest import open_key, serving

needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or bool(packages.missing(accounting=False, production=False)),
    reason="needs root and the Slurm packages (relight.lab.packages.ensure)",
)


def bench(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(lab, ["bench", "detection", *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kinds", "crash,fire"), "'fire': no such kind; there are crash, fatal_line"),
        (("--kinds", ""), "'': no such kind"),
        (("--trials", "0"), "'--trials': 0 is not in the range"),
        (("--job-hours", "-1"), "'--job-hours': -1.0 is not in the range"),
        (("--seed", "x"), "'x' is not a valid integer"),
    ],
)
def test_bad_input_is_told(arguments: tuple[str, ...], told: str) -> None:
    """A clear message and exit code 2, before anything is started."""
    done = bench(*arguments)
    assert done.exit_code == 2
    assert told in done.output


def test_a_missed_trial_took_longer_than_any_other() -> None:
    """It moves the percentiles up, and one that falls on it has no value."""
    found = [float(value) for value in range(1, 58)]
    assert summary([*found, None, None, None]) == {"n": 60, "p50": 30, "p95": 57, "max": None, "missed": 3}
    assert summary([*found[:-1], None, None, None, None])["p95"] is None
    assert summary([*found, 58.0, 59.0, 60.0]) == {"n": 60, "p50": 30, "p95": 57, "max": 60, "missed": 0}


def test_few_trials_have_no_95th_percentile() -> None:
    """The median and the maximum they have."""
    assert summary([3.0, 1.0, 2.0]) == {"n": 3, "p50": 2, "p95": None, "max": 3, "missed": 0}
    assert summary([None]) == {"n": 1, "p50": None, "p95": None, "max": None, "missed": 1}


def test_kinds_keep_apart_what_is_measured_differently() -> None:
    """Variants and parts stand beside a kind's own numbers; what could not run is no trial, but is told."""
    trials = [
        Trial(Kind.CRASH, 1.0, found_by="slurmctld"),
        Trial(Kind.CRASH, 0.5, variant="with_hook"),
        Trial(Kind.CRASH, None, why="could not run: no node", ran=False),
        Trial(Kind.FATAL_LINE, None, why="job 7: not noted", parts={"incident": 20.0}),
        Trial(Kind.FATAL_LINE, 0.4, parts={"incident": None}),
    ]
    told = kinds(trials)
    assert list(told) == ["crash", "fatal_line"]
    assert (told["crash"]["n"], told["crash"]["max"], told["crash"]["found_by"]) == (1, 1.0, {"slurmctld": 1})
    assert told["crash"]["with_hook"]["max"] == 0.5
    assert (told["fatal_line"]["n"], told["fatal_line"]["missed"]) == (2, 1)
    assert told["fatal_line"]["incident"] == {"n": 2, "p50": 20.0, "p95": None, "max": None, "missed": 1}
    assert wrong(trials) == ["crash: could not run: no node", "fatal_line: job 7: not noted"]


def shown(**fields: Any) -> str:
    """The report for people."""
    trials = [Trial(Kind.STRAGGLER, 12.0), Trial(Kind.CRASH, 0.8), Trial(Kind.CRASH, 0.4, variant="with_hook")]
    result = {
        "kinds": kinds(trials),
        "false_alarms": 1,
        "healthy_job_hours": 1002.5,
        "healthy": {"replayed": 1000.0, "beside": 2.5},
        "cost": {},
        "wrong": ["hang: job 7: not found"],
        "conditions": {"cores": 2},
        "interrupted": False,
        "failed": {"cost": "no Temporal"},
    }
    console = Console(width=200)
    with console.capture() as captured:
        console.print(report(result | fields))
    return captured.get()


def test_people_see_goals_units_and_what_went_wrong() -> None:
    """And where the healthy hours come from."""
    text = shown()
    for part in (
        "p95 ≤ 30",
        "steps",
        "with_hook",
        "1002.5 healthy job-hours",
        "1000.0 replayed",
        "job 7: not found",
        "cost: no Temporal",
    ):
        assert part in text
    assert "partial" not in text
    assert "partial" in shown(interrupted=True)


def test_a_point_of_the_cost_that_failed_is_shown_without_numbers() -> None:
    """With its reason."""
    fine = {"part": "all", "logs": 2, "agents": 1, "slurm": 1, "cores": 0.5, "rss_mib": 100.0}
    fine |= {"load_logs": {"lines_a_second": 20.0}, "fatal_line": summary([0.3, None])}
    failed = {"part": "logs", "logs": 1, "agents": 0, "slurm": 0, "cores": None, "rss_mib": None, "why": "no worker"}
    text = shown(cost={"what": "stated", "points": [fine, failed]})
    assert "0.500" in text
    assert "0.3 / - s (p50 / max), 1 of 2 missed" in text
    assert "no worker" in text


async def test_a_kind_that_is_never_found_is_given_up() -> None:
    """Each miss costs its whole patience; the other kinds go on."""
    done = [Trial(Kind.HANG, 30.0)]

    async def miss() -> Trial:
        return Trial(Kind.CRASH, None, why="not found")

    await bench_trials.many(Kind.CRASH, 60, 4, miss, done)
    missed = [trial for trial in done if trial.kind is Kind.CRASH]
    assert bench_trials.GIVEN_UP_AFTER <= len(missed) < bench_trials.GIVEN_UP_AFTER + 4
    assert not bench_trials.hopeless(Kind.HANG, done)


async def test_a_trial_that_could_not_run_gets_a_second_chance() -> None:
    """And is told; it counts as no trial."""
    done: list[Trial] = []
    errors = [ClusterError("no node"), None, None]

    async def shaky() -> Trial:
        if error := errors.pop(0):
            raise error
        return Trial(Kind.CRASH, 1.0)

    await bench_trials.many(Kind.CRASH, 2, 1, shaky, done)
    assert [trial.ran for trial in done] == [False, True, True]
    assert kinds(done)["crash"]["n"] == 2
    assert wrong(done) == ["crash: could not run: no node"]


@pytest.mark.parametrize("line", FATAL_LINES)
def test_the_fatal_lines_are_fatal(line: str) -> None:
    """To the follower's own reader: else the trials would measure nothing."""
    assert Lines().read([line], "1.out", datetime.now(UTC)).fatal


def job(tmp_path: Path, **plan: Any) -> tuple[int, list[str], list[float]]:
    """Run the benchmark's job: exit code, lines, times noted."""
    truth = tmp_path / "truth"
    whole = {"step_s": 0.01, "at_step": 4, "stay_s": 0.2, "factor": 1.5, "text": "all is lost", "seed": "1"}
    words = json.dumps(whole | {"truth": str(truth)} | plan)
    done = subprocess.run(
        [sys.executable, "-ISu", bench_job.__file__, words], capture_output=True, text=True, check=False, timeout=30
    )
    return done.returncode, done.stdout.splitlines(), [float(line) for line in truth.read_text().splitlines()]


@pytest.mark.parametrize(
    ("do", "code", "last"), [("crash", 1, "step 3/"), ("hang", 0, "step 3/"), ("fatal", 0, "all is lost")]
)
def test_a_job_comes_to_grief_at_its_step(tmp_path: Path, do: str, code: int, last: str) -> None:
    """It prints the steps before in a form that is read, and notes when it was."""
    ended, lines, times = job(tmp_path, do=do)
    assert ended == code
    assert lines[-1].startswith(last)
    marks = Lines().read(lines[:3], "1.out", datetime.now(UTC)).marks
    assert [mark.step for mark in marks if isinstance(mark, StepMark)] == [1, 2, 3]
    assert len(times) == 1


def test_a_slow_job_notes_each_step_since(tmp_path: Path) -> None:
    """The change first, then as many times as it has printed slow steps."""
    _, lines, times = job(tmp_path, do="slow")
    assert len(times) == 1 + len(lines) - 3
    assert times == sorted(times)


def test_the_load_is_what_the_worker_reads() -> None:
    """Every other line is a step, and a beat is a report."""
    lines = [bench_load._line(tick).decode() for tick in range(1, 7)]
    read = Lines().read(lines, "1.out", datetime.now(UTC))
    assert [mark.step for mark in read.marks if isinstance(mark, StepMark)] == [1, 2, 3]
    assert read.fatal is None
    sent = Report.model_validate_json(bench_load.beat("d1", 5))
    assert (sent.node, sent.sequence, len(sent.beat.gpus if sent.beat else ())) == ("d1", 5, 8)


class Counting(Ingest):
    """Stops the load after two beats of each of three nodes."""

    asked = 0

    async def knows(self, node: str) -> bool:
        self.asked += 1
        return await super().knows(node)

    def __bool__(self) -> bool:
        return self.asked >= 6


def site(tmp_path: Path, slurm: MemorySlurm, ledger: SqlLedger) -> Site:
    """A site whose Slurm is simulated."""
    return Site(
        cluster="test",
        slurm=slurm,
        nodes=slurm,
        ledger=ledger,
        logs=LogFiles(),
        kernel_logs=KernelLogFiles(""),
        policy=Policy(),
        clock=clock,
        sleep=asyncio.sleep,
        kept=tmp_path,
    )


def clock() -> datetime:
    """The time."""
    return datetime.now(UTC)


@pytest.mark.parametrize("relayed", [False, True])
async def test_beats_are_taken_or_counted_as_refused(
    relayed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real endpoint, alone and in batches: one of three nodes is not known."""
    monkeypatch.setattr(bench_load, "BEAT_S", 0.3)
    key, slurm, ledger = tmp_path / "key", MemorySlurm(clock, nodes=("d1", "d2")), memory_ledger()
    ingest = Counting(site(tmp_path, slurm, ledger), lambda: None)
    listening = serving(IngestSettings(listen="127.0.0.1:0"), key, ingest)
    with closing(ledger):
        async with asyncio.timeout(20), listening as bound:
            assert bound is not None
            send = partial(bench_load.send_beats, bound, open_key(key), 3, ingest, relayed=relayed)
            try:
                numbers = await asyncio.to_thread(send)
            finally:
                ingest.asked = 6
    assert {sight.node for sight in ingest.sights()} == {"d1", "d2"}
    assert numbers["answered"] >= 2
    assert numbers["refused"] >= 1
    assert numbers["broken"] == 0


@pytest.mark.system
@needs_slurm
def test_a_filled_cluster_has_a_record_for_each_job(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Arrays whose tasks were told apart, also where they do not come out even."""
    cluster = Cluster(ClusterSpec(folder=tmp_path_factory.mktemp("fill"), nodes=1))
    try:
        cluster.start()
        bench_cost.fill(cluster, bench_cost.JOBS_PER_ARRAY + 1)
        ids = cluster.run("squeue", "--noheader", "--format=%A %T").stdout.split()
    finally:
        cluster.stop()
    assert ids[1::2] == ["PENDING"] * 1001
    assert len(set(ids[::2])) == 1001


@pytest.mark.system
@pytest.mark.slow
@needs_slurm
def test_a_small_run(tmp_path: Path) -> None:
    """One JSON document: two kinds, healthy hours of both sorts, the conditions; nothing is left running."""
    try:
        build(tmp_path)
    except NoCompilerError as error:
        pytest.skip(str(error))
    done = bench("--kinds", "crash,xid", "--trials", "2", "--no-cost", "--job-hours", "10", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert list(result["kinds"]) == ["crash", "xid"]
    for told in (*result["kinds"].values(), result["kinds"]["crash"]["with_hook"]):
        assert (told["n"], told["missed"]) == (2, 0), result["wrong"]
        assert 0 < told["p50"] <= told["max"]
    assert result["healthy"]["replayed"] == 10
    assert result["healthy"]["beside"] > 0
    assert (result["cost"], result["interrupted"]) == ({}, False)
    assert result["conditions"]["slurm"].count(".") == 1
