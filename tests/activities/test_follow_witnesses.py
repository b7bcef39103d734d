"""What agents add to silence and to slow-downs. Their reports go through the real `Ingest`; only Slurm is simulated."""

import asyncio
import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.activities.follow import Follow
from relight.activities.follow_silence import LOOKED_AT_EVERY, looked_at
from relight.activities.follow_stacks import GRACE, MAX_ASKED, MAX_NODES, Stacks
from relight.activities.follow_witnesses import Witnesses
from relight.activities.ingest import Ingest
from relight.domain.clocks import SLOW_CLOCK
from relight.domain.evidence import Answer, Interruption, Source, Trust
from relight.domain.laggards import SLOW_RANK
from relight.domain.policy import Policy
from relight.domain.power import ODD_GPU, POWER_FELL
from relight.domain.progress import HangPolicy, witness
from relight.domain.reports import Beat, FaultKind, GpuState, NodeFault, ProbeAnswer, ProcessStack, Report, Usage
from relight.domain.slurm import JobState
from relight.domain.stacks import ODD_RANK, STACKS_IDENTICAL, STACKS_MOVE
from relight.domain.standstill import STANDS_STILL

EVERY = 5
WAITS = ("all_reduce (torch/distributed/distributed_c10d.py:2510)", "step (train.py:42)", "<module> (train.py:90)")
LOADS = ("load_batch (data.py:7)", "<module> (train.py:88)")
SAVES = ("save (torch/serialization.py:1003)", "train (train.py:60)", "<module> (train.py:90)")
PATIENCE = timedelta(seconds=150)
IDLE = Usage(processes=3, others_cpu_s=1.0, moved_bytes=10**9, in_files=0)


class Scene:
    """A job on two nodes with two ranks and two GPUs each, their agents, and the follower; a round a second."""

    def __init__(self, world, path):
        self.world, self.path = world, path
        self.ingest = Ingest(world.site, lambda: None)
        self.follow = Follow(world.site, Witnesses(world.site, self.ingest), patience=timedelta(seconds=60))
        self.followed, self.step, self.asked = {}, 0, []
        self.nodes, self.gpu_count = ["n1", "n2"], 2
        self.stacks = lambda node: (WAITS, WAITS)
        """By node, the frames of its ranks now; None: no answer."""
        self.usage = lambda: IDLE
        """What the job's processes on a node have used by now; None: an agent that does not tell."""
        self.cpu = lambda: 40.0
        """CPU seconds of each rank by now."""
        self.gpu = lambda node, index: {"power_w": 600.0, "utilisation": 1.0, "sm_clock_mhz": 1980.0}

    async def run(self, seconds, *, steps=False, step_time=1.0):
        """So many seconds; the job steps in each, or is silent."""
        for second in range(seconds):
            if steps:
                self.step += 1
                with self.path.open("a") as file:
                    file.write(f"step {self.step}/100000 | loss 0.5 | step_time {step_time} s\n")
            if second % EVERY == 0:
                for node in self.nodes:
                    await self._beat(node)
            await self.world.run(self.follow._round, self.followed)
            self.world.clock.on(1)

    def seconds(self):
        """By the clock."""
        return self.world.clock.now.timestamp()

    async def _beat(self, node, **fields):
        gpus = tuple(GpuState(gpu=f"0000:0{i}:00", index=i, **self.gpu(node, i)) for i in range(self.gpu_count))
        beat = Beat(at=self.world.clock.now, gpus=gpus)
        receipt = await self.ingest.report(Report(node=node, boot="b1", every=EVERY, beat=beat, **fields))
        for probe in receipt.probes:
            ranks = self.stacks(node)
            if ranks is not None and (node, probe.id) not in [(n, i) for n, i, _ in self.asked]:
                self.asked.append((node, probe.id, self.world.clock.now))
                await self._beat(node, answers=(self._answer(node, probe.id, ranks),))
        await asyncio.sleep(0)  # whoever has waited for an answer takes it

    def _answer(self, node, name, ranks):
        first = 2 * self.nodes.index(node)
        stacks = tuple(
            ProcessStack(pid=10 + n, rank=first + n, frames=frames, cpu_s=self.cpu()) for n, frames in enumerate(ranks)
        )
        return ProbeAnswer(id=name, at=self.world.clock.now, stacks=stacks, usage=self.usage())

    async def found(self, kind=Interruption.HANG):
        return [each for each in await self.world.ledger.undelivered() if each.kind is kind]

    async def hang(self):
        """The one that is told."""
        (hang,) = await self.found()
        return hang


