"""The contract tests on every Slurm that can be had here: this machine's own, then that of each other Debian.

`python -m relight.lab.versions [--others | NAME...]` (all, all but this machine's own, or `own` and names of suites)
runs them one after the other, each suite in a root of its own, and writes what they found into docs/slurm-ways.md. A
root that cannot be made is skipped, with the reason at the end. Exit status: 0 all that ran passed, 1 a test
failed, 2 wrong usage, 130 interrupted.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from relight.lab import machine
from relight.lab.roots import SUITES, Root, RootError
from relight.lab.roots_project import INSIDE, PROJECT, Project
from relight.lab.versions_table import TableError, Ways, merge

CONTRACT = "tests/contract"
RESULTS = "RELIGHT_CONTRACT_RESULTS"
"""Names the file in which the contract tests leave what they found."""
RESULTS_INSIDE = "opt/relight/results.json"
"""That file in a root."""

TOGETHER = ("-m", "system", "tests/lab/test_versions.py")
"""Run on this machine once there is a root: clusters of two versions side by side."""

DOCUMENT = PROJECT / "docs/slurm-ways.md"
OWN = "own"
INTERRUPTED = 130


@dataclass
class Run:
    """All suites, one after the other."""

    tests: Sequence[str]
    """Arguments of pytest."""
    folder: Path
    """Holds the results."""
    found: dict[str, Ways] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    rooted: bool = False
    """Whether a root was used."""
    begin: float = field(default_factory=time.monotonic)

    def own(self) -> None:
        """Run them on this machine's Slurm."""
        version = machine.slurm_version()
        name = f"Slurm {version[0]}.{version[1]:02} (this machine's own)"
        results = self.folder / "results.json"
        environment = dict(os.environ) | {RESULTS: str(results)}
        self._test(name, [sys.executable, "-m", "pytest", *self.tests], environment, results)

    def suite(self, name: str) -> None:
        """Run them in that Debian's root; made first where it is missing."""
        try:
            project = Project(Root.named(name))
            project.root.make(self.say)
            if reason := project.prepare(self.say):
                self.skipped.append(f"{name}, pyslurm: {reason}")
            command = project.command(["python", "-m", "pytest", *self.tests])
        except RootError as error:
            self.skipped.append(f"{name}: {error}")
            self.say(self.skipped[-1])
            return
        self.rooted = True
        title = f"Slurm {project.root.slurm_version} ({name})"
        environment = project.root.environment({RESULTS: f"/{RESULTS_INSIDE}"})
        self._test(title, command, environment, project.root.path / RESULTS_INSIDE)

    def together(self) -> None:
        """Run clusters of two versions side by side."""
        self._test("two versions", [sys.executable, "-m", "pytest", *TOGETHER], os.environ, self.folder / "none")

    def say(self, text: str) -> None:
        """Tell progress, with the seconds since the beginning."""
        print(f"=== {time.monotonic() - self.begin:4.0f} s: {text}", flush=True)

    def _test(self, title: str, command: list[str], environment: Mapping[str, str], results: Path) -> None:
        self.say(title)
        results.unlink(missing_ok=True)
        begin = time.monotonic()
        status = _wait(command, environment)
        took = f"{time.monotonic() - begin:.0f} s"
        if status:
            self.failed.append(f"{title}: pytest ended with exit status {status}")
        self.say(f"{title}: {'FAILED' if status else 'passed'} in {took}")
        if results.exists():
            # Reasons name files: where the repository lies on this machine is nobody's business.
            told = json.loads(results.read_text().replace(f"{PROJECT}/", "").replace(f"{INSIDE}/", ""))
            if told["slurm"]:
                self.found[told["slurm"]] = told["ways"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m relight.lab.versions")
    parser.add_argument("--others", action="store_true", help=f"all but {OWN}")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"{OWN}, {', '.join(SUITES)}; default: all")
    help_of_tests = "what pytest is to run instead of %(default)s; the document is then left as it is"
    parser.add_argument("--tests", default=CONTRACT, help=help_of_tests)
    chosen = parser.parse_args(arguments)
    if wrong := set(chosen.names) - {OWN, *SUITES}:
        parser.error(f"unknown: {' '.join(sorted(wrong))}")
    with tempfile.TemporaryDirectory(prefix="relight-versions-") as folder:
        run = Run(chosen.tests.split(), Path(folder))
        for name in chosen.names or _all()[chosen.others :]:
            run.own() if name == OWN else run.suite(name)
        if run.rooted and not chosen.names:
            run.together()
        if chosen.tests == CONTRACT:
            _write(run)
    for line in run.skipped:
        run.say(f"SKIPPED: {line}")
    for line in run.failed:
        run.say(f"FAILED: {line}")
    return 1 if run.failed else 0


def _all() -> list[str]:
    own = machine.slurm_version()
    return [OWN, *(suite.name for suite in SUITES.values() if suite.slurm != own)]


def _write(run: Run) -> None:
    if not run.found:
        return
    try:
        DOCUMENT.write_text(merge(DOCUMENT.read_text(), run.found))
    except (OSError, TableError) as error:
        run.say(f"{DOCUMENT.name} is not renewed: {error}")
    else:
        run.say(f"docs/{DOCUMENT.name} tells what was found")


def _wait(command: list[str], environment: Mapping[str, str]) -> int:
    """Run to the end; when interrupted, the tests first take their clusters down."""
    # Started in the background by a shell without job control, they would ignore the interrupt for ever.
    command = ["env", "--default-signal=INT", *command]
    with subprocess.Popen(command, env=environment, cwd=PROJECT, stdin=subprocess.DEVNULL) as process:

        def stop(_number: int, _frame: FrameType | None) -> NoReturn:
            process.send_signal(signal.SIGINT)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, stop)
        try:
            return process.wait()
        finally:
            process.wait()
            signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
