"""Breaks real runs on a lab cluster, and keeps what they leave as a labelled folder of logs.

    Breaker(cluster, folder, print).run(kinds())

The folder then holds `kill.log` (or a folder `kill/` of per-rank files), `kill.kernel-n2.log` where the kernel had to
say something, `kill.context.json` (what Slurm knows of the job) and a row of `labels.tsv`.
"""

import csv
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from relight.attribution.sources import Context, Seat
from relight.domain.evidence import Interruption
from relight.domain.slurm import JobState
from relight.lab import broken_runs_script
from relight.lab.broken_runs import RANKS, RANKS_PER_NODE, Ends, Kind, Launch
from relight.lab.broken_runs_memory import NoCgroupError, kernel_messages, kills, limited_cgroup
from relight.lab.cluster import Cluster
from relight.lab.ports import claimed_ports
from relight.lab.processes import wait_until

PATIENCE_S = 900.0
COLUMNS = ("file", "category", "action", "action_if_it_repeats", "implicated_rank_or_node", "why")
_RUNNING = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"})
_BROKEN = {Ends.ITSELF: {"FAILED"}, Ends.POWER: {"FAILED", "NODE_FAIL"}, Ends.CANCEL: {"CANCELLED"}}
"""States in which a run ends that broke as it was meant to."""
_TRAINS = b"step 3/"


class Run(NamedTuple):
    """A job that is being broken."""

    name: str
    kind: Kind
    folder: Path
    job: int
    cgroup: str = ""


class Left(NamedTuple):
    """Kinds that the folder lacks, each with the reason."""

    refused: Mapping[str, str]
    """This machine cannot have them."""
    unbroken: Mapping[str, str]
    """They did not break as they were meant to: on a machine that is loaded too much, or by a bug of ours."""