@pytest.fixture
def world(make_world):
    """A site with the default patience with steps, and less of it with what may be a first checkpoint."""
    return make_world(policy=Policy(hang=HangPolicy(floor=timedelta(seconds=30), unlearned=PATIENCE)))


@pytest.fixture
async def scene(world, tmp_path):
    await world.train(work_dir=str(tmp_path))
    return Scene(world, tmp_path / "train.out")


def signatures(detection):
    return [each.signature for each in detection.evidence]


# --- stacks ---


async def test_stacks_that_stand_still_bear_a_hang_out_in_time(scene):
    """Both nodes are asked twice from the suspicion on, and at the limit the witness and the odd rank are there."""
    scene.stacks = lambda node: (WAITS, LOADS if node == "n2" else WAITS)
    await scene.run(40, steps=True)
    await scene.run(29)
    assert await scene.found() == []
    await scene.run(3)
    hang = await scene.hang()
    assert hang.detected_at - hang.occurred_at <= timedelta(seconds=31)
    assert signatures(hang) == [None, STACKS_IDENTICAL, ODD_RANK]
    assert (hang.evidence[2].rank, hang.evidence[2].node) == (3, "n2")
    assert witness(hang) is Answer.YES
    await scene.run(60)
    assert sorted(node for node, *_ in scene.asked) == ["n1", "n1", "n2", "n2"]
    assert len(await scene.found()) == 1


async def test_who_moves_hangs_all_the_same_but_without_a_witness(scene):
    """A rank in a loop of its own: silence alone tells, and a person decides."""
    lines = iter(range(100))
    scene.stacks = lambda node: (WAITS, (f"spin (data.py:{next(lines)})", *LOADS) if node == "n2" else WAITS)
    await scene.run(40, steps=True)
    await scene.run(32)
    hang = await scene.hang()
    assert signatures(hang) == [None, STACKS_MOVE, ODD_RANK]
    assert witness(hang) is Answer.UNKNOWN


async def test_with_the_next_step_nobody_is_asked_any_more(scene):
    """A long pause that ends: open questions are taken back, and the next silence is looked at anew."""
    scene.stacks = lambda _: None
    await scene.run(40, steps=True)
    await scene.run(22)
    assert len(scene.ingest._asked) == 2
    await scene.run(2, steps=True)
    assert scene.ingest._asked == {}
    scene.stacks = lambda _: (WAITS, WAITS)
    await scene.run(66)
    assert STACKS_IDENTICAL in signatures(await scene.hang())


async def test_agents_that_do_not_answer_hold_up_nothing(scene):
    """The hang is told at its limit, by silence alone."""
    scene.stacks = lambda _: None
    await scene.run(40, steps=True)
    await scene.run(31)
    assert signatures(await scene.hang()) == [None]


async def test_stacks_on_their_way_are_waited_for_a_little(scene):
    """The second answer comes three seconds late; one that never comes is waited for as long as a beat."""
    await scene.run(40, steps=True)
    await scene.run(24)
    assert len(scene.asked) == 2
    answers, scene.stacks = scene.stacks, lambda _: None
    await scene.run(9)
    assert await scene.found() == []
    scene.stacks = answers
    await scene.run(1)
    assert STACKS_IDENTICAL in signatures(await scene.hang())


