"""The benchmark of the ways to Slurm: what it refuses, what it prints, and a small run on a real cluster."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from relight.clients.memory import MemorySlurm
from relight.clients.slurm import NotPermittedError, Slurm
from relight.config.settings import Way
from relight.lab import bench_slurm, packages
from relight.lab.bench_slurm import Load
from relight.lab.cli import lab
from relight.lab.cluster import Cluster, ClusterSpec
from relight.lab.errors import ClusterError, WayMissingError
from relight.lab.ways import open_way

needs_slurm = pytest.mark.skipif(
    bool(packages.missing(accounting=False, production=False)),
    reason="needs the Slurm packages (relight.lab.packages.ensure)",
)
SMALL = ("--jobs", "5", "--nodes", "5", "--repeat", "2")
NUMBERS = {"n": 4, "p50": 1.0, "max": 2.5}
MEASURED = {
    "read_ms": NUMBERS | {"jobs": NUMBERS, "nodes": NUMBERS},
    "mutate_ms": NUMBERS | {"exclude": NUMBERS, "start_now": NUMBERS},
}


def bench(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(lab, ["bench", "slurm", *arguments])


def result_of(**ways: dict[str, Any]) -> dict[str, Any]:
    """What `measure` returns."""
    machine = {"cores": 2, "load_1m": 0.5, "python": "3.11.7", "at": "2026-11-30T12:00:00+00:00"}
    conditions = {"slurm": "22.05.8", "jobs": 5, "nodes": 5, "repeat": 2, "warm_up": 3, "submit_s": 0.1}
    return conditions | {"ways": ways, "machine": machine}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--jobs", "0"), "'--jobs': 0 is not in the range"),
        (("--jobs", "20000"), "'--jobs': 20000 is not in the range"),
        (("--nodes", "0"), "'--nodes': 0 is not in the range"),
        (("--repeat", "0"), "'--repeat': 0 is not in the range"),
        (("--jobs", "many"), "'many' is not a valid integer"),
        (("--ways", "commands,rest"), "'rest': no such way; there are pyslurm, commands, ssh"),
        (("--ways", ""), "'': no such way"),
    ],
)
def test_bad_input_is_told(arguments: tuple[str, ...], told: str) -> None:
    """A clear message and exit code 2, before anything is started."""
    done = bench(*arguments)
    assert done.exit_code == 2
    assert told in done.output


async def test_a_partial_read_has_no_time() -> None:
    """A read that lacks jobs or nodes is an error, not a fast read."""
    slurm = MemorySlurm(lambda: datetime(2026, 11, 30, tzinfo=UTC), nodes=("n1", "n2"))
    slurm.submit()
    assert (await bench_slurm._reads(slurm, Load(jobs=1, nodes=2, repeat=2)))["n"] == 2
    for load in (Load(jobs=2, nodes=2, repeat=1), Load(jobs=1, nodes=3, repeat=1)):
        with pytest.raises(ClusterError, match="read 1 jobs and 2 nodes"):
            await bench_slurm._reads(slurm, load)


async def test_a_change_without_effect_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclusions are read back: a way that says yes and does nothing is an error, not a fast one."""
    slurm = MemorySlurm(lambda: datetime(2026, 11, 30, tzinfo=UTC))
    jobs = [slurm.submit(nodes=9), slurm.submit(nodes=9)]  # more nodes than there are: they stay pending
    done = await bench_slurm._mutations(slurm, jobs, 3)
    assert [done[key]["n"] for key in ("exclude", "start_now")] == [3, 3]
    assert done["n"] == 6

    async def nothing(*_: object) -> None:
        """Do nothing."""

    monkeypatch.setattr(slurm, "exclude", nothing)
    slurm.job_records = {key: job.model_copy(update={"excluded_nodes": ()}) for key, job in slurm.job_records.items()}
    with pytest.raises(ClusterError, match="2 of 2 jobs"):
        await bench_slurm._mutations(slurm, jobs, 3)


