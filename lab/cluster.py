"""A real Slurm cluster on this machine, in a folder of its own.

Every daemon is real (munged, slurmctld, one slurmd per node and, with accounting, MariaDB and slurmdbd); only the
nodes' hardware is pretended. Clusters in different folders do not see each other. The daemons outlive
the process that started them; `stop` ends them from any process, given the folder.

    cluster = Cluster(ClusterSpec(folder=Path("/tmp/lab"), nodes=4))
    cluster.start()
    job_id = cluster.submit(script)
    cluster.kill_node("n1")
    cluster.stop()
"""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from relight.lab import folders, machine, packages, ports, slurm_conf, state
from relight.lab.commands import command_environment, run_as
from relight.lab.daemons import CONTROLLER, CONTROLLERS, LAST_FIRST, START_TIMEOUT_S, Daemons
from relight.lab.errors import ClusterError, NodeNotFoundError, SlurmCommandError
from relight.lab.node_processes import NODE_MARK, in_our_root, on_node
from relight.lab.processes import Process, descendants, kill_all, marked, wait_until
from relight.lab.runtime import OURS, Runtime, make_mount_points, runtime_for_others
from relight.lab.slurm_conf import Plan
from relight.lab.spec import ClusterSpec, Profile
from relight.lab.state import ClusterNotFoundError, State
from relight.lab.users import USERS, Users, create_users, current_user

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterNotFoundError",
    "ClusterSpec",
    "ClusterStatus",
    "NodeNotFoundError",
    "Profile",
    "SlurmCommandError",
]

COMMAND_TIMEOUT_S = 60

# $0 is the node, the rest are pairs of what to mount where (see `runtime`).
# bash is PID 1 of the namespace and reaps what slurmd leaves behind. A shell's background jobs ignore SIGINT and
# SIGQUIT, and so would every task of every job: env(1) undoes that. When slurmd ends, the node ends.
NODE_INIT = """\
while [ $# -gt 0 ]; do mount --bind "$1" "$2" || exit; shift 2; done
env --default-signal=INT,QUIT slurmd -D -N "$0" -f "$SLURM_CONF" & wait
"""


class ClusterStatus(BaseModel):
    """How a cluster is doing."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    running: bool
    """Whether slurmctld answers."""
    slurm_version: str
    """Such as 22.05."""
    processes: dict[str, bool]
    """Daemon or node name to whether its process is alive."""
    nodes: dict[str, str] | None
    """Node name to Slurm's state (`idle`, `down*`, ...); None when slurmctld does not answer."""


