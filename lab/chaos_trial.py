"""One trial of the chaos harness: a training job is interrupted, a part breaks while it is recovered, all settles."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from subprocess import SubprocessError
from typing import NamedTuple, TypeVar

from relight.domain.attempts import AttemptKey
from relight.domain.incidents import Outcome
from relight.lab import faults
from relight.lab.bench_seen import wait_for
from relight.lab.chaos_draw import FAULT, Fault, Part, Script
from relight.lab.chaos_parts import Parts
from relight.lab.chaos_seen import SeenRows, mark
from relight.lab.chaos_stack import ChaosStack
from relight.lab.cluster import Cluster, ClusterError
from relight.lab.job import Engine, JobSpec, render
from relight.lab.processes import WaitTimeoutError
from relight.lab.users import USERS

T = TypeVar("T")

NODES_OF_JOB = 2
STEP = timedelta(seconds=0.25)
TRAINS_FOR = (4, 16)
"""Steps until the fault; a checkpoint is written each 20."""
LEARNS_FOR = 60
"""The same for a hang: a rhythm has to be known."""
STARTS_WITHIN_S = 180.0
SLURM_ANSWERS_WITHIN_S = 90.0
COMMANDS_MEET_WITHIN_S = 50.0
"""For calls that shall go wrong: not every recovery makes them all."""
TOO_LATE = "too late"
STRIKES_AT_LATEST_S = 100.0
"""A row that a moment waits for may never come: then it breaks by then."""
SETTLES_WITHIN_S = 600.0
"""A slurmctld that has forgotten a job's end shows it RUNNING without tasks for up to five minutes (seen)."""
QUIET_S, STOPPED_S = 3.0, 60.0
"""So long nothing may be open; where the job does not train, longer: what Slurm does to it may still be noticed."""
GOES_ON = frozenset({Outcome.RECOVERED, Outcome.ADOPTED, Outcome.RESTARTED_UNVERIFIED})
"""Outcomes after which the job trains."""
BREAKS_A_NODE = frozenset({Fault.GPU, Fault.NODE})
BROKEN = (ClusterError, WaitTimeoutError, SubprocessError, OSError, faults.JobNotFoundError, faults.RankNotFoundError)


class NotRunError(Exception):
    """The lab could not bring the trial about; that says nothing of Relight."""


class Trial(NamedTuple):
    """One trial, as it was played."""

    number: int
    script: Script
    job: int
    interrupted: tuple[AttemptKey, ...]
    until: datetime
    """When the job was cancelled."""
    hit: str
    """What broke."""
    struck_after: str
    """After which row; or too late, as that never came."""
    outcomes: tuple[str, ...]
    settled: bool
    trains: bool
    """Whether the job trained on in the end."""
    seconds: float


class Scene(NamedTuple):
    """What trials work with."""

    stack: ChaosStack
    seen: SeenRows
    parts: Parts
    held: dict[int, str]
    """By job, the node that a running trial has broken: nobody repairs it yet."""
    done: set[str]
    """Names of jobs whose trials are over: a slurmctld that is killed forgets that they were cancelled."""


async def play(scene: Scene, number: int, script: Script) -> Trial:
    """Play a trial to its end; the job is cancelled then.

    Raises:
        NotRunError: the job did not train, or the fault could not be inflicted.
        NotMendedError: what was broken did not come back.
    """
    began = time.monotonic()
    job = await _submit(scene, number)
    try:
        key = await _trains(scene, number, job, script)
        hit, after = await _break(scene, number, job, script)
        settled = await _until(lambda: _settled(scene, job, key), SETTLES_WITHIN_S)
    finally:
        until = datetime.now(UTC)
        scene.held.pop(job, None)
        scene.done.add(_name(number))
        with suppress(NotRunError):
            await _again(lambda: _cancel(scene.stack.cluster, number, job))
    return Trial(
        number=number,
        script=script,
        job=job,
        interrupted=(key,),
        until=until,
        hit=hit,
        struck_after=after,
        outcomes=tuple(str(outcome) for _, outcome in scene.seen.outcomes(job)),
        settled=settled is not None,
        trains=bool(settled),
        seconds=round(time.monotonic() - began, 1),
    )


def _name(number: int) -> str:
    return f"chaos-{number:04}"


async def _submit(scene: Scene, number: int) -> int:
    cluster = scene.stack.cluster
    run = cluster.make_run_folder(_name(number), USERS.owner)
    spec = JobSpec(
        run=run,
        name=_name(number),
        nodes=NODES_OF_JOB,
        tasks_per_node=1,
        step_time=STEP,
        engine=Engine.NUMPY,
        runtime=cluster.runtime,
    )
    script = render(spec)

    def submit() -> int:
        # An answer that was lost: the job may be there.
        known = cluster.run("squeue", "--noheader", f"--name={_name(number)}", "--format=%A").stdout.split()
        return int(known[0]) if known else cluster.submit(script, user=USERS.owner)

    return await _again(submit)


def _cancel(cluster: Cluster, number: int, job: int) -> None:
    # By name, too: the number may be another's by now. Of one that has ended or is unknown it says nothing and fails.
    cluster.run("scancel", "--quiet", f"--name={_name(number)}", str(job), user=USERS.owner, check=False)
    if cluster.run("squeue", "--noheader", f"--name={_name(number)}", "--states=PD,R,S").stdout.strip():
        raise ClusterError(f"job {job} is still there after scancel")


