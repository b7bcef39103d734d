"""The process behind `demo --simulated`: Relight's own controller worker on a SIMULATED Slurm and training job.

Slurm is `MemorySlurm` by the real clock. The job computes nothing: it prints what `lab/trainer.py` and srun print.
Workflows, activities, ledger, attribution and the reading of logs are what ships.
"""

import asyncio
import json
import logging
import math
import re
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from relight.activities.site import Site
from relight.clients.ledger_sql import SqlLedger
from relight.clients.memory import MemorySlurm
from relight.config.settings import Settings, load
from relight.domain.slurm import JobRecord, JobState
from relight.lab import checkpoints, trainer
from relight.lab.fault_rules import FaultFile, FaultRule, due, slowness
from relight.lab.rendezvous import Place
from relight.lab.users import current_user
from relight.workers import controller

TICK_S = 0.1
START_S = 1.0
"""How long the pretended interpreters take to start and to meet."""
EPILOG = timedelta(seconds=1)
NODE_MISSED_AFTER_S = 6.0
"""What a real cluster of the lab takes to declare a dead node DOWN (slurm_conf.py)."""
PARTITION, CHECKPOINT = "simulated", ".simulated"
KILLED, RAISED = 143, 1
"""Exit code of the batch script, as srun hands it on: when a rank was killed (seen), and when one has raised."""


def now() -> datetime:
    """The time as Slurm tells it, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def read_options(script: str) -> dict[str, str]:
    """All `--name=value` of a batch script: sbatch's, srun's and the trainer's."""
    return dict(re.findall(r"--([a-z-]+)=(\S+)", script))


class Output(trainer.Reporter):
    """Reports to the job's output file, which a new attempt begins anew (Slurm's default)."""

    def __init__(self, place: Place, steps: int, file: Path) -> None:
        """Empty `file`."""
        super().__init__(place, steps, None)
        self._file = file
        file.write_text("")

    def say(self, line: str) -> None:
        """Add a line."""
        with self._file.open("a") as stream:
            stream.write(line + "\n")


class Training:
    """One attempt of the job: its ranks, and srun over them."""

    def __init__(self, slurm: MemorySlurm, job: JobRecord) -> None:
        """Describe it; nothing happens until `run`."""
        self.job = job
        self._slurm = slurm
        self._options = read_options(slurm.scripts[job.job_id])
        spots = [(node, local) for node in job.nodes for local in range(int(self._options["ntasks-per-node"]))]
        self.places = [
            Place(rank, len(spots), local, node, str(local), str(job.job_id), job.restarts)
            for rank, (node, local) in enumerate(spots)
        ]
        self._killed: set[int] = set()
        self._going = asyncio.Event()
        self._going.set()

    def signal(self, rank: int, number: int) -> None:
        """Send a rank a signal; while one is stopped, the others wait in their next collective."""
        if number == signal.SIGSTOP:
            self._going.clear()
        else:
            self._killed.add(rank)

    async def run(self) -> int:
        """Train until something ends it; return the batch script's exit code."""
        run, steps, every = (self._options[name] for name in ("run", "steps", "checkpoint-every"))
        seconds, busy = float(self._options["step-time"]), float(self._options.get("busy", "0"))
        folder, faults = trainer.checkpoint_folder(Path(run)), FaultFile(Path(run))
        output = Output(self.places[0], int(steps), Path(self.job.stdout))
        await asyncio.sleep(START_S)
        first = self._begin(folder, output)
        for step in range(first, int(steps) + 1):
            # The slowest rank makes the others wait.
            rules = [due(faults.rules(), place.rank, step, place.attempt) for place in self.places]
            took = seconds * max(map(slowness, rules))
            await asyncio.sleep(took)
            await self._going.wait()
            if (code := self._end(faults.rules(), step, output)) is not None:
                return code
            cpu_s = (step - first + 1) * seconds * busy * len(self.places)
            self._slurm.cpu[self.job.job_id] = timedelta(seconds=int(cpu_s))
            output.step(step, 0.1 + math.exp(-step / 200), took)
            if step % int(every) == 0:
                file = await asyncio.to_thread(checkpoints.save, folder, step, b"simulated\n", CHECKPOINT)
                output.say(f"saved checkpoint step {step} ({file})")
        return 0

    def _begin(self, checkpoint_folder: Path, output: Output) -> int:
        """Say what a start says, and return the first step."""
        output.say(f"world size {len(self.places)} | engine SIMULATED | attempt {self.job.restarts}")
        output.say("\n".join(map(str, self.places)))
        file = checkpoints.newest_valid(checkpoint_folder, CHECKPOINT, output.warn)
        if file is None:
            return 1
        output.say(f"resumed from checkpoint step {checkpoints.step_of(file)} ({file})")
        return checkpoints.step_of(file) + 1

    def _end(self, rules: Sequence[FaultRule], step: int, output: Output) -> int | None:
        """The exit code, when something ends the attempt in this step."""
        for place in self.places:
            if place.rank in self._killed:
                output.say(self._srun_says(place, "Killed"))
                return KILLED
            rule = due(rules, place.rank, step, place.attempt)
            try:
                trainer.load_batch(None, rule)  # type: ignore[arg-type]  # no fault of the demo touches the model
            except (KeyError, RuntimeError) as error:
                trace = "".join(traceback.format_exception(error)).splitlines()
                output.say("\n".join(f"[rank{place.rank}]: {line}" for line in trace))
                output.say(self._srun_says(place, "Exited with exit code 1"))
                return RAISED
        return None

    def _srun_says(self, place: Place, how: str) -> str:
        """What a rank that waits for the lost one prints, and then srun (seen)."""
        peer, host, step = self.places[0 if place.rank else 1], self.job.batch_host, f"{self.job.job_id}.0"
        lost = f"[rank {peer.rank}] all-reduce failed: Connection closed by peer [{place.address}]:29500"
        return (
            f"[rank{peer.rank}]: RuntimeError: {lost}\n"
            f"srun: error: {place.node}: task {place.rank}: {how}\n"
            f"srun: launch/slurm: _step_signal: Terminating StepId={step}\n"
            f"slurmstepd-{host}: error: *** STEP {step} ON {host} CANCELLED AT {now():%Y-%m-%dT%H:%M:%S} ***\n"
            f"srun: Force Terminated StepId={step}"
        )


