"""Everything at once on one machine: a Slurm cluster, a Temporal server and a controller worker that watches it.

The parts are real and run as processes of their own; `stop` ends them all.
"""

import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from relight.config.settings import Way
from relight.lab import temporal
from relight.lab.agents import NodeAgent, start_agents
from relight.lab.cluster import Cluster
from relight.lab.node_wrapper import CPU_TIME_AS, install_submitter, install_wrapper, remove_wrapper
from relight.lab.ports import claimed_ports
from relight.lab.processes import MARK, Process, marked, spawn, wait_until
from relight.lab.runtime import as_user
from relight.lab.spec import ClusterSpec, Profile
from relight.lab.sshd import Sshd
from relight.lab.way_pyslurm import pyslurm_python

WORKER_TIMEOUT_S = 60
FILE = "worker.json"


class StackError(Exception):
    """A part could not be started; the message says which and where its log is."""


class StackSpec(BaseModel):
    """What to start."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    nodes: int = 4
    profile: Profile = Profile.FAST
    cluster_name: str = "lab"
    second_witness: bool = False
    """In production: whether the service may run sstat as SlurmUser, which a site has to allow. Without it and
    without agents a hang has no second witness, and a person must approve."""
    way: Way = Way.COMMANDS
    """How the worker reaches Slurm. By SSH it goes through the gate, reads logs over the same connection, and needs no
    mount."""
    fresh_jobs: bool = False
    """In production: whether the service may submit jobs as their owner, which a site has to allow."""
    policy: Mapping[str, Any] = {}
    """Keys of the policy, over those of `LAB_POLICY`."""
    switches: int = 0
    """Leaf switches among which the nodes are dealt out; 0: no topology."""
    agents: bool = False
    """Whether each node has an agent, that tells the worker of its pretended GPUs and takes stacks."""


LAB_POLICY: Mapping[str, Any] = {
    "mode": "auto",
    "trust_temporal_ui": True,
    "approval_expires": "PT4M",
    "progress_within": "PT5M",
    "fall_back": "auto",
    # Fault after fault on a few nodes, put back by hand in between: on a site each of these would rightly stop Relight.
    "drain_share": "100%",
    "most_unavailable": "100%",
    "cool_down": "1s",
    "breaker": {"nodes": 1000, "jobs": 1000, "failed_restarts": 100, "reversals": 100},
}


class Stack:
    """A cluster under Relight's care."""

    def __init__(self, spec: StackSpec) -> None:
        """Describe it; nothing happens until `start`."""
        self.spec = spec
        self.folder = spec.folder.absolute()
        self.cluster = Cluster(
            ClusterSpec(folder=self.folder / "slurm", nodes=spec.nodes, profile=spec.profile, switches=spec.switches)
        )
        self.temporal: temporal.TemporalServer | None = None
        self.sshd: Sshd | None = None
        self.agents: dict[str, NodeAgent] = {}
        self._ingest_port = 0

    @property
    def config(self) -> Path:
        """The worker's settings file."""
        return self.folder / "relight.yaml"

    @property
    def worker_log(self) -> Path:
        """What the worker says."""
        return self.folder / "worker.log"

    def start(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """Start cluster, Temporal and worker; on failure or interruption nothing is left running."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.cluster.start()
            say(f"a real Slurm cluster ({self.cluster.status().slurm_version}): {self.spec.nodes} nodes, 8 GPUs each")
            if self.spec.way is Way.SSH:
                from relight.lab.way_ssh import start_gated  # noqa: PLC0415 - loads asyncssh, 0.2 s

                self.sshd = start_gated(self.cluster)
                shutil.chown(self.sshd.key, self.sshd.user)
                say(f"a real sshd at port {self.sshd.port}; its account may run relight-gate only")
            self.temporal = temporal.start(self.folder / "temporal")
            say(f"a real Temporal server, its web UI at {self.temporal.web_ui}")
            self.start_worker()
            say(f"Relight's controller worker, which reaches Slurm by {self.spec.way}")
            if self.spec.agents:
                self._start_agents()
                say("a node agent on each node; its GPUs are pretended")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of it; the folder stays. Safe to call at any time and more than once."""
        self.stop_worker()
        self.cluster.stop()
        remove_wrapper(self.cluster)
        if server := temporal.load(self.folder / "temporal"):
            server.stop()
        # What was started in the moment before it could be noted, or whose note is gone.
        for process in [*marked(self.folder), *marked(self.folder / "temporal")]:
            process.kill()

    def start_worker(self) -> None:
        """Write the settings and start the controller worker; returns when it watches."""
        self.config.write_text(yaml.safe_dump(self.settings()))
        self.worker_log.touch()
        before = self.worker_log.stat().st_size
        process = spawn(self._command(), self.worker_log, self._environment())
        (self.folder / FILE).write_text(process.model_dump_json())

        def ready() -> bool:
            return "watching cluster" in self.worker_log.read_text()[before:] or not process.alive

        wait_until(ready, WORKER_TIMEOUT_S, "the controller worker to be ready")
        if not process.alive:
            raise StackError(f"the controller worker ended at once; see {self.worker_log}")

    def _start_agents(self) -> None:
        from relight.workers.ingest import open_key  # noqa: PLC0415 - only a stack with agents needs aiohttp

        self.agents = start_agents(self.cluster, f"http://{self._listen()}", open_key(self.data / "ingest.key"))

    def _listen(self) -> str:
        """Where the worker listens for agents; the same after a restart."""
        if not self._ingest_port:
            with claimed_ports(1) as self._ingest_port:
                pass
        return f"127.0.0.1:{self._ingest_port}"

    def _command(self) -> list[str]:
        """The worker's command: in the fast profile as ourselves, in production as the service's own user."""
        command = ["-m", "relight.workers.cli", "worker", "controller", "--verbose"]
        if self.spec.profile is not Profile.PRODUCTION:
            return [sys.executable, *command]
        user = self.cluster.users.service
        shutil.chown(self.data, user, user)
        return as_user(user, self.folder / "runtime", command)

    def start_console(self) -> str:
        """Start the web console, open to who is on this machine; its address, or nothing where it is not installed.

        It is there some seconds later, and is ended with the rest.
        """
        if find_spec("nicegui") is None:
            return ""
        with claimed_ports(1) as port:
            listen = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "relight.workers.cli", "console", "--dev", "--listen", listen]
        spawn(command, self.folder / "console.log", self._environment())
        return f"http://{listen}"

    @property
    def data(self) -> Path:
        """The worker's data folder."""
        return self.folder / "relight"

    def _environment(self) -> dict[str, str]:
        environment = self.cluster.environment()
        environment = {k: v for k, v in environment.items() if not k.startswith("RELIGHT_")}
        return environment | {"RELIGHT_CONFIG": str(self.config), MARK: str(self.folder)}

    def worker(self) -> Process | None:
        """The worker's process, when it runs."""
        try:
            process = Process.model_validate_json((self.folder / FILE).read_text())
        except FileNotFoundError:
            return None
        return process if process.alive else None

    def stop_worker(self) -> None:
        """End the worker as its service manager would."""
        if process := self.worker():
            process.end()

    def kill_worker(self) -> None:
        """End the worker as a power cut would."""
        if process := self.worker():
            process.signal(signal.SIGKILL)
            wait_until(lambda: not process.alive, 10, "the worker to be gone")

    def settings(self) -> dict[str, Any]:
        """The worker's settings, as its file holds them."""
        if self.temporal is None:
            raise StackError("Temporal has not been started")
        self.data.mkdir(exist_ok=True)
        production = self.spec.profile is Profile.PRODUCTION
        ssh = {"ssh": self.sshd.login} if self.sshd else {}
        return {
            "cluster": self.spec.cluster_name,
            "data": str(self.data),
            "temporal": {"address": self.temporal.address, "ui": self.temporal.web_ui},
            "slurm": {
                "way": self.spec.way.value,
                **ssh,
                "pyslurm_python": pyslurm_python(),
                "conf": str(self.cluster.slurm_conf),
                "node_wrapper": list(install_wrapper(self.cluster)),
                "submit_wrapper": list(install_submitter(self.cluster)) if production and self.spec.fresh_jobs else [],
                "cpu_time_as": list(CPU_TIME_AS) if production and self.spec.second_witness else [],
            },
            "logs": {"over_ssh": bool(ssh), "kernel": str(self.cluster.folder / "nodes/{node}/kern.log")},
            "ingest": {"listen": self._listen() if self.spec.agents else ""},
            "policy": {**LAB_POLICY, **self.spec.policy},
        }
