"""The benchmark of the scanner: what it refuses, and a small run for real."""

import json

import pytest
from click.testing import CliRunner

from relight.lab import bench_scan
from relight.lab.bench_scan_logs import CULPRIT
from relight.lab.cli import lab
from relight.lab.packages import SlurmNotInstallableError, find_program


def bench(*arguments):
    """Run it on this machine."""
    return CliRunner().invoke(lab, ["bench", "scan", *arguments])


@pytest.mark.parametrize("arguments", [["--size", "0"], ["--files", "-1"], ["--stream", "much"]])
def test_what_cannot_be_measured_is_refused(arguments):
    """With click's own message."""
    done = bench(*arguments)
    assert done.exit_code == 2
    assert arguments[0] in done.output


@pytest.mark.slow
def test_a_small_run(monkeypatch):
    """All parts are measured, what was hidden in the logs is found, and rg finds as many lines in the same file."""
    if find_program("rg") is None:
        monkeypatch.setattr(bench_scan, "install", refuse)
    done = bench("--size", "4", "--files", "16", "--files-size", "4", "--stream", "8", "--storm", "8", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    one, many = result["one"], result["many"]
    assert one["lines_found"] == 1
    assert 3_990_000 < one["bytes"] <= 4_000_000
    assert one["ratio_to_rg"] is None or one["rg"]["lines_found"] == 1
    assert (many["files"], many["verdict"], many["ranks"]) == (16, "CUDA_ECC", [CULPRIT])
    assert result["stream"]["found"] == {"CUDA_ECC": 1}
    assert set(result["storm"]["found"]) == {"NCCL_WATCHDOG_TIMEOUT", "CUDA_ECC"}
    assert result["stream"]["peak_mib"] < bench_scan.GOALS["stream_peak_mib"]
    assert all(seconds > 0 for seconds in result["start"].values())


def test_parts_can_be_left_out():
    """By a size of 0; the numbers are told with their goals."""
    done = bench("--size", "1", "--files", "0", "--stream", "0", "--storm", "0")
    assert done.exit_code == 0, done.output
    assert "times as fast as rg" in done.stdout or "rg is not installed" in done.stdout
    assert "2048" not in done.stdout


def test_without_rg_there_is_no_ratio(monkeypatch):
    """And the result says why."""
    monkeypatch.setattr(bench_scan, "find_program", lambda _name: None)
    monkeypatch.setattr(bench_scan, "install", refuse)
    done = bench("--size", "1", "--files", "0", "--stream", "0", "--storm", "0", "--json")
    one = json.loads(done.stdout)["one"]
    assert (one["rg"], one["ratio_to_rg"]) == ("rg is not installed: this is not Debian", None)


def refuse(_packages, _say):
    """A machine on which nothing can be installed."""
    raise SlurmNotInstallableError("this is not Debian")
