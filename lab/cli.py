"""The `lab` commands: a Slurm cluster on this machine, a training job on it, and faults.

Exit codes: 0 done, 1 failed, 2 wrong usage, 4 no such cluster, node, job or rank.
"""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import click
from pydantic import BaseModel, ValidationError

from relight.config.settings import Way
from relight.console.output import screen
from relight.lab import bench as measures
from relight.lab import bench_detection_report, bench_slurm, faults, packages
from relight.lab.bench_attribution_command import attribution
from relight.lab.bench_audit_command import audit
from relight.lab.bench_checkpoints_command import checkpoints
from relight.lab.bench_console_command import console
from relight.lab.bench_detection_report import Kind
from relight.lab.bench_incidents_command import incidents
from relight.lab.bench_scan_command import scan
from relight.lab.broken_runs_command import break_
from relight.lab.chaos_command import chaos
from relight.lab.cli_roots import root
from relight.lab.cluster import Cluster, ClusterError, NodeNotFoundError
from relight.lab.demo import DemoFailedError, run_demo
from relight.lab.job import Engine, JobSpec, render
from relight.lab.ports import NoFreePortsError
from relight.lab.processes import DaemonStartError, WaitTimeoutError
from relight.lab.scenario import DEMOS, SCENARIOS
from relight.lab.spec import ClusterSpec, Profile
from relight.lab.stack import StackError
from relight.lab.state import ClusterNotFoundError
from relight.lab.temporal import TemporalError
from relight.lab.users import current_user
from relight.lab.ways import WAYS

FAILED, USAGE, NOT_FOUND, INTERRUPTED = 1, 2, 4, 130

FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
PROFILES = click.Choice([profile.value for profile in Profile])
ENGINES = click.Choice([engine.value for engine in Engine])
OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group()
def lab() -> None:
    """A real Slurm cluster, a training job and a fault injector on this machine."""


lab.add_command(root)
lab.add_command(break_)
lab.add_command(chaos)


@lab.group()
def cluster() -> None:
    """Start, stop and look at a lab cluster."""


@cluster.command()
@FOLDER
@click.option("--nodes", type=click.IntRange(1, 100), default=4, show_default=True)
@click.option(
    "--profile",
    type=PROFILES,
    default=Profile.FAST.value,
    show_default=True,
)
@click.option("--accounting/--no-accounting", default=None, help="Run slurmdbd and MariaDB. Default: as the profile.")
@OUTPUT
def start(folder: Path, nodes: int, profile: str, accounting: bool | None, output: str) -> None:
    """Start a cluster in DIR; installs Slurm's packages where they are missing."""
    with _told_errors():
        spec = ClusterSpec(folder=folder, nodes=nodes, profile=Profile(profile), accounting=accounting)
        packages.ensure(
            spec.with_accounting, spec.profile is Profile.PRODUCTION, lambda line: click.echo(line, err=True)
        )
        started = Cluster(spec)
        started.start()
        status = started.status()
        _show(
            status, output, f"{nodes} nodes idle; Slurm {status.slurm_version}; export SLURM_CONF={started.slurm_conf}"
        )


@cluster.command()
@FOLDER
def stop(folder: Path) -> None:
    """Stop the cluster in DIR; the folder stays."""
    with _told_errors():
        Cluster.load(folder).stop()


@cluster.command()
@FOLDER
@OUTPUT
def status(folder: Path, output: str) -> None:
    """Show the nodes and daemons of the cluster in DIR."""
    with _told_errors():
        seen = Cluster.load(folder).status()
        nodes = [f"{name} {state}" for name, state in (seen.nodes or {}).items()]
        dead = [f"{name} not running" for name, alive in seen.processes.items() if not alive]
        head = f"Slurm {seen.slurm_version} {'running' if seen.running else 'not running'} in {folder}"
        _show(seen, output, "\n".join([head, *nodes, *dead]))


@cluster.command("kill-node")
@FOLDER
@click.argument("node")
def kill_node(folder: Path, node: str) -> None:
    """End NODE as a power cut does."""
    with _told_errors():
        Cluster.load(folder).kill_node(node)


@cluster.command("start-node")
@FOLDER
@click.argument("node")
def start_node(folder: Path, node: str) -> None:
    """Start NODE again, once Slurm has seen that it was down."""
    with _told_errors():
        Cluster.load(folder).start_node(node)