class Cluster:
    """A lab cluster; see the module."""

    def __init__(self, spec: ClusterSpec) -> None:
        """Describe a cluster; nothing happens until `start`."""
        self.spec = spec
        self.folder = spec.folder
        self._daemons = Daemons(spec, self.run, self.environment)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the cluster that was started in `folder`; raise `ClusterNotFoundError` when there is none."""
        return cls(state.read(folder.absolute()).spec)

    @property
    def users(self) -> Users:
        """The Unix users of the production profile."""
        return USERS

    @property
    def slurm_conf(self) -> Path:
        """The cluster's slurm.conf."""
        return self.folder / "etc/slurm.conf"

    @property
    def runtime(self) -> Runtime:
        """The Python for jobs: this process's own, made reachable for other users in the production profile."""
        return runtime_for_others(self.folder) if self.spec.profile is Profile.PRODUCTION else OURS

    def kernel_log(self, node: str) -> Path:
        """Return the file that stands in for a node's kernel log; empty at the start."""
        return self._node_folder(node) / "kern.log"

    def node_log(self, node: str) -> Path:
        """Return the log of a node's slurmd."""
        self._node_folder(node)
        return self.folder / f"log/slurmd-{node}.log"

    def work_folder(self, user: str | None = None) -> Path:
        """Return the folder in which that user's (default: our own) jobs write."""
        return self.folder / "work" / (user or current_user())

    def make_run_folder(self, name: str, user: str | None = None) -> Path:
        """Create a new folder for a job's output and checkpoints, owned by that user, and return it."""
        parent = self.work_folder(user)
        number = 1 + sum(1 for _ in parent.iterdir())
        folder = parent / f"{name}-{number:03}"
        folder.mkdir()
        if user is not None:
            shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
        return folder

    def environment(self, user: str | None = None) -> dict[str, str]:
        """Return the environment in which Slurm's commands talk to this cluster.

        For ourselves it is this process's own, without another cluster's variables; for another user a fresh one.
        """
        return command_environment(user, self.work_folder(user)) | {"SLURM_CONF": str(self.slurm_conf)}

    # Life

    def start(self) -> None:
        """Start every daemon and return when all nodes are idle.

        On failure or interruption nothing is left running. Raises `ClusterError` when the machine lacks something
        or the cluster runs already.
        """
        self._check()
        folders.make(self.spec)
        state.write(State(spec=self.spec))
        try:
            with ports.claimed_ports(slurm_conf.PORTS_BESIDE_NODES + self.spec.nodes) as port:
                self._start(port)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of this cluster; the folder stays. Does nothing when nothing runs."""
        try:
            known = dict(state.read(self.folder).processes)
        except ClusterNotFoundError:
            known = {}
        # Nodes first, and at once: their tasks go with them. Then each daemon before the one it writes to.
        for name in self.spec.node_names:
            self._end_node(name, known.pop(name, None))
        for name in LAST_FIRST:
            if process := known.get(name):
                process.signal(signal.SIGCONT)
                process.end()
        # What was started in the moment before it could be noted.
        for process in list(marked(self.folder)):
            if in_our_root(process.pid):
                process.kill()
        if (self.folder / state.FILE).exists():
            state.write(state.read(self.folder).model_copy(update={"processes": {}}))

    def status(self) -> ClusterStatus:
        """Return which processes live and what Slurm says of the nodes."""
        known = state.read(self.folder)
        nodes = self.node_states()
        major, minor = known.slurm_version
        return ClusterStatus(
            folder=self.folder,
            running=nodes is not None,
            slurm_version=f"{major}.{minor:02}",
            processes={name: process.alive for name, process in known.processes.items()},
            nodes=nodes,
        )

    def node_states(self) -> dict[str, str] | None:
        """Return each node's state in Slurm's long words, or None when slurmctld does not answer."""
        controllers = [self._daemons.known(name) for name in CONTROLLERS]
        if not any(known and known.alive for known in controllers):
            return None
        done = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False)
        if done.returncode != 0:
            return None
        return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())

    # Nodes

    def kill_node(self, node: str) -> None:
        """End a node as a power cut does: slurmd, step daemons and tasks, at once and without a word."""
        self._node_folder(node)
        self._end_node(node, state.read(self.folder).processes.get(node))

    def start_node(self, node: str) -> None:
        """Start a node that was killed, and return when Slurm has it back.

        Waits first until Slurm has noticed the death: a node that returns before keeps its jobs RUNNING without
        any task, because Slurm knows a reboot only by the machine's boot time.
        """
        self._node_folder(node)
        if (known := state.read(self.folder).processes.get(node)) and known.alive:
            return
        wait_until(lambda: self._node_state(node).endswith(("*", "down")), 120, f"Slurm to miss {node}", 0.2)
        self._spawn_node(node)
        wait_until(lambda: not self._node_state(node).endswith("*"), START_TIMEOUT_S, f"{node} to answer", 0.1)

    def freeze_node(self, node: str) -> None:
        """Make a node's slurmd answer no more; its tasks go on."""
        self._signal_slurmd(node, signal.SIGSTOP)

    def thaw_node(self, node: str) -> None:
        """Undo `freeze_node`."""
        self._signal_slurmd(node, signal.SIGCONT)

    # Daemons

    def kill_controller(self) -> None:
        """End slurmctld as a crash does. Where there is a backup, it takes over after `SlurmctldTimeout`."""
        self._daemons.kill(CONTROLLER)

    def start_controller(self) -> None:
        """Start slurmctld again, and return when it answers; a backup in charge hands over to it."""
        self._daemons.start_controller(CONTROLLER)

    def freeze_controller(self) -> None:
        """Make slurmctld answer no more: connections are still taken, by the kernel."""
        self._daemons.signal(CONTROLLER, signal.SIGSTOP)

    def thaw_controller(self) -> None:
        """Undo `freeze_controller`."""
        self._daemons.signal(CONTROLLER, signal.SIGCONT)

    def kill_munge(self) -> None:
        """End munged: no command, and no daemon, can say who it is."""
        self._daemons.kill("munged")

    def start_munge(self) -> None:
        """Start munged again, and return when it answers."""
        self._daemons.start_munged()

    # Commands

    def run(
        self,
        *command: str,
        user: str | None = None,
        check: bool = True,
        stdin: str = "",
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against this cluster, as another user where one is named (needs root).

        It runs in that user's work folder. Raises `SlurmCommandError` on a non-zero exit unless `check` is False.
        """
        folder = self.work_folder(user)
        done = run_as(
            user, command, environment=self.environment(user), folder=folder, stdin=stdin, timeout_s=timeout_s
        )
        if check and done.returncode != 0:
            raise SlurmCommandError(command, done.returncode, done.stderr or done.stdout)
        return done

    def submit(self, script: str, *sbatch_arguments: str, user: str | None = None) -> int:
        """Submit the text of a batch script and return the job's id."""
        done = self.run("sbatch", "--parsable", *sbatch_arguments, user=user, stdin=script)
        return int(done.stdout.split(";")[0])

    def job_field(self, job_id: int | str, field: str) -> str | None:
        """Return one field of `scontrol show job` (such as JobState), or None when there is no such job or field."""
        done = self.run("scontrol", "-o", "show", "job", str(job_id), check=False)
        found = re.search(rf"(?:^|\s){re.escape(field)}=(\S*)", done.stdout)
        return found[1] if done.returncode == 0 and found else None

    # Inside

    def _check(self) -> None:
        if lacking := packages.missing(self.spec.with_accounting, self.spec.profile is Profile.PRODUCTION):
            raise ClusterError(f"these Debian packages are missing: {' '.join(lacking)} (relight.lab.packages.ensure)")
        if (self.folder / state.FILE).exists() and any(p.alive for p in state.read(self.folder).processes.values()):
            raise ClusterError(f"a cluster is running in {self.folder}; stop it first")
        if self.spec.profile is Profile.PRODUCTION and os.geteuid() != 0:
            raise ClusterError("the production profile has separate users and needs root")
        if self.spec.backup and os.geteuid() != 0:
            raise ClusterError("two controllers have host names of their own, which needs root")

    def _start(self, port: int) -> None:
        known = State(
            spec=self.spec,
            port=port,
            slurm_version=machine.slurm_version(),
            pid_namespaces=machine.namespaces_work(),
        )
        state.write(known)
        if self.runtime.mounts and not known.pid_namespaces:
            raise ClusterError(f"the lab's users cannot run {sys.executable}, nor may it be mounted where they can")
        make_mount_points(self.runtime)
        self._make_users()
        folders.write_configuration(self._plan(known))
        self._daemons.start_munged()
        if self.spec.with_accounting:
            self._daemons.start_accounting()
        self._daemons.start_controllers()
        for node in self.spec.node_names:
            self._spawn_node(node)
        self._daemons.wait_for("all nodes", self._all_idle)

    def _plan(self, known: State) -> Plan:
        production = self.spec.profile is Profile.PRODUCTION
        return Plan(
            spec=self.spec,
            host=socket.gethostname().split(".")[0],
            port=known.port,
            slurm_version=known.slurm_version,
            slurm_user="slurm" if production else current_user(),
            slurmd_user="root" if production else current_user(),
            gpu_files=machine.gpu_stand_ins(self.folder / "gpu"),
        )

    def _make_users(self) -> None:
        names = [current_user()]
        if self.spec.profile is Profile.PRODUCTION:
            create_users()
            names += USERS.all
        for name in names:
            folder = self.work_folder(name)
            folder.mkdir(exist_ok=True)
            shutil.chown(folder, name, pwd.getpwnam(name).pw_gid)

    def _spawn_node(self, node: str) -> None:
        isolated = state.read(self.folder).pid_namespaces
        prefix = machine.namespace_command() if isolated else []
        # Never outside a node's own mount namespace: such a mount would outlive the cluster.
        mounts = [str(path) for pair in self.runtime.mounts for path in pair] if isolated else []
        self._daemons.spawn(node, [*prefix, "bash", "-c", NODE_INIT, node, *mounts], {NODE_MARK: node})

    def _end_node(self, node: str, process: Process | None) -> None:
        """Kill all of a node: by its PID 1 where it has one (the kernel then kills the rest), else one by one."""
        kill_all([*([process] if process else []), *on_node(self.folder, node)])

    def _signal_slurmd(self, node: str, number: signal.Signals) -> None:
        self._node_folder(node)
        known = state.read(self.folder).processes.get(node)
        for pid in descendants(known.pid) if known else []:
            if _command_name(pid) == "slurmd" and (process := Process.of(pid)):
                process.signal(number)
                return
        raise ClusterError(f"{node} has no slurmd running")

    def _node_folder(self, node: str) -> Path:
        if node not in self.spec.node_names:
            raise NodeNotFoundError(f"no node {node!r}; there are {', '.join(self.spec.node_names)}")
        return self.folder / "nodes" / node

    def _node_state(self, node: str) -> str:
        return (self.node_states() or {}).get(node, "unknown")

    def _all_idle(self) -> bool:
        states = self.node_states() or {}
        return all(states.get(node) == "idle" for node in self.spec.node_names)


def _command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
