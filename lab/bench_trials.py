"""The trials of the detection benchmark: real jobs on a real cluster, many beside each other, and what befalls them.

A job that crashes, hangs or slows down does so by itself (`bench_job`) and writes down when. Power cuts and GPU faults
are inflicted from here. In all of them the controller worker is the one that ships, in mode `monitor`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from subprocess import SubprocessError

from relight.domain.attempts import AttemptKey
from relight.domain.evidence import Detection, Interruption
from relight.lab.bench_detection_report import ABOUT, Kind, Trial
from relight.lab.bench_scene import BEAT_S, Job, Plan, Scene
from relight.lab.cluster import Cluster
from relight.lab.errors import ClusterError
from relight.lab.processes import DaemonStartError, WaitTimeoutError, wait_until
from relight.lab.xids import PCI_ADDRESSES

PATIENCE_S = {
    Kind.CRASH: 20.0,
    Kind.FATAL_LINE: 15.0,
    Kind.NODE_SILENT: 30.0,
    Kind.XID: 15.0,
    Kind.HANG: 75.0,
    Kind.STRAGGLER: 60.0,
}
"""What is not found by then is missed."""
INCIDENT_WITHIN_S = 75.0
"""For the incident after a fatal line."""
GIVEN_UP_AFTER = 6
"""So many misses in a row, and a kind is given up: each costs its whole patience."""
ROUND_SHARE, ROUND_STEPS = 0.25, (50, 100, 250, 500)
"""Share of the hangs that stop after such a step: more than by chance."""
XIDS = (48, 79, 94, 95)
"""Each of them ends what runs on the GPU."""
XIDS_PER_JOB = 6
FATAL_LINES = (
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    (
        "[rank3]:[E1130 16:00:00.123456789 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0 Rank 3] Process group "
        "watchdog thread terminated with exception: CUDA error: unspecified launch failure"
    ),
    (
        "n3:4711:4790 [3] transport/net_ib.cc:1245 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<49152> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv)"
    ),
)
"""As CUDA, PyTorch and NCCL print them."""

BROKEN = (ClusterError, WaitTimeoutError, DaemonStartError, SubprocessError, OSError)
"""What the lab itself may fail with: told as a trial that did not run."""


async def repeat(kind: Kind, times: Iterator[int], one: Callable[[], Awaitable[Trial]], done: list[Trial]) -> None:
    """One trial after the other while there are `times` left; one that could not run gets a second chance."""
    for _ in times:
        if hopeless(kind, done):
            return
        if not await attempt(kind, one, done):
            await attempt(kind, one, done)


async def attempt(kind: Kind, one: Callable[[], Awaitable[Trial]], done: list[Trial]) -> bool:
    """One trial; False when the lab could not run it."""
    try:
        trial = await one()
    except BROKEN as error:
        trial = Trial(kind, None, why=f"could not run: {error}", ran=False)
    done.append(trial)
    return trial.ran


def hopeless(kind: Kind, done: Sequence[Trial]) -> bool:
    """Whether nothing of that kind has been found for so long that no more patience is spent on it."""
    newest = [trial for trial in done if trial.kind is kind][-GIVEN_UP_AFTER:]
    return len(newest) == GIVEN_UP_AFTER and all(trial.took is None for trial in newest)


async def many(kind: Kind, number: int, at_once: int, one: Callable[[], Awaitable[Trial]], done: list[Trial]) -> None:
    """So many trials, so many of them at the same time."""
    times = iter(range(number))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(number, at_once)):
            group.create_task(repeat(kind, times, one, done))


async def crash(scene: Scene, where: str, variant: str = "") -> Trial:
    """A job ends with exit code 1."""
    step = scene.rng.uniform(0.1, 0.5)
    plan = Plan("crash", step, at_step=int(scene.rng.uniform(4, 10) / step))
    return await _by_itself(scene, Kind.CRASH, plan, where, variant)


async def hang(scene: Scene, where: str) -> Trial:
    """A job stops within a step; long enough after its start that its rhythm is known.

    Often that is after a step where a first checkpoint may be due: silence alone does not tell it from one.
    """
    step = scene.rng.uniform(0.1, 1.0)
    at_step = int(scene.rng.uniform(30, 60) / step)
    round_step = scene.rng.random() < ROUND_SHARE
    if round_step:
        at_step = min(ROUND_STEPS, key=lambda number: abs(number - at_step)) + 1
    trial = await _by_itself(scene, Kind.HANG, Plan("hang", step, at_step=at_step, stay_s=120), where)
    return trial._replace(parts={"at_round_step": trial.took}) if round_step else trial


async def straggler(scene: Scene, where: str) -> Trial:
    """A job becomes slower for good; its pace is known from the 60th step on."""
    plan = Plan("slow", 0.2, at_step=scene.rng.randrange(75, 150), factor=scene.rng.uniform(1.1, 1.3), stay_s=90)
    return await _by_itself(scene, Kind.STRAGGLER, plan, where)


async def _by_itself(scene: Scene, kind: Kind, plan: Plan, where: str, variant: str = "") -> Trial:
    wanted = Interruption(kind)
    async with scene.job(plan, where) as job:
        await scene.seen_running(job)
        at = await scene.happened(job)
        found = await scene.seen.detection(job.id, lambda d: d.kind is wanted, PATIENCE_S[kind], since=at)
        if found is None:
            times = f" ({plan.factor:.2f} times)" if kind is Kind.STRAGGLER else ""
            why = f"job {job.id}, step {plan.at_step} of {plan.step_s:.2f} s{times}: not found"
            return Trial(kind, None, why=f"{why} within {PATIENCE_S[kind]:g} s", variant=variant)
        if kind is Kind.STRAGGLER:
            # The first time is the change itself, each further one a slow step.
            took = float(sum(done <= found.detected_at for done in job.times()[1:]))
        else:
            took = (found.detected_at - at).total_seconds()
        return _found(kind, took, job, found, variant)


async def fatal_line(scene: Scene, where: str) -> Trial:
    """A job prints that it is lost, and then no steps any more."""
    step = scene.rng.uniform(0.1, 0.5)
    text = scene.rng.choice(FATAL_LINES)
    plan = Plan("fatal", step, at_step=int(scene.rng.uniform(20, 40) / step), stay_s=120, text=text)
    async with scene.job(plan, where) as job:
        key = await scene.seen_running(job)
        at = await scene.happened(job)
        noted = await _noted(scene, key, PATIENCE_S[Kind.FATAL_LINE])
        hung = await scene.seen.detection(job.id, lambda d: d.kind is Interruption.HANG, INCIDENT_WITHIN_S, since=at)
    incident = (hung.detected_at - at).total_seconds() if hung else None
    if noted is None:
        why = f"job {job.id}: not noted within {PATIENCE_S[Kind.FATAL_LINE]:g} s: {text[:60]}"
        return Trial(Kind.FATAL_LINE, None, why=why, parts={"incident": incident})
    return Trial(Kind.FATAL_LINE, (noted - at).total_seconds(), parts={"incident": incident})


async def _noted(scene: Scene, key: AttemptKey, within: float) -> datetime | None:
    for _ in range(int(within / 0.3)):
        if noted := await scene.seen.fatal_line_at(key):
            return noted
        await asyncio.sleep(0.3)
    return None


async def xids(scene: Scene, node: str, times: Iterator[int], done: list[Trial]) -> None:
    """GPUs of a node fail, one after the other, under jobs that hold the node."""
    faults = ((gpu, xid) for _ in count() for gpu in range(len(PCI_ADDRESSES)) for xid in XIDS)
    try:
        while not hopeless(Kind.XID, done) and await _xids_of_a_job(scene, node, times, faults, done):
            pass
    except BROKEN as error:
        done.append(Trial(Kind.XID, None, why=f"no more Xids on {node}: {error}", ran=False))


async def _xids_of_a_job(
    scene: Scene, node: str, times: Iterator[int], faults: Iterator[tuple[int, int]], done: list[Trial]
) -> bool:
    """Some Xids under one job; False when there are no `times` left."""
    async with scene.job(Plan("nothing", 0.5), f"--nodelist={node}", "--exclusive") as job:
        await scene.seen_running(job)
        for _ in range(XIDS_PER_JOB):
            if next(times, None) is None:
                return False
            await asyncio.sleep(scene.rng.uniform(1, 3))
            done.append(await _xid(scene, node, job, *next(faults)))
    return True


async def _xid(scene: Scene, node: str, job: Job, gpu: int, xid: int) -> Trial:
    at = datetime.now(UTC)
    scene.faults.setdefault(job.id, at)
    scene.agents[node].gpus.xid(gpu, xid)

    def told(found: Detection) -> bool:
        return any(e.gpu == PCI_ADDRESSES[gpu] and f": {xid}," in e.text for e in found.evidence)

    found = await scene.seen.detection(job.id, told, PATIENCE_S[Kind.XID], since=at)
    if found is None:
        return Trial(Kind.XID, None, why=f"job {job.id}, {node}, Xid {xid} of GPU {gpu}: not found")
    return _found(Kind.XID, (found.detected_at - at).total_seconds(), job, found)


async def power_cuts(scene: Scene, node: str, turn: asyncio.Lock, times: Iterator[int], done: list[Trial]) -> None:
    """A node loses its power again and again. One node at a time: several at once have a common cause."""
    for _ in times:
        if hopeless(Kind.NODE_SILENT, done):
            return
        await attempt(Kind.NODE_SILENT, partial(_power_cut, scene, node, turn), done)
        try:
            await asyncio.to_thread(_restart, scene.cluster, node)
            await scene.start_agent(node)
        except BROKEN as error:
            done.append(Trial(Kind.NODE_SILENT, None, why=f"{node} did not come back: {error}", ran=False))
            return


async def _power_cut(scene: Scene, node: str, turn: asyncio.Lock) -> Trial:
    async with scene.job(Plan("nothing", 0.5), f"--nodelist={node}", "--exclusive") as job:
        await scene.seen_running(job)
        # The agent has told of itself, and it happens anywhere between two beats.
        await asyncio.sleep(scene.rng.uniform(1.5, 2.5) * BEAT_S)
        async with turn:
            scene.faults[job.id] = at = datetime.now(UTC)
            await asyncio.to_thread(scene.cluster.kill_node, node)
            patience = PATIENCE_S[Kind.NODE_SILENT]
            found = await scene.seen.detection(job.id, lambda d: d.kind is Interruption.NODE_LOST, patience, since=at)
        if found is None:
            kinds = ", ".join(d.kind for d in scene.seen.detections[job.id]) or "nothing"
            return Trial(Kind.NODE_SILENT, None, why=f"job {job.id}, {node}: not found lost ({kinds} found)")
        return _found(Kind.NODE_SILENT, (found.detected_at - at).total_seconds(), job, found)


def _restart(cluster: Cluster, node: str) -> None:
    """Put a node that lost its power to work again, as an administrator does who does not wait for SlurmdTimeout."""
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=bench")
    cluster.start_node(node)

    def idle() -> bool:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        return (cluster.node_states() or {}).get(node) == "idle"

    wait_until(idle, 60, f"{node} to be idle again", 0.3)


def _found(kind: Kind, took: float, job: Job, found: Detection, variant: str = "") -> Trial:
    """What was found; what was found later than the goal is told, too."""
    first = found.evidence[0]
    about = ABOUT[kind]
    late = f"job {job.id}, step {job.plan.at_step}: {took:.1f} {about.unit}: {first.text}" if took > about.goal else ""
    return Trial(kind, took, why=late, found_by=str(first.source), variant=variant)
