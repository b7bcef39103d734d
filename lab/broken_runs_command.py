"""`relight lab break`."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from relight.lab import packages
from relight.lab.broken_runs import NODES, Kind, kinds
from relight.lab.broken_runs_break import Breaker
from relight.lab.cluster import Cluster
from relight.lab.engines import torch_is_installed
from relight.lab.errors import ClusterError
from relight.lab.ports import NoFreePortsError
from relight.lab.processes import DaemonStartError, WaitTimeoutError
from relight.lab.spec import ClusterSpec, Profile

FAILED, USAGE = 1, 2


class _Kinds(click.Command):
    """Lists the kinds below its help."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        del context
        with formatter.section("Kinds"):
            formatter.write_dl([(name, f"{kind.told} ({kind.launch})") for name, kind in kinds().items()])


@click.command("break", cls=_Kinds)
@click.argument("names", metavar="[KIND]...", nargs=-1)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--all", "everything", is_flag=True, help="Every kind.")
@click.option("--nodes", type=click.IntRange(NODES, 20), default=8, show_default=True, help="Of the cluster.")
def break_(names: tuple[str, ...], folder: Path, nodes: int, *, everything: bool) -> None:
    """Break real PyTorch runs, and keep their logs in DIR with the truth about each.

    Starts a Slurm cluster of its own, runs a job of eight ranks on two nodes for each KIND, lets it break, and stops
    the cluster. DIR is then a corpus for `relight lab bench attribution`: logs, kernel logs, what Slurm knows,
    labels.tsv. Needs root (nodes get host names of their own) and PyTorch. Exit codes: 0 done, 1 failed or a kind is
    missing in DIR, 2 wrong usage.
    """
    chosen = _chosen(names, everything=everything)
    if os.geteuid() != 0:
        _fail("breaking runs needs root: each node gets a host name and mounts of its own", FAILED)
    if not torch_is_installed():
        _fail("PyTorch is not installed: pip install torch (or `deploy/bootstrap.sh torch cheap`)", FAILED)
    if (folder / "labels.tsv").exists():
        _fail(f"{folder}: found a labels.tsv there already; name a new folder", FAILED)
    try:
        packages.ensure(accounting=False, production=False, say=_say)
        with _own_cluster(nodes) as cluster:
            left = Breaker(cluster, folder, _say).run(chosen)
    except (
        ClusterError,
        DaemonStartError,
        NoFreePortsError,
        OSError,
        WaitTimeoutError,
        packages.SlurmNotInstallableError,
    ) as error:
        _fail(str(error), FAILED)
    for name, why in left.refused.items():
        _say(f"{name}: cannot be had here: {why}")
    for name, why in left.unbroken.items():
        _say(f"{name}: did not break as it should: {why}")
    lacking = len(left.refused) + len(left.unbroken)
    click.echo(f"{len(chosen) - lacking} broken runs in {folder}")
    sys.exit(FAILED if lacking else 0)


def _chosen(names: tuple[str, ...], *, everything: bool) -> Mapping[str, Kind]:
    known = kinds()
    if bool(names) is everything:
        _fail(f"name one or more kinds, or --all; there are {', '.join(known)}", USAGE)
    if wrong := [name for name in names if name not in known]:
        _fail(f"no kind {wrong[0]!r}; there are {', '.join(known)}", USAGE)
    return known if everything else {name: known[name] for name in names}


@contextmanager
def _own_cluster(nodes: int) -> Iterator[Cluster]:
    # A short path: Unix sockets lie in it.
    folder = Path(tempfile.mkdtemp(prefix="relight-break-", dir="/tmp"))
    cluster = Cluster(ClusterSpec(folder=folder, nodes=nodes, profile=Profile.FAST))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(code)
