"""The stack that the chaos harness breaks: production-like, with PostgreSQL, agents, and commands that can lie."""

from pathlib import Path
from typing import Any

from relight.lab.agents import NodeAgent, start_agents
from relight.lab.chaos_commands import Commands
from relight.lab.errors import ClusterError
from relight.lab.postgres import Postgres
from relight.lab.spec import Profile
from relight.lab.stack import Stack, StackSpec
from relight.workers.ingest import open_key

AGENT_BEAT_S = 5.0
SLURMD_TIMEOUT_S = 15
"""Slurm's default is 300. With less than this a slurmctld that was stopped for a while takes its nodes for lost."""
CONF = {"SlurmctldDebug": "debug2", "SlurmdTimeout": str(SLURMD_TIMEOUT_S)}
"""slurmctld names the user of a request at debug2 only."""


class ChaosStack(Stack):
    """See the module.

    Args:
        folder: of everything.
        nodes: so many.
        agents_on: so many of them have an agent.
        postgres: whether the ledger is in PostgreSQL; else in SQLite.
        policy: keys over those of the lab's policy.
    """

    def __init__(self, folder: Path, *, nodes: int, agents_on: int, postgres: bool, policy: dict[str, Any]) -> None:
        """Describe it; nothing happens until `start`."""
        profile = Profile.PRODUCTION
        super().__init__(StackSpec(folder=folder, nodes=nodes, profile=profile, second_witness=True, policy=policy))
        self.postgres = Postgres(self.folder / "pg", self.folder) if postgres else None
        self.agents_on = self.cluster.spec.node_names[:agents_on]
        self.commands: Commands | None = None
        self.without_agents = ""
        """Why there are none."""

    def start_worker(self) -> None:
        """Start what is under the worker, and then the worker."""
        if self.commands is None:
            self.commands = Commands(self.folder / "commands")
            self._configure()
            if self.postgres:
                self.postgres.start()
        super().start_worker()

    def settings(self) -> dict[str, Any]:
        """The worker's settings, and the node wrapper's."""
        settings = super().settings()
        if self.commands is None:
            return settings
        with (self.cluster.folder / "etc/relight-node.conf").open("a") as wrapper:
            wrapper.write(f"scontrol = {self.commands.bin / 'scontrol'}\n")
        settings["slurm"]["bin"] = str(self.commands.bin)
        settings["ingest"]["listen"] = self._listen() if self.agents_on else ""
        if self.postgres:
            settings["ledger"] = {"url": self.postgres.url}
        return settings

    def start_agents(self) -> None:
        """Start the agents; where there cannot be any, remember why."""
        try:
            for node in self.agents_on:
                self.start_agent(node)
        except ClusterError as error:
            self.without_agents, self.agents_on = str(error), ()

    def start_agent(self, node: str) -> NodeAgent:
        """Start a node's agent, anew where it has ended."""
        url, key = f"http://{self._listen()}", open_key(self.data / "ingest.key")
        self.agents |= start_agents(self.cluster, url, key, nodes=[node], beat_s=AGENT_BEAT_S)
        return self.agents[node]

    def _configure(self) -> None:
        conf = self.cluster.slurm_conf
        lines = [line for line in conf.read_text().splitlines() if line.partition("=")[0] not in CONF]
        conf.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in CONF.items())]) + "\n")
        self.cluster.kill_controller()
        self.cluster.start_controller()
