"""`relight config`: checks a file, shows what is in force and where it comes from, prints the schema."""

import json
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from relight.clients import ways
from relight.clients.memory import MemorySlurm
from relight.clients.slurm import SlurmUnavailableError
from relight.workers.cli import main

GOOD = """cluster: east
ledger: {url: "postgresql://relight:hunter2@db/relight"}
policy:
  modes:
    drain: off
  rules:
    - match: {partition: [debug, "inter*"]}
      set: {mode: off}
    - match: {partition: gpu}
      set: {mode: auto, approval_expires: 10m}
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    """What this shell has set is not part of the tests."""
    for name in [name for name in os.environ if name.startswith("RELIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path):
    """A site's file with two rules."""
    path = tmp_path / "relight.yaml"
    path.write_text(GOOD)
    return path


def relight(*words):
    return CliRunner().invoke(main, ["config", *map(str, words)])


def test_a_good_file(file):
    """Named with what matters of it."""
    found = relight("check", file)
    assert found.exit_code == 0
    assert found.output.startswith(f"{file}: valid; cluster east, policy ")
    assert found.output.rstrip().endswith("mode monitor, 2 rules")


def test_problems_are_counted(file):
    """One a line, on standard output; and it fails."""
    file.write_text("policy:\n  mode: full\n  modee: auto\n")
    found = relight("check", file)
    assert found.exit_code == 1
    assert f"{file}:2: policy.mode: must be 'monitor', 'approve' or 'auto' (found 'full')\n" in found.output
    assert found.output.endswith(f"relight: {file}: 2 problems\n")


def test_a_file_that_is_not_there(tmp_path):
    """Another exit code than that of a bad one."""
    found = relight("check", tmp_path / "none.yaml")
    assert (found.exit_code, "no such file" in found.output) == (4, True)


def test_without_a_file_one_is_asked_for(file, monkeypatch):
    """Or taken from the variable that names it."""
    assert relight("check").exit_code == 2
    monkeypatch.setenv("RELIGHT_CONFIG", str(file))
    assert relight("check").exit_code == 0


def test_what_is_hardly_meant_is_a_warning(file, monkeypatch):
    """A rule for another cluster, drains that cannot be, variables that win or name nothing."""
    file.write_text(
        "cluster: east\npolicy:\n  mode: auto\n  drains_per_hour: 0\n  modes: {hang.drain: approve}\n"
        "  rules: [{match: {cluster: west*}, set: {mode: monitor}}]\n"
    )
    monkeypatch.setenv("RELIGHT_POLICY__MODE", "approve")
    monkeypatch.setenv("RELIGHT_POLCY", "x")
    found = relight("check", file)
    assert found.exit_code == 0
    warned = [line for line in found.output.splitlines() if "warning" in line]
    assert len(warned) == 4
    assert warned[0] == f"{file}:6: policy.rules[0].match.cluster: warning: no job of cluster east fits"
    assert warned[1].startswith(f"{file}:4: policy.drains_per_hour: warning: 0 lets no node be drained")
    assert warned[2].startswith("RELIGHT_POLICY__MODE: warning: is set here, and wins")
    assert warned[3].startswith("RELIGHT_POLCY: warning: names no setting")
    assert found.output.rstrip().endswith("mode auto, 1 rule")


@pytest.fixture
def slurm(monkeypatch):
    """A simulated Slurm with the partition gpu."""
    simulated = MemorySlurm(lambda: datetime.now(UTC))
    for name, node in simulated.node_records.items():
        simulated.node_records[name] = node.model_copy(update={"partitions": ("gpu",)})

    @asynccontextmanager
    async def access(_settings):
        yield SimpleNamespace(slurm=simulated)

    monkeypatch.setattr(ways, "open_access", access)
    return simulated


def test_slurm_is_asked_for_its_partitions(file, slurm):
    """Only when asked to, and a partition that it does not know is a warning."""
    assert "Slurm" not in relight("check", file).output
    found = relight("check", "--live", file)
    assert found.exit_code == 0
    lines = [line for line in found.output.splitlines() if "warning" in line]
    assert len(lines) == 2
    assert lines[0].startswith(f"{file}:7: policy.rules[0].match.partition: warning: debug: Slurm has no nodes")
    assert "inter*" in lines[1]


def test_a_slurm_that_does_not_answer_is_a_warning(file, slurm):
    """Unknown is not wrong."""
    slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    found = relight("check", "--live", file)
    assert found.exit_code == 0
    assert "Slurm could not be asked for its partitions: timed out" in found.output


def test_each_setting_is_shown_with_where_it_comes_from(file, monkeypatch):
    """A default, a line of the file, or a variable, which wins; passwords are hidden."""
    monkeypatch.setenv("RELIGHT_CLUSTER", "west")
    found = relight("show", "--config", file, "-o", "json")
    shown = {each["field"]: (each["value"], each["origin"]) for each in json.loads(found.output)["settings"]}
    assert shown["cluster"] == ("west", "RELIGHT_CLUSTER")
    assert shown["ledger.url"] == ("postgresql://relight:***@db/relight", f"{file}:2")
    assert shown["policy.modes.drain"] == ("off", f"{file}:5")
    assert shown["policy.approval_expires"] == ("30m", "default")
    assert json.loads(shown["policy.rules[1]"][0])["set"] == {"mode": "auto", "approval_expires": "10m"}
    assert shown["policy.rules[1]"][1] == f"{file}:9"
    assert "hunter2" not in found.output


def test_only_what_was_decided_is_shown_when_asked(file):
    """As a table, with the policy's version."""
    found = relight("show", "--config", file, "--changed")
    assert found.exit_code == 0
    assert "default" not in found.output
    assert "policy.rules[0]" in found.output
    assert "Policy version" in found.output


def test_the_schema_is_json():
    """With the dialect that editors ask for."""
    found = json.loads(relight("schema").output)
    assert found["$schema"].endswith("2020-12/schema")
    assert "policy" in found["properties"]
