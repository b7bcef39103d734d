#!/usr/bin/python3 -I
"""relight-submit: submit one batch script anew, held, as the user who runs it, with the environment it had before.

Relight's service may not submit as its users. A site that wants fresh jobs in place of those that Slurm cannot queue
again installs this one file, owned by root, as /usr/local/bin/relight-submit (mode 0755), and lets the service run it
as these users and nobody else. Who may do that may run anything as them. It imports nothing but the standard library,
starts no shell, and takes nothing from its caller's environment.

On its standard input stands JSON: script (text), name (of its file), arguments, options (of sbatch, `--name=value`),
environment_of (a job's id) and started (when that job started, seconds since 1970). It asks accounting, as the user,
for the environment of that job; Relight never sees it. The new job is held; its id is printed.

Exit status: 0 submitted, 1 failed, 2 usage, 3 refused, 4 sbatch said no (in its own words), 5 perhaps submitted.

sudoers (visudo -f /etc/sudoers.d/relight):
  relight ALL=(%train) NOPASSWD: /usr/local/bin/relight-submit

Settings, for this file as PREFIX/bin/NAME: PREFIX/etc/NAME.conf where that exists, else /etc/NAME.conf; owned by root,
`key = value` lines, all of them optional:
  bin = /usr/bin              folder of Slurm's commands
  slurm_conf = /etc/slurm/slurm.conf
  least_uid = 1000            users below are the system's: nothing is submitted as them
  timeout = 10                seconds for each of its commands
  umask = 022                 of the jobs: Slurm does not tell with which one they were submitted before
"""

import json
import os
import pwd
import re
import stat
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

OK, FAILED, USAGE, REFUSED, SAID_NO, AMBIGUOUS = range(6)
MOST_INPUT = 16 << 20
OPTIONS = frozenset(
    {
        *("account", "chdir", "comment", "constraint", "error", "exclude", "gres", "job-name", "nodelist", "nodes"),
        *("ntasks", "output", "partition", "qos", "reservation", "time"),
    }
)
FLAGS = frozenset({"--requeue", "--no-requeue"})
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,99}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:%%|\(\))?=")
HEADER = "Environment used for "
DEFAULTS = {"bin": "/usr/bin", "slurm_conf": "", "least_uid": "1000", "timeout": "10", "umask": "022"}


