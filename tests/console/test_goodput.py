"""`relight goodput`: read from a real ledger whose rows were made by the public API."""

import asyncio
import json
from datetime import timedelta

import pytest

from relight.config.settings import ConfigError, load
from relight.console import goodput as reading
from relight.console.goodput_chart import chart, page
from relight.domain.attempts import LogPosition, Progress, progress_cursor
from relight.domain.goodput import Badput
from relight.domain.slurm import AccountingRow, JobState
from tests.console.conftest import ago, recovered


def trained(night, attempt, **fields):
    """What the follower has written down of an attempt."""
    progress = Progress(**{"files": {"train.out": LogPosition(offset=9)}, "step_seconds": 1.0, **fields})
    night.commit(cursors={progress_cursor(attempt.key): progress.model_dump(mode="json")})


def llama(night):
    """Job 4650, ten hours ago: an hour queued, a crash that Relight repaired, and on to the end of it."""
    first = night.attempt(4650, ago(hours=11), lineage="j000000beef", gres_per_node="gpu:8", start_time=ago(hours=10))
    trained(
        night,
        first,
        first_step=1,
        first_step_at=ago(hours=9, minutes=50),
        last_step=12_000,
        last_step_at=ago(hours=6),
        saved_step=11_000,
        saves=11,
        saves_timed=10,
        saving_seconds=300.0,
    )
    night.ended(first, ago(hours=6), "FAILED")
    second = night.attempt(
        4650, ago(hours=5, minutes=55), lineage="j000000beef", gres_per_node="gpu:8", restarts=1, name="llama-70b"
    )
    trained(
        night,
        second,
        first_step=11_001,
        first_step_at=ago(hours=5, minutes=45),
        last_step=31_000,
        last_step_at=ago(),
    )
    return first, second


@pytest.fixture(autouse=True)
def no_slurm(config):
    """Whatever Slurm this machine has is none of these tests' business."""
    config.write_text(config.read_text() + "slurm: {way: commands, bin: /nowhere}\n")


@pytest.fixture
def job(night):
    return llama(night)


def test_where_the_time_of_a_job_went(job, relight):
    """Over its requeue: queue, start-up, saves, steps done again, and the gap; the sums add up."""
    told = json.loads(relight("goodput", "4650", "--json").stdout)
    total = told["total"]
    assert told["scope"] == "job 4650"
    assert (total["attempts"], total["interruptions"], total["steps_redone"]) == (2, 1, 1000)
    lost = total["lost_seconds"]
    assert lost[Badput.RECOVERY] == 300
    assert lost[Badput.STARTUP] == 1200
    assert lost[Badput.SAVE] == 300
    assert lost[Badput.WASTED] == pytest.approx(13_800 * 1000 / 11_999, abs=2)
    assert total["productive_seconds"] + sum(lost.values()) == pytest.approx(total["elapsed_seconds"])
    assert total["queued_seconds"] == 3600
    assert total["ettr"][0] < total["goodput"][0] < 1
    assert total["explained"] > 0.99
    assert total["gpu_hours"] == pytest.approx(320, rel=0.01)
    parts = [each["elapsed_seconds"] for each in told["attempts"]]
    assert sum(parts) == pytest.approx(total["elapsed_seconds"])
    (cost,) = told["interruptions"]
    assert (cost["cause"], cost["incident"]) == ("no incident", None)
    assert told["money_lost"] is None


def test_an_incident_says_what_its_parts_took(night, relight):
    """Detection, decision, ending and queue wait from the incident's own steps; the cause by its signature."""
    recovered(night)
    told = json.loads(relight("goodput", "4650", "-o", "json").stdout)
    (cost,) = told["interruptions"]
    assert (cost["incident"], cost["cause"], cost["outcome"]) == ("i07be11ab02", "CUDA_ECC_UNCORRECTABLE", "recovered")
    assert cost["parts_seconds"] == {
        "decision": pytest.approx(1.7),
        "ending": pytest.approx(1.4),
        "queue wait": pytest.approx(56.9),
    }
    assert cost["unknown"] == ["done again", "start-up"], "its steps' times were not kept when it ran"
    assert [each["cause"] for each in told["causes"]] == ["CUDA_ECC_UNCORRECTABLE"]
    assert told["total"]["goodput"][0] < told["total"]["goodput"][1]


@pytest.mark.parametrize("columns", ["80", "160"])
def test_it_is_told_for_people(job, relight, columns):
    """Nothing runs over the terminal's width, and nothing is cut."""
    result = relight("goodput", "4650", env={"COLUMNS": columns})
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= int(columns) for line in result.output.splitlines())
    for word in ("Goodput", "ETTR", "productive", "steps done again", "between attempts", "queue wait", "GPU-h"):
        assert word in result.output
    assert "Nothing to say yet: 1 interruption" in result.output
    assert "those that Relight saw" in " ".join(result.output.split()), "and not Slurm's own"
    assert "EUR" not in result.output, "no price, no money"


def test_the_cluster_and_a_partition(night, relight):
    """By default all that ended or ran in the last seven days; older attempts are no part of it."""
    old = night.attempt(9, ago(days=30), partition="debug")
    night.ended(old, ago(days=20), "FAILED")
    llama(night)
    told = json.loads(relight("goodput", "--json").stdout)
    assert told["scope"] == "cluster main"
    assert [(each["job"], each["attempts"]) for each in told["jobs"]] == [("4650", 2)]
    assert [(each["name"], each["jobs"]) for each in told["partitions"]] == [("gpu", 1)]
    assert json.loads(relight("goodput", "--partition", "gpu", "--json").stdout)["total"]["attempts"] == 2
    wrong = relight("goodput", "--partition", "gpus")
    assert wrong.exit_code == 4
    assert "no attempt of partition gpus ended in that time or runs; did you mean gpu?" in wrong.output
    assert relight("goodput", "--cluster").exit_code == 0