class World:
    """The cluster with its one job. `answer` hands each question to the method of its name."""

    def __init__(self, nodes: Sequence[str]) -> None:
        """A cluster of idle nodes."""
        self.slurm = MemorySlurm(now, nodes=nodes, cluster="simulated", epilog=EPILOG)
        for name, record in self.slurm.node_records.items():
            self.slurm.node_records[name] = record.model_copy(update={"partitions": (PARTITION,)})
        self._running: tuple[Training, asyncio.Task[int]] | None = None

    async def turn(self) -> None:
        """Let things happen, for ever."""
        while True:
            for job in await self.slurm.jobs():
                self._look(job)
            await asyncio.sleep(TICK_S)

    def _look(self, job: JobRecord) -> None:
        """Run what Slurm has started, end what it has ended, and tell it what has ended by itself."""
        training, task = self._running or (None, None)
        if not job.running:
            if task:
                task.cancel()
        elif training is None or task is None or training.job.submit_time != job.submit_time:
            training = Training(self.slurm, job)
            self._running = training, asyncio.create_task(training.run())
        elif task.done() and not task.cancelled():
            code = task.result()
            self.slurm.fail(job.job_id, state=JobState.FAILED if code else JobState.COMPLETED, exit_code=code)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question, a JSON line each."""
        method, arguments = json.loads(await reader.readline())
        writer.write(json.dumps(getattr(self, method)(*arguments)).encode() + b"\n")
        await writer.drain()
        writer.close()

    def submit(self, script: str) -> int:
        """Queue and start a job, as sbatch and the scheduler do."""
        options = read_options(script)
        job_id = self.slurm.submit(
            nodes=int(options["nodes"]),
            script=script,
            name=options["job-name"],
            user=current_user(),
            partition=PARTITION,
            work_dir=options["chdir"],
            stdout=options["output"].replace("%j", "1"),  # the first id, and the only one
        )
        self.slurm.start(job_id)
        return job_id

    def job(self, job_id: int) -> dict[str, str]:
        """Fields of `scontrol show job`."""
        job = self.slurm.job_records[job_id]
        fields = {"JobState": str(job.state), "WorkDir": job.work_dir, "BatchHost": job.batch_host}
        return fields | {"Restarts": str(job.restarts), "NodeList": ",".join(job.nodes)}

    def nodes(self) -> dict[str, str]:
        """Each node's state and what is added to it."""
        return {node.name: "+".join([node.state, *sorted(node.flags)]) for node in self.slurm.node_records.values()}

    def signal(self, rank: int, number: int) -> None:
        """Send a rank a signal."""
        if self._running:
            self._running[0].signal(rank, number)

    def kill_node(self, name: str) -> None:
        """Take a node's power: what runs there is gone at once, and Slurm misses it after a while."""
        if self._running and name in self._running[0].job.nodes:
            self._running[1].cancel()
        asyncio.get_running_loop().call_later(NODE_MISSED_AFTER_S, self.slurm.lose_node, name)


async def work(settings: Settings, socket: Path, nodes: Sequence[str]) -> None:
    """Be the controller worker of a simulated cluster, until SIGTERM or SIGINT."""
    world = World(nodes)

    @asynccontextmanager
    async def site(settings: Settings, ledger: SqlLedger) -> AsyncIterator[Site]:
        async with controller.open_site(settings, ledger) as real:
            yield replace(real, slurm=world.slurm, nodes=world.slurm)

    async def ready() -> None:
        print(f"relight: watching cluster {settings.cluster}, a SIMULATED Slurm", file=sys.stderr, flush=True)

    async with asyncio.TaskGroup() as tasks, await asyncio.start_unix_server(world.answer, socket):
        # An error in the simulation ends the worker: better no demo than one that lies.
        turning = tasks.create_task(world.turn())
        await controller.run(settings, ready=ready, site=site)
        turning.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(work(load(), Path(sys.argv[1]), sys.argv[2:]))