class Breaker:
    """Runs kinds on a cluster, as many at a time as it has nodes for, and fills a folder with what they leave."""

    def __init__(self, cluster: Cluster, folder: Path, say: Callable[[str], None]) -> None:
        """Break on this cluster; what is kept goes to `folder`, which need not exist."""
        self._cluster = cluster
        self._folder = folder
        self._say = say
        self._struck: set[str] = set()

    def run(self, kinds: Mapping[str, Kind]) -> Left:
        """Break one run of each kind, and return those that are not in the folder for it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        refused: dict[str, str] = {}
        with ExitStack() as held:
            port = held.enter_context(claimed_ports(len(kinds)))
            # A power cut takes a node from those that come after it.
            order = sorted(kinds, key=lambda name: kinds[name].ends is Ends.POWER)
            runs = []
            for number, name in enumerate(order):
                try:
                    runs.append(self._submit(name, kinds[name], port + number, held))
                except NoCgroupError as error:
                    refused[name] = str(error)
            rows, unbroken = self._until_ended(runs)
        self._write_labels([rows[name] for name in kinds if name in rows])
        return Left(refused, unbroken)

    def _submit(self, name: str, kind: Kind, port: int, held: ExitStack) -> Run:
        cgroup = held.enter_context(limited_cgroup(f"relight-lab-{port}")) if kind.cgroup else None
        folder = self._cluster.make_run_folder(name)
        (folder / "hosts").write_text(broken_runs_script.hosts(self._cluster.spec.nodes))
        (folder / "task.sh").write_text(broken_runs_script.task(kind))
        script = broken_runs_script.render(kind, name, folder, port, cgroup)
        return Run(name, kind, folder, self._cluster.submit(script), cgroup.name if cgroup else "")

    def _until_ended(self, runs: list[Run]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """Wait for all; returns the rows of labels.tsv by kind, and the kinds that did not break."""
        rows: dict[str, dict[str, str]] = {}
        unbroken: dict[str, str] = {}

        def all_ended() -> bool:
            states = self._states()
            for run in runs:
                state = states.get(run.job, "PENDING")
                if run.name in rows or run.name in unbroken:
                    continue
                if state == "RUNNING":
                    self._strike(run)
                elif state in _BROKEN[run.kind.ends]:
                    rows[run.name] = self._keep(run)
                    self._say(f"{run.name}: {run.kind.told}: job {run.job} is {state}")
                elif state not in _RUNNING:
                    unbroken[run.name] = f"job {run.job} is {state}; its output: {run.folder}"
            return len(rows) + len(unbroken) == len(runs)

        wait_until(all_ended, PATIENCE_S, "all broken runs to end", 0.3)
        return rows, unbroken

    def _states(self) -> dict[int, str]:
        done = self._cluster.run("squeue", "--noheader", "--states=all", "--format=%i %T")
        return {int(job): state for job, state in (line.split() for line in done.stdout.splitlines())}

    def _strike(self, run: Run) -> None:
        """Do what is done from outside, once training runs."""
        if run.kind.ends is Ends.ITSELF or run.name in self._struck or not self._trains(run):
            return
        self._struck.add(run.name)
        if run.kind.ends is Ends.CANCEL:
            self._cluster.run("scancel", str(run.job))
        else:
            self._cluster.kill_node(self._nodes(run)[run.kind.node or 0])

    def _trains(self, run: Run) -> bool:
        with suppress(FileNotFoundError):
            return _TRAINS in (run.folder / broken_runs_script.OUTPUT).read_bytes()
        return False

    def _nodes(self, run: Run) -> tuple[str, ...]:
        hosts = self._cluster.job_field(run.job, "NodeList") or ""
        return tuple(self._cluster.run("scontrol", "show", "hostnames", hosts).stdout.split())

    def _keep(self, run: Run) -> dict[str, str]:
        """Copy a run's logs, write what Slurm knows, and return its row of labels.tsv."""
        nodes = self._nodes(run)
        lost = self._lost(run, nodes)
        if run.cgroup:
            node = nodes[run.kind.guilty_node or 0]
            text = "".join(f"{line}\n" for line in kills(kernel_messages(), run.cgroup, node))
            (self._folder / f"{run.name}.kernel-{node}.log").write_text(text)
        context = self._context(run, nodes, lost).model_dump_json(indent=1, exclude_defaults=True)
        (self._folder / f"{run.name}.context.json").write_text(context + "\n")
        kind = run.kind
        truth = (kind.category, kind.action, kind.repeats, kind.who(nodes), f"injected: {kind.told}")
        return dict(zip(COLUMNS, (self._copy(run), *truth), strict=True))

    def _copy(self, run: Run) -> str:
        """Copy the output, and the ranks' own where they have any; return what names it in labels.tsv."""
        output = run.folder / broken_runs_script.OUTPUT
        if run.kind.launch is not Launch.FILES:
            shutil.copyfile(output, self._folder / f"{run.name}.log")
            return f"{run.name}.log"
        (self._folder / run.name).mkdir(exist_ok=True)
        for file in (output, *sorted(run.folder.glob("rank-*.out"))):
            shutil.copyfile(file, self._folder / run.name / file.name)
        return f"{run.name}/"

    def _lost(self, run: Run, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """The node without power, once Slurm misses it."""
        if run.kind.ends is not Ends.POWER:
            return ()
        node = nodes[run.kind.guilty_node or 0]
        wait_until(lambda: self._is_lost(node), 60, f"Slurm to miss {node}", 0.3)
        return (node,)

    def _is_lost(self, node: str) -> bool:
        state = (self._cluster.node_states() or {}).get(node, "")
        return state.endswith("*") or state.startswith("down")

    def _context(self, run: Run, nodes: tuple[str, ...], lost: tuple[str, ...]) -> Context:
        """What Slurm knows, as the controller would have it."""
        fields = {
            field: self._cluster.job_field(run.job, field) for field in ("JobState", "Reason", "ExitCode", "EndTime")
        }
        code, _, number = (fields["ExitCode"] or "0:0").partition(":")
        cancelled = run.kind.ends is Ends.CANCEL
        return Context(
            nodes=nodes,
            # srun hands out ranks by blocks.
            rank_map={
                rank: Seat(node=nodes[rank // RANKS_PER_NODE], gpu=str(rank % RANKS_PER_NODE)) for rank in range(RANKS)
            },
            state=JobState(fields["JobState"] or "UNKNOWN"),
            reason=fields["Reason"] or "",
            exit_code=int(code),
            exit_signal=int(number or 0) or None,
            lost_nodes=lost,
            interruption=None if cancelled else Interruption.NODE_LOST if lost else Interruption.CRASH,
            interrupted_at=datetime.fromisoformat(fields["EndTime"] or "").astimezone(),
        )

    def _write_labels(self, rows: list[dict[str, str]]) -> None:
        with (self._folder / "labels.tsv").open("w", newline="") as stream:
            table = csv.DictWriter(stream, COLUMNS, delimiter="\t", lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


def _seat(rank: int, nodes: tuple[str, ...]) -> Seat:
    """Where a rank runs: srun hands them out by blocks."""
    return Seat(node=nodes[rank // RANKS_PER_NODE], gpu=str(rank % RANKS_PER_NODE))