def test_only_the_last_hours(job, relight):
    """An attempt that began before counts from then on."""
    told = json.loads(relight("goodput", "4650", "--since", "2h", "--json").stdout)
    assert told["total"]["attempts"] == 1
    assert told["total"]["elapsed_seconds"] == pytest.approx(7200, abs=30)
    assert told["total"]["lost_seconds"].get(Badput.STARTUP) is None


def test_money_where_a_price_is_known(job, relight, config):
    """By partition, or the site's price."""
    config.write_text(config.read_text() + "prices: {gpu_hour: 2.5, currency: USD, partitions: {gpu: 4}}\n")
    told = json.loads(relight("goodput", "4650", "--json").stdout)
    assert told["money_lost"] == pytest.approx(4 * told["total"]["gpu_hours_lost"])
    assert told["interruptions"][0]["money"] == pytest.approx(4 * told["interruptions"][0]["gpu_hours"])
    assert " USD" in relight("goodput", "4650").output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prices: {gpu_hour: -1}", "prices.gpu_hour: must be greater than or equal to 0 (found -1)"),
        ("prices: {gpu_hour: .inf}", "prices.gpu_hour: must be a finite number (found inf)"),
        ("prices: {gpuhour: 1}", "prices.gpuhour: no such key"),
        ("prices: {partitions: {a: -3}}", "prices.partitions.a: must be greater than or equal to 0"),
        ("prices: {currency: money and more}", "prices.currency: "),
    ],
)
def test_a_wrong_price_is_refused(config, line, said):
    """One line: file, line, field, what was found, what is accepted."""
    config.write_text(config.read_text() + line + "\n")
    with pytest.raises(ConfigError) as refused:
        load(config, environment={})
    assert said in str(refused.value)
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("77",), 4, "Relight never saw job 77 running"),
        (("x7",), 2, "'x7' is no Slurm job id; accepted: 123, 123_4"),
        (("4650", "--cluster"), 2, "JOB names one job"),
        (("--cluster", "--account", "a"), 2, "--cluster means all jobs"),
        (("--since", "yesterday"), 2, "'yesterday' is no length of time; accepted: 30s, 30m, 2h"),
        (("--since", "0s"), 2, "too long or nothing"),
        (("--since", "99999d"), 2, "too long or nothing"),
        (("--account", "llm"), 4, "no attempt of account llm"),
        (("4650", "--chart", "x.png"), 2, "accepted are names that end with .svg or .html"),
        (("4650", "--chart", "/nowhere/x.svg"), 1, "/nowhere/x.svg: No such file or directory"),
    ],
)
def test_bad_input_gets_a_line(job, relight, words, status, said):
    """Which word, and what is accepted; no traceback."""
    result = relight("goodput", *words)
    assert result.exit_code == status
    assert said in result.output
    assert "Traceback" not in result.output


def test_slurms_own_times_count_and_what_relight_never_saw(job, ledger, config):
    """Accounting's executions: exact times, and one between the two that nobody saw, of which nothing is known."""
    first, second = job
    rows = [
        AccountingRow(
            job_id=4650,
            state=JobState.FAILED,
            submit_time=first.key.submit_time,
            start_time=ago(hours=10),
            end_time=ago(hours=6, minutes=1),
        ),
        AccountingRow(
            job_id=4650,
            state=JobState.NODE_FAIL,
            submit_time=ago(hours=6),
            start_time=ago(hours=6),
            end_time=ago(hours=5, minutes=56),
            nodes=("gpu-001",),
        ),
        AccountingRow(
            job_id=4650, state=JobState.RUNNING, submit_time=second.key.submit_time, start_time=second.key.submit_time
        ),
    ]

    class Accounts:
        """Simulated: what `sacct --duplicates` would tell."""

        async def executions(self, job_id):
            return tuple(rows) if job_id == 4650 else ()

    settings = load(config, environment={})
    wanted = reading.Wanted(job=reading.JobName(4650))
    told = asyncio.run(reading.account(ledger, settings, wanted, ago(), Accounts()))
    assert (told.total.runs, told.total.interruptions) == (3, 2)
    assert not told.notes
    unseen = told.jobs[0].attempts[1]
    assert not unseen.read
    assert unseen.account.lost[Badput.UNKNOWN] == timedelta(minutes=4)
    assert told.jobs[0].attempts[0].ended_at == ago(hours=6, minutes=1)


def test_the_chart_is_one_picture_that_needs_nothing_else(job, relight, tmp_path, ledger, config):
    """No script, no address, and text from a user's job cannot become markup."""
    path = tmp_path / "chart.svg"
    assert relight("goodput", "4650", "--chart", str(path)).exit_code == 0
    text = path.read_text()
    assert text.startswith("<svg ")
    assert "attempt 2" in text
    assert "<script" not in text
    assert text.count("http") == 1, "the namespace alone"
    settings = load(config, environment={})
    told = asyncio.run(reading.account(ledger, settings, reading.Wanted(), ago()))
    evil = told.model_copy(update={"scope": "<script>alert(1)</script>"})
    assert "<script" not in page(evil)
    assert "@media (prefers-color-scheme: dark)" in chart(told)