async def test_a_way_that_fails_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reads count, and the error stands beside them."""
    slurm = MemorySlurm(lambda: datetime(2026, 11, 30, tzinfo=UTC))
    job_id = slurm.submit()
    slurm.fail_next("exclude", NotPermittedError("not a command of Relight's"))

    @asynccontextmanager
    async def in_memory(*_: object) -> AsyncIterator[MemorySlurm]:
        """The same stand-in for every way."""
        yield slurm

    monkeypatch.setattr(bench_slurm, "open_way", in_memory)
    cluster, load, said = Cluster(ClusterSpec(folder=tmp_path)), Load(jobs=1, nodes=4, repeat=2), list[str]()
    numbers = await bench_slurm._way(Way.SSH, cluster, [job_id], load, said.append)
    assert numbers["read_ms"]["n"] == 2
    assert numbers["failed"] == "NotPermittedError: not a command of Relight's"
    assert "mutate_ms" not in numbers
    assert said[-1] == f"ssh: failed: {numbers['failed']}"


@pytest.mark.parametrize(
    ("ways", "enough"),
    [
        ({"commands": MEASURED}, True),
        ({"pyslurm": {"missing": "why"}, "commands": MEASURED}, True),
        ({"pyslurm": {"missing": "why"}}, False),
        ({"ssh": {"failed": "why"}, "commands": MEASURED}, False),
    ],
)
def test_missing_ways_are_no_failure_unless_there_is_none(ways: dict[str, dict[str, Any]], enough: bool) -> None:
    """A way that is there and fails always is one."""
    assert bench_slurm.measured(result_of(**ways)) is enough


def test_people_see_goals_reasons_and_conditions() -> None:
    """The table has a goal beside each way's totals; below, why a way is missing or came no further."""
    console = Console(width=120, record=True, markup=True)
    broken = {"read_ms": MEASURED["read_ms"], "failed": "JobNotFoundError: 7"}
    ways: dict[str, Any] = {"pyslurm": {"missing": "no [headers]"}, "commands": MEASURED, "ssh": broken}
    with console.capture() as printed:
        console.print(bench_slurm.report(result_of(**ways)))
    text = printed.get()
    for part in ("pyslurm: missing: no [headers]", "ssh: failed: JobNotFoundError: 7", "2 cores", "3 rounds"):
        assert part in text
    for part in ("≤ 300", "≤ 60", "≤ 400"):
        assert part in text
    assert "22.05.8" in text


@asynccontextmanager
async def without_pyslurm(way: Way, cluster: Cluster) -> AsyncIterator[Slurm]:
    """The ways as on a machine that has no pyslurm."""
    if way is Way.PYSLURM:
        raise WayMissingError("pyslurm is not installed")
    async with open_way(way, cluster) as slurm:
        yield slurm


@pytest.mark.system
@needs_slurm
def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON document: conditions, numbers of the commands, and why there are none of pyslurm."""
    monkeypatch.setattr(bench_slurm, "open_way", without_pyslurm)
    done = bench("--ways", "pyslurm,commands", *SMALL, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["jobs"], result["nodes"], result["repeat"]) == (5, 5, 2)
    assert result["slurm"].count(".") == 2
    assert result["machine"]["cores"] == os.cpu_count()
    assert result["ways"]["pyslurm"] == {"missing": "pyslurm is not installed"}
    commands = result["ways"]["commands"]
    for kind, parts, total in (("read_ms", ("jobs", "nodes"), 2), ("mutate_ms", ("exclude", "start_now"), 4)):
        assert commands[kind].keys() == {"n", "p50", "max", *parts}
        assert commands[kind]["n"] == total
        assert [commands[kind][part]["n"] for part in parts] == [2, 2]
        assert 0 < commands[kind]["p50"] <= commands[kind]["max"]
    assert "not counted" in done.stderr


@pytest.mark.system
@needs_slurm
def test_no_way_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and the reason is printed all the same."""
    monkeypatch.setattr(bench_slurm, "open_way", without_pyslurm)
    done = bench("--ways", "pyslurm", *SMALL)
    assert done.exit_code == 1
    assert "missing: pyslurm is not installed" in done.stdout