async def _trains(scene: Scene, number: int, job: int, script: Script) -> AttemptKey:
    """Wait until the job has trained for a while; the attempt that does.

    A slurmctld that has forgotten a job gives its number to another: an attempt of that one is not meant.
    """
    rng = Random(script.seed)
    steps = LEARNS_FOR if script.fault is Fault.HANG else rng.randint(*TRAINS_FOR)

    async def reached() -> AttemptKey | None:
        keys = scene.seen.attempts(job, _name(number))
        progress = await scene.seen.progress(keys[-1]) if keys else None
        return keys[-1] if progress and (progress.last_step or 0) >= steps else None

    key = await _until(reached, STARTS_WITHIN_S)
    if key is None:
        raise NotRunError(f"job {job} did not train within {STARTS_WITHIN_S:g} s")
    return key


async def _break(scene: Scene, number: int, job: int, script: Script) -> tuple[str, str]:
    """Inflict the fault, and break and mend the part at its moment; what was hit, and after which row."""
    nodes = await _nodes(scene, job)
    await _check_untouched(scene, number, job)
    commands = scene.stack.commands
    armed = commands.arm(script, job) if commands and script.part is Part.COMMAND else []
    try:
        await _inflict(scene, job, script, nodes)
        if armed:
            met = await wait_for(lambda: all(not path.exists() for path in armed) or None, COMMANDS_MEET_WITHIN_S)
            return str(script.part), FAULT if met else TOO_LATE
    finally:
        for path in armed:
            path.unlink(missing_ok=True)
    wanted = script.moment.after
    row = None
    if wanted != FAULT:
        row = await scene.seen.until(job, lambda row: mark(row) == wanted, STRIKES_AT_LATEST_S)
    await asyncio.sleep(script.moment.delay_s)
    hit = await scene.parts.strike(script, await _nodes(scene, job) or nodes)
    return hit, wanted if row or wanted == FAULT else TOO_LATE


async def _check_untouched(scene: Scene, number: int, job: int) -> None:
    if await _again(lambda: scene.stack.cluster.job_field(job, "JobName")) != _name(number):
        raise NotRunError(f"slurmctld has forgotten job {job}, and given its number to another")
    if scene.seen.outcomes(job) or scene.seen.open(job):
        raise NotRunError(f"job {job} was interrupted by another trial's strike before its own fault")


async def _inflict(scene: Scene, job: int, script: Script, nodes: Sequence[str]) -> None:
    rank = Random(script.seed).randrange(NODES_OF_JOB)
    kinds: dict[Fault, faults.Fault] = {
        Fault.CRASH: faults.crash(rank),
        Fault.GPU: faults.gpu(rank),
        Fault.HANG: faults.hang(rank),
        Fault.NODE: faults.node(nodes[rank] if len(nodes) > rank else None),
    }
    injection = await _again(lambda: faults.inject(scene.stack.cluster, job, kinds[script.fault]))
    if injection.node and script.fault in BREAKS_A_NODE:
        scene.held[job] = injection.node
        scene.parts.broken.append((injection.node, injection.at))


async def _nodes(scene: Scene, job: int) -> list[str]:
    """The job's nodes now; none while it has none, or Slurm does not answer."""
    cluster = scene.stack.cluster

    def look() -> list[str]:
        listed = cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%N", check=False).stdout.strip()
        return cluster.run("scontrol", "show", "hostnames", listed).stdout.split() if listed else []

    try:
        return await asyncio.to_thread(look)
    except BROKEN:
        return []


async def _settled(scene: Scene, job: int, key: AttemptKey) -> bool | None:
    """True once the job trains and nothing is open; False once nothing is open and it does not; None: not yet."""
    began, looked = time.monotonic(), datetime.now(UTC)
    while True:
        ends = scene.seen.outcomes(job)
        again = scene.seen.again(key)
        told = again or any(about == key for about, _ in ends)
        if scene.seen.open(job) or scene.seen.undelivered(job) or not told:
            return None
        newest = scene.seen.attempts(job)[-1]
        progress = await scene.seen.progress(newest)
        trains = (newest != key or again) and progress.last_step_at is not None and progress.last_step_at > looked
        if trains and time.monotonic() > began + QUIET_S:
            return True
        if time.monotonic() > began + STOPPED_S:
            return None if not ends or ends[-1][1] in GOES_ON else False
        await asyncio.sleep(0.3)


async def _until(look: Callable[[], Awaitable[T | None]], within_s: float) -> T | None:
    """Ask again and again until there is an answer, at most for so many seconds."""
    try:
        async with asyncio.timeout(within_s):
            while (found := await look()) is None:  # noqa: ASYNC110 - a ledger sets no event
                await asyncio.sleep(0.3)
            return found
    except TimeoutError:
        return None


async def _again(act: Callable[[], T]) -> T:
    """Do something with Slurm, which may be down just now."""
    until = time.monotonic() + SLURM_ANSWERS_WITHIN_S
    while True:
        try:
            return await asyncio.to_thread(act)
        except BROKEN as error:
            if time.monotonic() > until:
                raise NotRunError(f"{error}") from error
            await asyncio.sleep(1)
