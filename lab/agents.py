"""Node agents on a lab cluster: a real `relight agent` for each node, whose GPUs are pretended (`nvml_stub`).

An agent runs inside its node: it sees that node's processes and no others, and ends with it. What is written to
`Cluster.kernel_log` is its kernel log.

    agents = start_agents(cluster, "http://127.0.0.1:8642", open_key(settings.ingest_key))
    agents["n1"].gpus.set(3, sm_clock=900, throttle=0x40)
    stop_agents(agents)
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from relight.domain.reports import agent_token
from relight.lab import state
from relight.lab.cluster import Cluster
from relight.lab.errors import ClusterError
from relight.lab.node_processes import NODE_MARK
from relight.lab.nvml_stub import LIBRARY, NoCompilerError, NvmlStub, build
from relight.lab.processes import MARK, Process, children, kill_all, spawn, wait_until
from relight.lab.slurm_conf import GPUS_PER_NODE

START_TIMEOUT_S = 20


class NodeAgent(NamedTuple):
    """The agent of one node."""

    node: str
    process: Process
    """As seen outside the node."""
    gpus: NvmlStub
    """What the node's GPUs do."""
    log: Path


def start_agents(
    cluster: Cluster,
    controller_url: str,
    key: bytes,
    *,
    nodes: Iterable[str] | None = None,
    beat_s: float = 1.0,
    care: Mapping[str, object] | None = None,
) -> dict[str, NodeAgent]:
    """Start an agent on each node, or on those named; by node. They end with their node, or by `stop_agents`.

    Args:
        cluster: is running.
        controller_url: where the controller's ingest endpoint listens.
        key: what that makes the agents' tokens from (`workers.ingest.open_key`).
        nodes: where; all where not said.
        beat_s: seconds between two beats and two readings of the GPUs. Questions are fetched with a beat.
        care: the agents' setting of that name, such as a site's script for checks.

    Raises:
        ClusterError: the nodes have no namespaces of their own here, or there is no C compiler.
    """
    if not state.read(cluster.folder).pid_namespaces:
        raise ClusterError("agents need nodes with PID namespaces: without them each would see all nodes' processes")
    library = _library(cluster.folder / "agents")
    names = cluster.spec.node_names if nodes is None else nodes
    return {
        node: _start(
            cluster, node, controller_url, agent_token(key, node), library=library, beat_s=beat_s, care=care or {}
        )
        for node in names
    }


def stop_agents(agents: Mapping[str, NodeAgent]) -> None:
    """End them as a power cut would."""
    kill_all([agent.process for agent in agents.values()])


def _library(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    if (folder / LIBRARY).exists():
        return folder / LIBRARY
    try:
        return build(folder)
    except NoCompilerError as error:
        raise ClusterError(str(error)) from error


def _start(
    cluster: Cluster, node: str, url: str, token: str, *, library: Path, beat_s: float, care: Mapping[str, object]
) -> NodeAgent:
    kernel_log, folder = cluster.kernel_log(node), cluster.folder / "agents" / node
    folder.mkdir(exist_ok=True)
    gpus = NvmlStub(folder / "gpus", library, GPUS_PER_NODE)
    token_file, settings, log = folder / "token", folder / "agent.yaml", folder / "agent.log"
    token_file.touch(mode=0o600)
    token_file.write_text(token)
    # What else is mounted on this machine is not the node's.
    content = {"beat": beat_s, "paths": [str(folder)], "mounts": False, "state": str(folder / "agent.json")}
    content["care"] = dict(care)
    settings.write_text(json.dumps(content))
    inside = _first_process(cluster, node)
    command = ["nsenter", f"--target={inside}", "--pid", "--mount", "--", sys.executable, "-m", "relight.workers.cli"]
    command += ["agent", "--controller", url, "--token-file", str(token_file), "--node", node]
    command += ["--kernel-log", str(kernel_log), "--config", str(settings)]
    own = {name: value for name, value in cluster.environment().items() if not name.startswith("RELIGHT_")}
    marks = {MARK: str(cluster.folder), NODE_MARK: node}
    entering = spawn(command, log, own | gpus.environment | marks)

    def entered() -> bool:
        if not entering.alive:
            raise ClusterError(f"the agent of {node} ended at once; see {log}")
        return bool(children(entering.pid))

    wait_until(entered, START_TIMEOUT_S, f"the agent of {node} to start")
    process = Process.of(children(entering.pid)[0])
    if process is None:
        raise ClusterError(f"the agent of {node} ended at once; see {log}")
    return NodeAgent(node, process, gpus, log)


def _first_process(cluster: Cluster, node: str) -> int:
    """The first process of the node's PID namespace, by its number outside."""
    known = state.read(cluster.folder).processes.get(node)
    inside = children(known.pid) if known and known.alive else []
    if not inside:
        raise ClusterError(f"{node} is not running")
    return inside[0]