class Submitted(BaseModel):
    """A job as submitted."""

    job_id: int
    run: Path


@lab.command()
@FOLDER
@click.option("--name", default="train", show_default=True)
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--tasks-per-node", type=click.IntRange(1), default=2, show_default=True)
@click.option("--engine", type=ENGINES, default=Engine.AUTO.value, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--step-time", type=float, default=0.2, show_default=True, help="Seconds.")
@click.option("--user", help="Job owner (production profile).")
@OUTPUT
def submit(
    *,
    folder: Path,
    name: str,
    nodes: int,
    tasks_per_node: int,
    engine: str,
    steps: int,
    step_time: float,
    user: str | None,
    output: str,
) -> None:
    """Submit a training job to the cluster in DIR."""
    with _told_errors():
        target = Cluster.load(folder)
        run = target.make_run_folder(name, user)
        spec = JobSpec(
            run=run,
            name=name,
            nodes=nodes,
            tasks_per_node=tasks_per_node,
            engine=Engine(engine),
            steps=steps,
            step_time=timedelta(seconds=step_time),
            runtime=target.runtime,
        )
        job_id = target.submit(render(spec), user=user)
        _show(Submitted(job_id=job_id, run=run), output, f"job {job_id} of {user or current_user()}; run folder {run}")


@lab.command()
@FOLDER
@click.argument("job_id", type=int)
@click.argument("fault")
@OUTPUT
def inject(folder: Path, job_id: int, fault: str, output: str) -> None:
    """Inflict FAULT on a running job: crash:rank=1, hang:rank=1, gpu:rank=1,xid=48, node, bug:step=120."""
    with _told_errors():
        done = faults.inject(Cluster.load(folder), job_id, faults.parse(fault))
        where = " ".join(
            f"{name}={value}" for name in ("node", "rank", "pid") if (value := getattr(done, name)) is not None
        )
        _show(done, output, f"{done.at.isoformat()} {done.fault} {where}".rstrip())


@lab.command()
@click.option("--fault", type=click.Choice([*DEMOS]), default="crash", show_default=True)
@click.option("--exit", "leave", is_flag=True, help="End as soon as the incident has closed, for scripts.")
@click.option("--engine", type=ENGINES, default=Engine.AUTO.value, show_default=True)
@click.option("--simulated", is_flag=True, help="Where there is no Slurm: simulate the cluster and the training job.")
@click.option(
    "--slurm",
    "way",
    type=click.Choice([way.value for way in WAYS]),
    default=Way.COMMANDS.value,
    show_default=True,
    help="How Slurm is reached.",
)
def demo(fault: str, engine: str, way: str, *, leave: bool, simulated: bool) -> None:
    """Break a real training job on a real Slurm cluster, and watch Relight recover it."""
    with _told_errors():
        try:
            run_demo(fault, leave=leave, engine=Engine(engine), simulate=simulated, way=Way(way))
        except KeyboardInterrupt:
            click.echo("interrupted; everything is cleaned up", err=True)
            sys.exit(INTERRUPTED)


@lab.group()
def bench() -> None:
    """Measure, and print the numbers with their conditions."""


bench.add_command(attribution)
bench.add_command(audit)
bench.add_command(checkpoints)
bench.add_command(console)
bench.add_command(scan)
bench.add_command(incidents)


@bench.command()
@click.option("--trials", type=click.IntRange(1), default=5, show_default=True)
@click.option("--profile", type=PROFILES, default=Profile.FAST.value, show_default=True)
@click.option("--fault", "names", type=click.Choice([*SCENARIOS]), multiple=True, help="Only this one; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def recovery(*, trials: int, profile: str, names: tuple[str, ...], as_json: bool) -> None:
    """Time from fault to detection, to action, to running, to progress."""
    with _told_errors():
        wanted = Profile(profile)
        packages.ensure(wanted is Profile.PRODUCTION, wanted is Profile.PRODUCTION, _say_aside)
        result = measures.recovery(trials, wanted, names or tuple(SCENARIOS), _say_aside)
        click.echo(json.dumps(result, indent=None if as_json else 2))


def _ways(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[Way, ...]:
    """Read `commands,ssh`: the order as given, each once."""
    words = dict.fromkeys(word.strip() for word in value.split(","))
    known = [way.value for way in WAYS]
    if wrong := [word for word in words if word not in known]:
        raise click.BadParameter(f"{', '.join(map(repr, wrong))}: no such way; there are {', '.join(known)}")
    return tuple(map(Way, words))


@bench.command("slurm")
@click.option("--ways", default=",".join(WAYS), show_default=True, callback=_ways, help="Separated by commas.")
@click.option("--jobs", type=click.IntRange(1, bench_slurm.MOST_JOBS), default=1000, show_default=True)
@click.option("--nodes", type=click.IntRange(1, bench_slurm.MOST_NODES), default=1000, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=30, show_default=True, help="Counted rounds per way.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def slurm_ways(*, ways: tuple[Way, ...], jobs: int, nodes: int, repeat: int, as_json: bool) -> None:
    """Time of reading all jobs and nodes, and of one change, through each way to Slurm."""
    with _told_errors():
        packages.ensure(accounting=False, production=False, say=_say_aside)
        load = bench_slurm.Load(jobs=jobs, nodes=nodes, repeat=repeat)
        result = bench_slurm.measure(ways, load, _say_aside)
        if as_json:
            click.echo(json.dumps(result))
        else:
            screen().print(bench_slurm.report(result))
        if not bench_slurm.measured(result):
            sys.exit(FAILED)


def _kinds(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[Kind, ...]:
    """Read `crash,xid`, or `none`: each once, in the order of the table."""
    words = {word.strip() for word in value.split(",")} - {"none"}
    if wrong := sorted(words - {*Kind}):
        raise click.BadParameter(f"{', '.join(map(repr, wrong))}: no such kind; there are {', '.join(Kind)}, or none")
    return tuple(kind for kind in Kind if kind in words)


@bench.command()
@click.option("--kinds", default=",".join(Kind), show_default=True, callback=_kinds, help="With commas; or none.")
@click.option("--trials", type=click.IntRange(1), default=60, show_default=True, help="Of each kind.")
@click.option("--job-hours", type=click.FloatRange(0), default=1000, show_default=True, help="Healthy ones, replayed.")
@click.option("--cost/--no-cost", default=True, show_default=True, help="Measure what it costs, too: ten minutes.")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws the trials.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def detection(*, kinds: tuple[Kind, ...], trials: int, job_hours: float, cost: bool, seed: int, as_json: bool) -> None:
    """Time from each kind of fault to its detection, false alarms, and what detection costs."""
    with _told_errors():
        try:
            # Only this needs what agents and their endpoint need.
            from relight.lab import bench_detection  # noqa: PLC0415
        except ModuleNotFoundError as error:
            _fail(f"{error.name} is not installed: pip install 'relight[agent,http,lab]'", FAILED)
        packages.ensure(accounting=False, production=False, say=_say_aside)
        # Ended by SIGTERM, too, it tells what it has.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        order = bench_detection.Order(kinds=kinds, trials=trials, job_hours=job_hours, cost=cost, seed=seed)
        result = bench_detection.measure(order, _say_aside)
        if as_json:
            click.echo(json.dumps(result))
        else:
            screen().print(bench_detection_report.report(result))
        if result["interrupted"] or result["failed"]:
            sys.exit(INTERRUPTED if result["interrupted"] else FAILED)


def _say_aside(text: str) -> None:
    """Progress of long work goes to standard error, so that the output stays machine-readable."""
    click.echo(text, err=True)


def _show(model: BaseModel, output: str, text: str) -> None:
    click.echo(model.model_dump_json(indent=2) if output == "json" else text)


@contextmanager
def _told_errors() -> Iterator[None]:
    """Tell an expected error in one line, with the exit code that says its kind."""
    try:
        yield
    except (
        ClusterNotFoundError,
        NodeNotFoundError,
        faults.JobNotFoundError,
        faults.RankNotFoundError,
        faults.NoCheckpointError,
    ) as error:
        _fail(str(error), NOT_FOUND)
    except ValidationError as error:
        _fail("; ".join(detail["msg"] for detail in error.errors()), USAGE)
    except faults.UnknownFaultError as error:
        _fail(str(error), USAGE)
    except (
        ClusterError,
        DemoFailedError,
        StackError,
        TemporalError,
        packages.SlurmNotInstallableError,
        WaitTimeoutError,
        DaemonStartError,
        NoFreePortsError,
        OSError,
    ) as error:
        _fail(str(error), FAILED)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(code)
