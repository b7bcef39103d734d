"""The alert rules, by Prometheus's own tool: what calls a person, and what does not."""

import inspect
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from relight.activities import anchor
from relight.lab.packages import find_program
from relight.workers import telemetry

RULES = Path(__file__).parents[2] / "deploy" / "alerts.yaml"
CASES = Path(__file__).with_name("alerts.yaml")


@pytest.fixture
def promtool(tmp_path):
    """Run promtool in a folder that holds the rules and their cases."""
    program = find_program("promtool")
    if program is None:
        pytest.skip("promtool is not installed: Debian's package prometheus has it (python -m relight.lab.packages)")
    shutil.copy(RULES, tmp_path / "alerts.rules.yaml")
    shutil.copy(CASES, tmp_path / "cases.yaml")

    def call(*words):
        return subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    return call


def test_the_rules_are_rules(promtool):
    """As Prometheus reads them when it starts."""
    done = promtool("check", "rules", "alerts.rules.yaml")
    assert (done.returncode, "SUCCESS: 5 rules found" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_rules_fire_when_they_should_and_not_before(promtool):
    """The cases stand in alerts.yaml beside this file."""
    done = promtool("test", "rules", "cases.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


class Meter:
    """Notes the names of the metrics that are made."""

    def __init__(self):
        self.names = set()

    def create_gauge(self, name, _description):
        self.names.add(name)

    create_gauge_float = create_gauge


def test_the_rules_name_metrics_that_exist():
    """A metric renamed in the worker would silence its rule for ever."""
    meter = Meter()
    telemetry.Gauges(meter, "main")
    meter.names |= set(re.findall(r'create_gauge\w*\("(\w+)"', inspect.getsource(anchor)))
    named = set(re.findall(r"relight_\w+", RULES.read_text()))
    assert named
    assert named <= meter.names
