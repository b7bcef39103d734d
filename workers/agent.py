"""`relight agent`: tells the controller what is wrong with this node.

A plain loop without Temporal, without a listening port, and without pydantic: it runs on every node beside users' jobs,
so its memory and its share of a core are counted (tests/workers/test_agent_footprint.py).
"""

import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

import click


class Options(NamedTuple):
    """What the command line says."""

    controller: str
    token_file: str
    node: str | None = None
    ca: str | None = None
    kernel_log: str = "kmsg"
    config: str | None = None


class _Stop(click.ClickException):
    """Cannot start. One line says why."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print as all of our commands do."""
        click.echo(f"relight: {self.message}", file=file, err=file is None)


@click.command()
@click.option("--controller", required=True, metavar="URL", help="The controller's endpoint for agents.")
@click.option("--token-file", required=True, metavar="FILE", help="This node's token; readable by its owner only.")
@click.option("--node", metavar="NAME", help="This node's name in Slurm.  [default: SLURMD_NODENAME or host name]")
@click.option("--ca", metavar="FILE", help="Trust these certificates instead of the system's.")
@click.option(
    "--kernel-log",
    default="kmsg",
    show_default=True,
    metavar="FILE|kmsg",
    help="Where the kernel's messages are read. Into a file, users' programs may be able to write.",
)
@click.option(
    "--config", metavar="FILE", help="Settings: beat, paths, mounts, nvml, state, py_spy, plain_http, care, rules"
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def agent(*, verbose: bool, **options: Any) -> None:
    """Tell the controller what is wrong with this node: GPUs, kernel messages, file systems, fabric."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        from relight.workers.agent_settings import AgentSettingsError
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    try:
        run(Options(**options))
    except AgentSettingsError as error:
        raise _Stop(str(error)) from error
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> _Stop:
    return _Stop(f"{error.name} is not installed: pip install 'relight[agent]'")


def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        AgentSettingsError: when it cannot start so.
    """
    from importlib.metadata import version

    from relight.clients.host_state import boot_id
    from relight.workers.agent_checks import Checks
    from relight.workers.agent_delivery import Delivery
    from relight.workers.agent_faults import Faults
    from relight.workers.agent_loop import STOP, Agent
    from relight.workers.agent_probe import Probe
    from relight.workers.agent_send import Sender
    from relight.workers.agent_settings import AgentFile, controller, node_name, read_file, read_token
    from relight.workers.agent_state import read_state, state_path

    settings = read_file(options.config) if options.config else AgentFile()
    node, boot = node_name(options.node, os.environ), boot_id()
    target = controller(options.controller, plain_http=settings.plain_http)
    read_token(options.token_file)
    inbox: SimpleQueue[Any] = SimpleQueue()
    sender = Sender(target, options.token_file, inbox.put, options.ca)
    state_file = state_path(settings.state, os.environ)
    saved = read_state(state_file)
    faults = Faults.restored(f"{node}/{boot}", saved.get("faults"))
    fixed = {"node": node, "boot": boot, "version": version("relight")}
    kernel, *others = _watchers(options, settings, boot, saved.get("position"), inbox)
    beside = Path(sys.executable).with_name("py-spy")
    probe = Probe(
        inbox.put, settings.py_spy or (str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy")
    )
    checks = Checks(
        inbox.put,
        node=node,
        controller=f"{target.host}:{target.port}",
        care=settings.care,
        nvml=settings.nvml,
        folders=settings.paths,
    )
    loop = Agent(
        faults=faults,
        delivery=Delivery(
            fixed=fixed,
            faults=faults,
            sender=sender,
            token=options.token_file,
            beat=settings.beat,
            clock=time.monotonic,
        ),
        inbox=inbox,
        kernel=kernel,
        others=others,
        probe=probe,
        checks=checks,
        saved=saved,
        state_file=state_file,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: inbox.put(STOP))
    for each in (sender, probe, checks, kernel, *others):
        each.start()
    loop.run()


def _watchers(options: Options, settings: Any, boot: str, position: Any, inbox: "SimpleQueue[Any]") -> list[Any]:
    from relight.clients.kernel_messages import FollowedFile, KernelBuffer, KernelMessages
    from relight.workers.agent_kernel import KernelFaults
    from relight.workers.agent_watch import EventWatcher, GpuWatcher, HostWatcher, KernelWatcher

    def there(*numbers: str) -> Any:
        # Where the position is of the other source, or broken, nothing is known of this one.
        good = isinstance(position, dict) and all(isinstance(position.get(name), int) for name in numbers)
        return position if good else None

    messages: KernelMessages
    if options.kernel_log == "kmsg":
        messages = KernelBuffer(boot, there("next"))
    else:
        messages = FollowedFile(options.kernel_log, there("inode", "offset"))
    watchers: list[Any] = [
        KernelWatcher(inbox.put, messages, KernelFaults(settings.rules)),
        HostWatcher(inbox.put, settings.paths, 3 * settings.beat, mounts=settings.mounts),
    ]
    if settings.nvml:
        gpus = GpuWatcher(inbox.put, settings.beat)
        watchers += [gpus, EventWatcher(inbox.put, gpus)]
    return watchers