class Stop(Exception):  # noqa: N818 - it ends the program, with this status and this line
    """The end, with an exit status and one line for a person."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def settings_file(program: Path) -> Path:
    """Where the settings are: decided by where root has put the program, never by the caller."""
    name = program.name.removesuffix(".py").replace("_", "-")
    beside = program.parent.parent / "etc" / f"{name}.conf"
    return beside if beside.exists() else Path("/etc", f"{name}.conf")


def read_settings(path: Path, owner: int) -> dict[str, str]:
    """The settings file, believed only where nobody but root (or the program's owner) can write it."""
    settings = dict(DEFAULTS)
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        return settings
    except OSError as error:
        raise Stop(FAILED, f"cannot read {path}: {error.strerror}") from None
    with file:
        about = os.fstat(file.fileno())
        if about.st_uid not in (0, owner) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Stop(FAILED, f"{path} is not root's alone")
        lines = file.read().splitlines()
    for line in lines:
        key, sign, value = line.partition("=")
        if line.strip() and not line.lstrip().startswith("#"):
            if not sign or key.strip() not in settings:
                raise Stop(FAILED, f"{path}: not a setting: {line.strip()!r}")
            settings[key.strip()] = value.strip()
    check_settings(path, settings)
    return settings


def check_settings(path: Path, settings: dict[str, str]) -> None:
    """Refuse everything for a setting that means nothing."""
    if not settings["bin"].startswith("/"):
        raise Stop(FAILED, f"{path}: bin must be an absolute path")
    for key in ("least_uid", "timeout"):
        if not settings[key].isdecimal():
            raise Stop(FAILED, f"{path}: {key} is a number")
    if not re.fullmatch("0?[0-7]{3}", settings["umask"]):
        raise Stop(FAILED, f"{path}: umask is three octal digits")


def check_user(uid: int, settings: dict[str, str]) -> None:
    """Nothing is ever submitted as root or another of the system's own users."""
    if uid == 0 or uid < int(settings["least_uid"]):
        raise Stop(REFUSED, f"nothing is submitted as uid {uid} (least_uid = {settings['least_uid']})")


def parse_request(text: str) -> dict[str, Any]:
    """Check what is asked; nothing else of it reaches sbatch."""
    try:
        asked = json.loads(text)
    except ValueError:
        raise Stop(USAGE, "the standard input is not JSON") from None
    kinds = {"script": str, "name": str, "arguments": list, "options": list, "environment_of": int, "started": int}
    if not isinstance(asked, dict) or any(type(asked.get(key)) is not kind for key, kind in kinds.items()):
        raise Stop(USAGE, f"must be an object with {', '.join(kinds)}")
    words = (*asked["arguments"], *asked["options"])
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        raise Stop(USAGE, "arguments and options are texts")
    if not asked["script"].startswith("#!") or not NAME.fullmatch(asked["name"]):
        raise Stop(USAGE, "no batch script, or its name is no plain file name")
    for option in asked["options"]:
        name, sign, _ = option.partition("=")
        if option not in FLAGS and not (sign and name.startswith("--") and name[2:] in OPTIONS):
            raise Stop(REFUSED, f"not an option that may be given: {name[:40]!r}")
    return asked


def parse_environment(text: str) -> dict[str, str]:
    """What `sacct --env-vars` prints of one job: a line each, and more where a value has several."""
    first, *rest = text.splitlines() or [""]
    if not first.startswith(HEADER) or any(line.startswith(HEADER) for line in rest):
        raise Stop(REFUSED, "accounting has not the environment of just this job")
    found: list[str] = []
    for line in rest[1:]:
        if VARIABLE.match(line) or not found:
            found.append(line)
        else:
            found[-1] += f"\n{line}"
    pairs = [each.partition("=") for each in found]
    kept = {name: value for name, sign, value in pairs if sign and not name.startswith("SLURM_")}
    if not kept:
        raise Stop(REFUSED, "the environment is not on record (AccountingStoreFlags=job_env)")
    return kept


class Slurm:
    """Runs Slurm's commands as ourselves."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.bin = settings["bin"]
        self.timeout = float(settings["timeout"])
        self.own = {"PATH": f"{self.bin}:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
        self.conf = {"SLURM_CONF": settings["slurm_conf"]} if settings["slurm_conf"] else {}

    def run(self, environment: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
        """Run one to its end.

        Raises:
            subprocess.TimeoutExpired: it has been killed.
        """
        return subprocess.run(
            [f"{self.bin}/{command[0]}", *command[1:]],
            env=environment | self.conf,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=self.timeout,
            check=False,
        )

    def environment(self, job: int, started: int) -> dict[str, str]:
        """The environment with which that job of ours was submitted.

        Job ids come back for other jobs: this one must have an execution that started then.
        """
        wanted = f"--jobs={job}"
        try:
            starts = self.run(self.own, "sacct", "-D", "-X", "-n", "-P", wanted, "-S1970-01-01", "--format=Start")
            told = self.run(self.own, "sacct", "--env-vars", wanted, "-S1970-01-01")
        except subprocess.TimeoutExpired:
            raise Stop(FAILED, "accounting does not answer") from None
        if starts.returncode or told.returncode:
            raise Stop(FAILED, f"accounting does not answer: {(starts.stderr or told.stderr)[:200]}")
        if datetime.fromtimestamp(started, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S") not in starts.stdout.split():  # noqa: UP017
            raise Stop(REFUSED, f"accounting has another job {job}, or none")
        return parse_environment(told.stdout)

    def submit(self, asked: dict[str, Any], environment: dict[str, str]) -> str:
        """Submit it, held; return the job's id."""
        with tempfile.TemporaryDirectory(prefix="relight-submit-") as folder:
            script = Path(folder, asked["name"])
            script.write_text(asked["script"], encoding="utf-8", errors="surrogateescape")
            line = ("sbatch", "--parsable", "--hold", *asked["options"], str(script), *asked["arguments"])
            try:
                done = self.run(environment, *line)
            except subprocess.TimeoutExpired:
                raise Stop(AMBIGUOUS, "sbatch gave no answer in time") from None
        if done.returncode < 0:
            raise Stop(AMBIGUOUS, f"sbatch was ended by signal {-done.returncode}")
        job = done.stdout.strip().split(";")[0]
        if done.returncode:
            raise Stop(SAID_NO, done.stderr.strip() or f"sbatch ended with {done.returncode}")
        if not job.isdecimal():
            raise Stop(AMBIGUOUS, "sbatch did not print a job id")
        return job


def main() -> int:
    """Run as a program."""
    program = Path(__file__).resolve()
    if sys.argv[1:]:
        print(__doc__)  # noqa: T201
        return OK if sys.argv[1:] in (["--help"], ["-h"]) else USAGE
    os.environ.clear()
    try:
        settings = read_settings(settings_file(program), program.stat().st_uid)
        os.umask(int(settings["umask"], 8))
        check_user(os.getuid(), settings)
        asked = parse_request(sys.stdin.read(MOST_INPUT))
        os.chdir(pwd.getpwuid(os.getuid()).pw_dir if os.access(pwd.getpwuid(os.getuid()).pw_dir, os.X_OK) else "/")
        slurm = Slurm(settings)
        print(slurm.submit(asked, slurm.environment(asked["environment_of"], asked["started"])))  # noqa: T201
    except Stop as stop:
        print(ascii(str(stop)[:500])[1:-1], file=sys.stderr)  # noqa: T201
        return stop.status
    except (OSError, ValueError) as error:
        print(ascii(f"failed: {error}"[:500])[1:-1], file=sys.stderr)  # noqa: T201
        return FAILED
    return OK


if __name__ == "__main__":
    sys.exit(main())