async def test_where_one_node_has_no_agent_nothing_is_proven(scene):
    """Whoever moves may be there."""
    scene.nodes = ["n1"]
    await scene.run(40, steps=True)
    await scene.run(33)
    hang = await scene.hang()
    assert witness(hang) is Answer.UNKNOWN
    assert "but the job has 2 nodes" in hang.evidence[1].text


async def test_a_suspended_job_does_not_hang(scene, world):
    """Its stacks stand still as well."""
    await scene.run(40, steps=True)
    attempt = next(iter(scene.followed.values())).attempt
    world.change(attempt, state=JobState.SUSPENDED)
    await scene.run(120)
    assert await scene.found() == []


async def test_questions_are_bounded(world):
    """In nodes of an attempt, and in attempts: a file system that stalls makes all of them suspect at once."""
    asked = []

    class Agents:
        async def ask(self, node, request, within):
            asked.append((node, request.job_id))
            await asyncio.sleep(within.total_seconds())

        def sight(self, node):
            return SimpleNamespace(node=node, every=timedelta(seconds=5), silent=lambda _: timedelta(0))

    def following(number):
        nodes = tuple(f"n{n}" for n in range(2 * MAX_NODES))
        key = SimpleNamespace(job_id=number)
        return SimpleNamespace(attempt=SimpleNamespace(key=key, record=SimpleNamespace(nodes=nodes)))

    before = asyncio.all_tasks()
    stacks, everyone = Stacks(Agents()), [following(number) for number in range(MAX_ASKED // MAX_NODES + 5)]
    for _ in range(3):
        for each in everyone:
            stacks.suspect(each, everyone, world.clock(), world.clock())
    await asyncio.sleep(0)
    assert len(asked) == len(set(asked)) == MAX_ASKED
    # Those that have ended make room.
    stacks.suspect(everyone[-1], everyone[-1:], world.clock(), world.clock())
    await asyncio.sleep(0)
    assert {job for _, job in asked[MAX_ASKED:]} == {everyone[-1].attempt.key.job_id}
    stacks.clear(everyone[-1])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


# --- a step at which a first checkpoint or evaluation may be due ---


async def at_round_step(scene):
    """Where the attempt falls silent; its GPUs have nothing to do any more."""
    await scene.run(100, steps=True)
    scene.gpu = lambda node, index: {"power_w": 110.0, "utilisation": 0.0}


async def test_a_hang_at_a_round_step_is_told_at_the_ordinary_limit_where_it_stands_still(scene):
    """Not after the time that a first checkpoint is given."""
    await at_round_step(scene)
    await scene.run(29)
    assert await scene.found() == []
    await scene.run(3)
    hang = await scene.hang()
    assert signatures(hang) == [None, STANDS_STILL, POWER_FELL, STACKS_IDENTICAL]
    assert hang.detected_at - hang.occurred_at <= timedelta(seconds=31)
    assert "no step for 30 s since step 100 (limit 30 s)" in hang.evidence[0].text
    assert witness(hang) is Answer.YES


async def test_a_first_checkpoint_is_given_its_time(scene):
    """One rank in `torch.save`, three that wait for it, and nothing that moves; then it trains on."""
    scene.stacks = lambda node: (SAVES if node == "n1" else WAITS, WAITS)
    await at_round_step(scene)
    await scene.run(PATIENCE.seconds - 10)
    await scene.run(30, steps=True)
    assert await scene.found() == []
    # Two looks at two nodes, again and again.
    assert 4 * 2 * 2 <= len(scene.asked) <= 5 * 2 * 2


async def test_a_hang_after_a_first_checkpoint_is_told_soon(scene):
    """Once it is written, no rank does anything any more."""
    scene.stacks = lambda node: (SAVES, WAITS)
    await at_round_step(scene)
    await scene.run(60)
    scene.stacks = lambda node: (WAITS, WAITS)
    await scene.run(60)
    hang = await scene.hang()
    assert STANDS_STILL in signatures(hang)
    assert timedelta(seconds=60) < hang.detected_at - hang.occurred_at <= timedelta(seconds=120)


def _moving(scene):
    """Their main threads wait; another writes."""
    scene.usage = lambda: IDLE.model_copy(update={"moved_bytes": int(scene.seconds() * 1e8)})


def _one_node(scene):
    scene.nodes = ["n1"]


def _no_usage(scene):
    scene.usage = lambda: None


def _no_answer(scene):
    scene.stacks = lambda _: None


def _computing(scene):
    scene.stacks = lambda node: (WAITS, LOADS if node == "n2" else WAITS)
    scene.cpu = scene.seconds


@pytest.mark.parametrize("how", [_moving, _one_node, _no_usage, _no_answer, _computing])
async def test_where_no_standstill_is_seen_the_patience_stays(scene, how):
    """Bytes that are moved, a core that is used, a node without an agent, an old agent, none that answers."""
    how(scene)
    await at_round_step(scene)
    await scene.run(PATIENCE.seconds - 5)
    assert await scene.found() == []
    await scene.run(15)
    assert STANDS_STILL not in signatures(await scene.hang())


@pytest.mark.parametrize(("watts", "told"), [(600.0, False), (300.0, False), (110.0, True)])
async def test_gpus_tell_a_spinning_collective_from_work(scene, watts, told):
    """NCCL's waiting takes a core of each rank; power that stays is work, and a little less of it proves nothing."""
    scene.cpu = scene.seconds
    await scene.run(100, steps=True)
    scene.gpu = lambda node, index: {"power_w": watts, "utilisation": 1.0}
    await scene.run(36)
    assert [signatures(each)[1] for each in await scene.found()] == [STANDS_STILL] * told


async def test_gpus_at_work_keep_the_patience(scene):
    """Their host does nothing but wait for them."""
    await scene.run(100, steps=True)
    await scene.run(60)
    assert await scene.found() == []


async def test_a_suspended_job_stands_still_and_does_not_hang(scene, world):
    """Also at a round step."""
    await at_round_step(scene)
    attempt = next(iter(scene.followed.values())).attempt
    world.change(attempt, state=JobState.SUSPENDED)
    await scene.run(120)
    assert await scene.found() == []


@given(st.floats(0, 2000), st.floats(20, 700), st.floats(20, 700))
def test_when_an_attempt_is_judged_next(silent, one, other):
    """Not in the past; at its ordinary limit, or within half a minute, or at the end of all patience."""
    if_still, limit = sorted(timedelta(seconds=each) for each in (one, other))
    after = looked_at(timedelta(seconds=silent), if_still, limit)
    assert min(if_still, limit) <= after <= limit
    if after < limit:
        assert timedelta(seconds=silent) <= after + GRACE
        assert after == if_still or after <= timedelta(seconds=silent) + LOOKED_AT_EVERY


# --- power ---


async def test_power_that_falls_away_bears_a_hang_out(scene):
    """At a utilisation of 100 % all the while: a collective spins."""
    scene.stacks = lambda _: None
    await scene.run(107, steps=True)
    scene.gpu = lambda node, index: {"power_w": 110.0, "utilisation": 1.0}
    await scene.run(32)
    hang = await scene.hang()
    assert signatures(hang) == [None, POWER_FELL]
    assert witness(hang) is Answer.YES
    assert "4 of 4 GPUs fell: 110 W instead of 600 W" in hang.evidence[1].text


async def test_the_idle_gpu_among_spinning_ones_is_told(scene):
    """With its node."""
    scene.stacks = lambda _: None
    scene.gpu_count = 4
    await scene.run(107, steps=True)
    idle = ("n2", 3)
    scene.gpu = lambda node, index: {"power_w": 110.0, "utilisation": 0.0 if (node, index) == idle else 1.0}
    await scene.run(32)
    odd = (await scene.hang()).evidence[2]
    assert (odd.signature, odd.node, odd.gpu) == (ODD_GPU, "n2", "0000:03:00")


async def test_power_that_stays_is_no_witness(scene):
    """Whatever the log says: perhaps only the log is late."""
    scene.stacks = lambda _: None
    await scene.run(107, steps=True)
    await scene.run(32)
    assert signatures(await scene.hang()) == [None]


async def test_power_while_it_already_hung_is_no_baseline(scene, world):
    """With a long patience there is much time to learn the wrong thing: only samples that a step follows count."""
    scene.stacks = lambda _: None
    for _ in range(15):
        await scene.run(1, steps=True, step_time=60.0)
        await scene.run(59)
    scene.gpu = lambda node, index: {"power_w": 110.0, "utilisation": 1.0}
    await scene.run(310)
    assert POWER_FELL in signatures(await scene.hang())


# --- causes of a slow-down ---


async def fault(scene, node, kind=FaultKind.THROTTLED, **fields):
    given = {
        "id": f"{node}/{kind}",
        "kind": kind,
        "at": scene.world.clock.now,
        "text": f"{kind} seen",
        "source": "nvml",
    }
    await scene.ingest.report(Report(node=node, boot="b1", faults=(NodeFault(**given | fields),)))


async def test_a_slow_down_tells_what_its_nodes_suffer_from(scene):
    """Throttling, link errors, low clocks, each with its place. Not: old ones, other nodes', and what is over."""
    await scene.run(60, steps=True)
    await fault(scene, "n1", FaultKind.ECC)
    await scene.run(130, steps=True)
    scene.gpu = lambda node, index: {
        "utilisation": 1.0,
        "sm_clock_mhz": 900.0 if (node, index) == ("n2", 1) else 1980.0,
    }
    await scene.run(20, steps=True)
    await fault(scene, "n2", gpu="0000:01:00", text="clocks held down at 900 MHz: hw_thermal_slowdown")
    await fault(scene, "n1", FaultKind.FABRIC, source="kernel_log")
    await fault(scene, "n3", FaultKind.NVLINK)
    await fault(scene, "n1", FaultKind.PCIE, cleared=True)
    await fault(scene, "n1", FaultKind.DISK_FULL, source="host")
    await scene.run(40, steps=True, step_time=1.5)
    (slow,) = await scene.found(Interruption.STRAGGLER)
    _, *told = slow.evidence
    assert [(each.signature, each.source, each.node, each.gpu) for each in told[:2]] == [
        ("THROTTLED", Source.NVML, "n2", "0000:01:00"),
        ("FABRIC", Source.KERNEL_LOG, "n1", None),
    ]
    assert [(each.signature, each.node, each.gpu) for each in told[2:]] == [(SLOW_CLOCK, "n2", "0000:01:00")]


async def test_a_slow_down_without_a_known_cause_stands_alone(scene):
    """Nothing is guessed."""
    await scene.run(150, steps=True)
    await scene.run(40, steps=True, step_time=1.5)
    (slow,) = await scene.found(Interruption.STRAGGLER)
    assert len(slow.evidence) == 1


async def test_the_rank_that_holds_up_the_others_is_named(world, tmp_path):
    """Where each rank writes into the progress file how long it computes: the step's time is the same for all."""
    await world.train(work_dir=str(tmp_path), comment='{"relight": {"progress": "progress.jsonl"}}')
    scene = Scene(world, tmp_path / "train.out")
    with (tmp_path / "progress.jsonl").open("a") as file:
        for step in range(1, 200):
            slow = 1.5 if step > 150 else 1.0
            for rank in range(4):
                own = 0.8 * slow if rank == 2 else 0.8
                line = {"step": step, "rank": rank, "node": f"n{rank // 2 + 1}", "compute_seconds": own}
                file.write(json.dumps(line | {"step_seconds": slow}) + "\n")
            file.flush()
            await scene.run(1)
    (slow,) = await scene.found(Interruption.STRAGGLER)
    named = slow.evidence[1]
    assert (named.signature, named.rank, named.node, named.trust) == (SLOW_RANK, 2, "n2", Trust.JOB)
