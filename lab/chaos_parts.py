"""Breaks the parts of a running stack, and mends them: by SIGKILL and a new start, or by SIGSTOP and SIGCONT."""

import asyncio
import contextlib
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from relight.lab import state, temporal
from relight.lab.chaos_draw import How, Part, Script
from relight.lab.chaos_stack import ChaosStack
from relight.lab.errors import ClusterError
from relight.lab.postgres import PostgresError
from relight.lab.processes import DaemonStartError, Process, WaitTimeoutError, environ, spawn, wait_until
from relight.lab.stack import StackError

UP_WITHIN_S = 180.0
SUPERVISED_EVERY_S = 1.0
_FAILS = (ClusterError, StackError, PostgresError, WaitTimeoutError, DaemonStartError, OSError)


class NotMendedError(Exception):
    """A part did not come back; nothing that follows says anything of Relight."""


class Parts:
    """See the module. One strike at a part at a time; strikes at several parts run beside each other."""

    def __init__(self, stack: ChaosStack) -> None:
        """Nothing is broken yet."""
        self._stack = stack
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.crashes: list[datetime] = []
        """When slurmctld was killed."""
        self.broken: list[tuple[str, datetime]] = []
        """Nodes that lost their power, or a GPU: by a strike here, or by a trial's fault."""
        self.ended_by_itself = 0
        """How often the worker did."""

    async def strike(self, script: Script, nodes: Sequence[str]) -> str:
        """Break and mend the script's part; `nodes` are those of the job. Returns what was hit.

        Raises:
            NotMendedError: it did not come back.
        """
        breaks = {
            Part.WORKER: self._worker,
            Part.TEMPORAL: self._temporal,
            Part.SLURMCTLD: self._slurmctld,
            Part.SLURMDBD: self._slurmdbd,
            Part.DATABASE: self._database,
        }
        if script.part in {Part.NODE, Part.AGENT}:
            return await self._on_a_node(script, nodes)
        async with self._turns[script.part]:
            await breaks[script.part](script)
        return str(script.part)

    # --- processes that there is one of

    async def _worker(self, script: Script) -> None:
        if script.how is How.STOP:
            await _stopped(lambda: [self._stack.worker()], script.for_s)
            return
        await asyncio.to_thread(self._stack.kill_worker)
        await asyncio.sleep(script.for_s)
        await _until_up(self._start_worker, "the worker")

    def _start_worker(self) -> None:
        self._stack.kill_worker()  # one that waits in vain for something else that is down
        self._stack.start_worker()

    async def supervise(self) -> None:
        """Start the worker again where it has ended by itself, as a service manager does."""
        while True:
            await asyncio.sleep(SUPERVISED_EVERY_S)
            if self._turns[Part.WORKER].locked() or self._stack.worker():
                continue
            async with self._turns[Part.WORKER]:
                self.ended_by_itself += 1
                await _until_up(self._start_worker, "the worker")

    async def _temporal(self, script: Script) -> None:
        folder = self._stack.folder / "temporal"
        server = temporal.load(folder)
        if server is None:
            raise NotMendedError("Temporal is not running")
        if script.how is How.STOP:
            await _stopped(lambda: [server.process], script.for_s)
            return
        again = _Again(server.process, folder / "temporal.log")
        server.process.kill()
        await asyncio.sleep(script.for_s)

        def start() -> None:
            new = server.model_copy(update={"process": again.start()})
            (folder / temporal.FILE).write_text(new.model_dump_json())

        await _until_up(start, "Temporal")

    async def _slurmctld(self, script: Script) -> None:
        cluster = self._stack.cluster
        if script.how is How.STOP:
            cluster.freeze_controller()
            await _sleep_then(script.for_s, cluster.thaw_controller)
            return
        self.crashes.append(datetime.now(UTC))
        await asyncio.to_thread(cluster.kill_controller)
        await asyncio.sleep(script.for_s)
        await _until_up(cluster.start_controller, "slurmctld")

    async def _slurmdbd(self, script: Script) -> None:
        folder = self._stack.cluster.folder
        process = state.read(folder).processes["slurmdbd"]
        if script.how is How.STOP:
            await _stopped(lambda: [process], script.for_s)
            return
        again = _Again(process, folder / "log/slurmdbd.out")
        process.kill()
        await asyncio.sleep(script.for_s)
        await _until_up(lambda: state.remember(folder, "slurmdbd", again.start()), "slurmdbd")

    async def _database(self, script: Script) -> None:
        postgres = self._stack.postgres
        if postgres is None:
            await asyncio.to_thread(_hold, self._stack.data / "ledger.sqlite", script.for_s)
            return
        if script.how is How.STOP:
            await _stopped(lambda: list(postgres.processes), script.for_s)
            return
        await asyncio.to_thread(postgres.kill)
        await asyncio.sleep(script.for_s)
        await self.start_database()

    async def start_database(self) -> None:
        """Start it where it does not run. While its killed process has not been reaped it refuses (seen): try again."""
        postgres = self._stack.postgres
        if postgres and not postgres.processes:
            await _until_up(postgres.start, "PostgreSQL")

    # --- what there is one of on each node

    async def _on_a_node(self, script: Script, nodes: Sequence[str]) -> str:
        stack, cluster = self._stack, self._stack.cluster
        if script.part is Part.AGENT:
            nodes = [node for node in nodes if node in stack.agents] or list(stack.agents)
        if not nodes:
            return "nothing: there is none"
        node = Random(script.seed).choice(sorted(nodes))
        async with self._turns[f"{script.part}/{node}"]:
            if script.part is Part.AGENT:
                await self._agent(script, node)
            elif script.how is How.STOP:
                with contextlib.suppress(ClusterError):  # it has lost its power meanwhile
                    cluster.freeze_node(node)
                    await _sleep_then(script.for_s, lambda: cluster.thaw_node(node))
            else:
                self.broken.append((node, datetime.now(UTC)))
                await asyncio.to_thread(cluster.kill_node, node)
        return f"{script.part} {node}"

    async def _agent(self, script: Script, node: str) -> None:
        process = self._stack.agents[node].process
        if script.how is How.STOP:
            await _stopped(lambda: [process], script.for_s)
            return
        process.kill()
        await asyncio.sleep(script.for_s)
        with contextlib.suppress(*_FAILS):  # its node may be down
            await asyncio.to_thread(self._stack.start_agent, node)


