"""A PostgreSQL server of its own on this machine, in a folder of its own (Debian's package `postgresql`)."""

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

from relight.lab.packages import find_program
from relight.lab.ports import claimed_ports
from relight.lab.processes import MARK, Process, descendants, kill_all, spawn, wait_until

START_TIMEOUT_S = 60
USER = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""


class PostgresError(Exception):
    """The server cannot be started; the message says why."""


class Postgres:
    """A server, whose only user `relight` needs no password and comes by the loopback address."""

    def __init__(self, folder: Path, mark: Path) -> None:
        """Describe it; nothing happens until `start`. `mark` is the folder of what it belongs to."""
        self.folder, self._mark = folder, mark
        self._port = 0
        self._process: Process | None = None

    @staticmethod
    def lacking() -> str:
        """Why there is no server to be had here, or nothing."""
        if _program("postgres") is None or _program("initdb") is None:
            return "PostgreSQL is not installed (Debian: postgresql)"
        try:
            pwd.getpwnam(USER)
        except KeyError:
            return f"root needs the user {USER} to run PostgreSQL as" if os.geteuid() == 0 else ""
        return ""

    @property
    def url(self) -> str:
        """For `ledger.url`."""
        return f"postgresql+psycopg://relight@127.0.0.1:{self._port}/postgres"

    @property
    def processes(self) -> list[Process]:
        """The server and its children."""
        if self._process is None or not self._process.alive:
            return []
        found = [Process.of(pid) for pid in (self._process.pid, *descendants(self._process.pid))]
        return [process for process in found if process]

    def start(self) -> None:
        """Start it, the first time with an empty database, and return when it answers.

        Raises:
            PostgresError: it is not installed, or has ended at once.
        """
        if why := self.lacking():
            raise PostgresError(why)
        if not self._port:
            self._make()
        command = [*self._as_user(), str(_program("postgres")), "-D", f"{self.folder}/data", "-p", str(self._port)]
        command += ["-h", "127.0.0.1", "-k", str(self.folder), "-c", "max_connections=200"]
        log = self.folder / "postgres.log"
        process = self._process = spawn(command, log, {**os.environ, MARK: str(self._mark)})
        wait_until(lambda: self._answers() or not process.alive, START_TIMEOUT_S, "PostgreSQL to answer")
        if not process.alive:
            raise PostgresError(f"PostgreSQL ended at once; see {log}")

    def kill(self) -> None:
        """End it as a crash of the machine does; what was committed is there after `start`."""
        kill_all(self.processes)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        for process in self.processes:
            process.signal(number)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
        initdb = [str(_program("initdb")), "-D", f"{self.folder}/data", "-U", "relight", "-A", "trust", "-E", "UTF8"]
        done = subprocess.run(
            [*self._as_user(), *initdb, "--locale=C"], capture_output=True, text=True, check=False, cwd=self.folder
        )
        if done.returncode != 0:
            raise PostgresError(f"initdb failed: {done.stderr.strip()[-500:]}")
        with claimed_ports(1) as self._port:
            pass

    def _as_user(self) -> list[str]:
        return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []

    def _answers(self) -> bool:
        command = [str(_program("pg_isready")), "-h", "127.0.0.1", "-p", str(self._port), "-q"]
        return subprocess.run(command, check=False).returncode == 0


def _program(name: str) -> Path | None:
    """Debian keeps the server's programs out of PATH, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    other = find_program(name)
    return found[-1] if found else Path(other) if other else None
