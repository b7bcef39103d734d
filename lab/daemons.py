"""The daemons of a lab cluster beside its nodes: munged, accounting, one slurmctld or two."""

import re
import signal
from collections.abc import Callable, Mapping
from subprocess import CompletedProcess
from typing import Protocol

from relight.lab import database, slurm_conf, state
from relight.lab.errors import ClusterError, SlurmCommandError
from relight.lab.processes import MARK, Process, spawn, wait_until
from relight.lab.spec import ClusterSpec, Profile
from relight.lab.users import USERS, current_user

CONTROLLER, BACKUP = "slurmctld", "slurmctld-backup"
CONTROLLERS = (CONTROLLER, BACKUP)
LAST_FIRST = (BACKUP, CONTROLLER, "slurmdbd", "mariadbd", "munged")
"""In which order they end: each before the one it writes to, the backup before it could take over."""

START_TIMEOUT_S = 60

# $0: host name, $1: hosts file, $2: this controller's own slurm.conf, $3: the one that all others read.
# A slurmctld knows by its host name which one it is, and listens on that name's address only.
ON_OWN_HOST = """\
mount --bind "$1" /etc/hosts && mount --bind "$2" "$3" && echo "$0" >/proc/sys/kernel/hostname &&
exec slurmctld -D -f "$3"
"""


class Run(Protocol):
    """Runs a command against the cluster, as `Cluster.run`."""

    def __call__(self, *command: str, check: bool = True) -> CompletedProcess[str]:
        """Return how it ended; raise `SlurmCommandError` for a failure where `check`."""


class Daemons:
    """Starts, ends, freezes them."""

    def __init__(self, spec: ClusterSpec, run: Run, environment: Callable[[], dict[str, str]]) -> None:
        """Act for the cluster of that spec, with its own way to run commands."""
        self._spec, self._run, self._environment = spec, run, environment
        self._folder = spec.folder

    def start_munged(self) -> None:
        """Start munged with the cluster's own key and socket."""
        run, log = self._folder / "run", self._folder / "log"
        command = ["munged", "--foreground", "--force", f"--key-file={self._folder}/etc/munge.key"]
        command += [f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid", f"--seed-file={run}/munge.seed"]
        self.spawn("munged", [*command, f"--log-file={log}/munged.log", "--num-threads=4"])
        probe = ("munge", "-S", f"{run}/munge.socket", "-n")
        self.wait_for("munged", lambda: self._run(*probe, check=False).returncode == 0)

    def start_accounting(self) -> None:
        """Start MariaDB and slurmdbd, and register cluster and people."""
        production = self._spec.profile is Profile.PRODUCTION
        store = database.Database(self._folder, "slurm" if production else current_user())
        self._run(*store.install_command())
        self.spawn("mariadbd", store.server_command())
        self.wait_for("mariadbd", lambda: self._run(*store.ping_command(), check=False).returncode == 0)
        self._run(*store.create_command())
        self.spawn("slurmdbd", ["slurmdbd", "-D"], {"MYSQL_UNIX_PORT": str(store.socket)})
        self.wait_for("slurmdbd", lambda: self._run("sacctmgr", "-n", "show", "cluster", check=False).returncode == 0)
        self._register(production=production)

    def start_controllers(self) -> None:
        """Start slurmctld, and its backup where there is to be one."""
        self.start_controller(CONTROLLER)
        if self._spec.backup:
            self.start_controller(BACKUP)
            # Killed before it has written this once, it has no successor: the backup refuses (seen on 24.11).
            self.wait_for(CONTROLLER, (self._folder / "state/heartbeat").exists)

    def start_controller(self, name: str) -> None:
        """Start one slurmctld and return when it answers pings."""
        conf = self._folder / "etc/slurm.conf"
        if self._spec.backup:
            etc, number = self._folder / "etc", CONTROLLERS.index(name)
            files = [str(etc / "hosts"), str(etc / f"slurm-{name}.conf"), str(conf)]
            inner = ["sh", "-c", ON_OWN_HOST, slurm_conf.CONTROLLER_HOSTS[number], *files]
            self.spawn(name, ["unshare", "--uts", "--mount", "--propagation", "private", *inner])
        else:
            self.spawn(name, ["slurmctld", "-D", "-f", str(conf)])
        self.wait_for(name, lambda: self._answers(name))

    def known(self, name: str) -> Process | None:
        """Return the process, dead or alive; None when it was not started or is not part of this cluster."""
        return state.read(self._folder).processes.get(name)

    def kill(self, name: str) -> None:
        """End it as a crash does."""
        self._alive(name).kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send it a signal."""
        self._alive(name).signal(number)

    def spawn(self, name: str, command: list[str], more: Mapping[str, str] | None = None) -> Process:
        """Start a process of the cluster and remember it."""
        environment = self._environment() | {MARK: str(self._folder)} | dict(more or {})
        process = spawn(command, self._folder / f"log/{name}.out", environment)
        state.remember(self._folder, name, process)
        return process

    def wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready`; a daemon that has ended meanwhile is told at once, with the end of its log."""

        def done() -> bool:
            process = self.known(name)
            if process and not process.alive:
                raise ClusterError(f"{name} ended while starting:\n{self._log_tail(name)}")
            return ready()

        wait_until(done, START_TIMEOUT_S, f"{name} to be ready; logs are in {self._folder}/log")

    def _alive(self, name: str) -> Process:
        process = self.known(name)
        if process is None or not process.alive:
            raise ClusterError(f"{name} is not running")
        return process

    def _answers(self, name: str) -> bool:
        done = self._run("scontrol", "ping", check=False)
        role = "backup" if name == BACKUP else "primary"
        # One line for each, such as `Slurmctld(primary) at ctl1 is UP`; 22.05's exit status is that of any of them.
        return re.search(rf"^Slurmctld\({role}\d*\).* is UP", done.stdout, re.MULTILINE) is not None

    def _register(self, *, production: bool) -> None:
        accounts = self._folder / "etc/accounts.cfg" if production else None
        if accounts:
            accounts.write_text(database.accounts(USERS))
        command = database.register_command(accounts)
        done = self._run(*command, check=False)
        # A cluster that is started again is registered already.
        if done.returncode != 0 and not re.search("Nothing new added|already exists", done.stdout + done.stderr):
            raise SlurmCommandError(command, done.returncode, done.stderr or done.stdout)

    def _log_tail(self, name: str) -> str:
        files = [self._folder / f"log/{name}.log", self._folder / f"log/{name}.out"]
        lines = [line for file in files if file.exists() for line in file.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(lines)