class _Again:
    """How to start a process a second time, read off the first one."""

    def __init__(self, process: Process, log: Path) -> None:
        self._log = log
        self._command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        entries = (entry.decode().partition("=") for entry in environ(process.pid) if entry)
        self._environment = {name: value for name, _, value in entries}

    def start(self) -> Process:
        """Start it; raise DaemonStartError where it ends at once."""
        process = spawn(self._command, self._log, self._environment)
        with contextlib.suppress(WaitTimeoutError):
            wait_until(lambda: not process.alive, 1, f"{self._command[0]} to stay")
        if not process.alive:
            raise DaemonStartError(f"{self._command[0]} ended at once; see {self._log}")
        return process


def _hold(file: Path, for_s: float) -> None:
    """Keep everybody else from writing to an SQLite ledger."""
    connection = sqlite3.connect(file, timeout=UP_WITHIN_S, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(for_s)
        connection.execute("ROLLBACK")
    finally:
        connection.close()


async def _stopped(which: Callable[[], Sequence[Process | None]], for_s: float) -> None:
    processes = [process for process in which() if process]
    for process in processes:
        process.signal(signal.SIGSTOP)

    def go_on() -> None:
        for process in processes:
            process.signal(signal.SIGCONT)

    await _sleep_then(for_s, go_on)


async def _sleep_then(for_s: float, act: Callable[[], None]) -> None:
    """Wait, and then act, whatever comes between."""
    try:
        await asyncio.sleep(for_s)
    finally:
        act()


async def _until_up(start: Callable[[], None], name: str) -> None:
    """Start it, again and again while it ends at once: what it needs may be down too."""
    try:
        async with asyncio.timeout(UP_WITHIN_S):
            while True:
                try:
                    await asyncio.to_thread(start)
                except _FAILS:
                    await asyncio.sleep(1)
                else:
                    return
    except TimeoutError:
        raise NotMendedError(f"{name} did not come back within {UP_WITHIN_S:g} s") from None
