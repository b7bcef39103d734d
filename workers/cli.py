"""The `relight` command: puts together what the folders offer. Each part is imported only when it is used."""

import importlib
import sys
from collections.abc import Mapping

import click

COMMANDS: Mapping[str, tuple[str, str]] = {
    "agent": ("relight.workers.agent:agent", "Tell the controller what is wrong with this node."),
    "agent-token": (
        "relight.workers.command:agent_token",
        "Print the token of a node's agent (or of `slurmctld`, or of a `relay`).",
    ),
    "approve": ("relight.console.decide_command:approve", "Approve the plan of an incident that waits for people."),
    "approvers": ("relight.console.decide_command:approvers", "Say who may approve what, and how many it needs."),
    "breaker": ("relight.console.guard_commands:breaker", "Show the breaker, pauses and limits; reset the breaker."),
    "catalogue": (
        "relight.attribution.catalogue_command:catalogue",
        "Show the failures that Relight knows; check a site's own entries.",
    ),
    "checkpoints": (
        "relight.console.checkpoints_command:checkpoints",
        "Show a job's checkpoints: which are whole, which a restart takes.",
    ),
    "config": ("relight.console.config_command:config", "Check settings, and show those in force."),
    "diagnose": ("relight.attribution.command:diagnose", "Find out why a run died, from its logs alone."),
    "doctor": ("relight.console.cli:doctor", "Check everything Relight needs here, and say what to do."),
    "incidents": ("relight.console.cli:incidents", "List incidents, newest first."),
    "lab": ("relight.lab.cli:lab", "A real Slurm cluster on this machine, to try things out."),
    "keep": ("relight.console.nodes_command:keep", "Leave a node in quarantine, whatever its checks say."),
    "nodes": ("relight.console.nodes_command:nodes", "List nodes in quarantine, or tell one node's story."),
    "pause": ("relight.console.guard_commands:pause", "Only observe for a while: cluster, partition or node."),
    "reject": ("relight.console.decide_command:reject", "Reject the plan of an incident that waits for people."),
    "relay": ("relight.workers.relay:relay", "Forward the reports of many node agents to the controller, together."),
    "release": ("relight.console.nodes_command:release", "Say that a node is repaired: it is checked, and returned."),
    "resume": ("relight.console.guard_commands:resume", "End a pause."),
    "show": ("relight.console.cli:show", "Tell one incident's story."),
    "status": ("relight.console.cli:status", "Say who watches, and what each detector last saw."),
    "why": ("relight.console.cli:why", "Explain what Relight did, or did not do, about a job."),
    "worker": ("relight.workers.command:worker", "Run a worker."),
}


class _Lazy(click.Group):
    """Knows the commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command now."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(COMMANDS[cmd_name][0])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list under `relight --help`, without importing anything."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Completion: eval "$(_RELIGHT_COMPLETE=bash_source relight)"  (or zsh_source, fish_source)',
)
@click.version_option(package_name="relight", message="%(prog)s %(version)s")
def main() -> None:
    """Keep distributed training running on a Slurm GPU cluster."""


if __name__ == "__main__":
    sys.exit(main())
