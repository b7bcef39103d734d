"""The `relight` command: puts together what the folders offer. Each part is imported only when it is used."""

import atexit
import importlib
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

import click

BRIDGE = "temporalio.bridge.temporal_sdk_bridge"
"""Temporal's native part, once it is loaded."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "agent": ("relight.workers.agent:agent", "Tell the controller what is wrong with this node."),
    "agent-token": (
        "relight.workers.command:agent_token",
        "Print the token of a node's agent (or of `slurmctld`, or of a `relay`).",
    ),
    "approve": ("relight.console.decide_command:approve", "Approve the plan of an incident that waits for people."),
    "approvers": ("relight.console.decide_command:approvers", "Say who may approve what, and how many it needs."),
    "audit": ("relight.console.audit_command:audit", "Check, list or export the audit trail."),
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
    "console": ("relight.console.web.command:console", "Serve the web console; make tokens to sign in with."),
    "diagnose": ("relight.attribution.command:diagnose", "Find out why a run died, from its logs alone."),
    "doctor": ("relight.console.cli:doctor", "Check everything Relight needs here, and say what to do."),
    "goodput": ("relight.console.goodput_command:goodput", "Say where the time of a job or the cluster went."),
    "incidents": ("relight.console.cli:incidents", "List incidents, newest first."),
    "lab": ("relight.lab.cli:lab", "A real Slurm cluster on this machine, to try things out."),
    "keep": ("relight.console.nodes_command:keep", "Leave a node in quarantine, whatever its checks say."),
    "ledger": ("relight.console.audit_command:ledger", "Bring the ledger's database up to date; its roles' rights."),
    "nodes": ("relight.console.nodes_command:nodes", "List nodes in quarantine, or tell one node's story."),
    "outputs": ("relight.console.outputs_command:outputs", "Show what was kept of a job's failed attempts."),
    "notify": ("relight.console.notify_command:notify", "Try the channels by which people are told."),
    "pause": ("relight.console.guard_commands:pause", "Only observe for a while: cluster, partition or node."),
    "reject": ("relight.console.decide_command:reject", "Reject the plan of an incident that waits for people."),
    "relay": ("relight.workers.relay:relay", "Forward the reports of many node agents to the controller, together."),
    "release": ("relight.console.nodes_command:release", "Say that a node is repaired: it is checked, and returned."),
    "resume": ("relight.console.guard_commands:resume", "End a pause."),
    "scorecard": (
        "relight.console.scorecard_command:scorecard",
        "Hold what Relight decided against what happened; say what may go to auto.",
    ),
    "show": ("relight.console.cli:show", "Tell one incident's story."),
    "status": ("relight.console.cli:status", "Say who watches, and what each detector last saw."),
    "why": ("relight.console.cli:why", "Explain what Relight did, or did not do, about a job."),
    "worker": ("relight.workers.command:worker", "Run a worker."),
}


GROUPS: Mapping[str, tuple[str, ...]] = {
    "Look": (
        *("status", "incidents", "show", "why", "diagnose", "outputs", "checkpoints", "goodput", "scorecard"),
        *("audit", "catalogue", "console"),
    ),
    "Decide": ("approve", "reject", "approvers", "pause", "resume", "breaker"),
    "Nodes": ("nodes", "release", "keep"),
    "Set up": ("doctor", "config", "notify", "ledger", "worker", "agent", "agent-token", "relay", "lab"),
}
"""Under which heading each stands in the overview."""


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; it suggests only what it has loaded."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list under `relight --help`, without importing anything."""
        del ctx
        widest = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), COMMANDS[name][1]) for name in names])


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Completion: eval "$(_RELIGHT_COMPLETE=bash_source relight)"  (or zsh_source, fish_source)',
)
@click.version_option(package_name="relight", message="%(prog)s %(version)s")
def main() -> None:
    """Keep distributed training running on a Slurm GPU cluster."""


def run() -> NoReturn:
    """Run the command, and end the process.

    Once Temporal's client was used its native threads live on, and one that lets go of a Python object while the
    interpreter is taken down aborts the process, after all is done and said (seen, exit code -6). So then the
    interpreter is not taken down: what is to be done at exit is done, and the process ends.
    """
    code: str | int | None = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if BRIDGE not in sys.modules:
        sys.exit(code)
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    atexit._run_exitfuncs()  # noqa: SLF001 - what sys.exit() would do
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    run()
