"""What tells a hang from a first checkpoint or evaluation that nothing announces: stacks recorded, counts made up."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.evidence import Trust
from relight.domain.reports import ProbeAnswer, ProcessStack, Usage
from relight.domain.stacks import Pair
from relight.domain.standstill import OTHERS_CPU, RANK_CPU, STANDS_STILL, STILL_BYTES, Gpus, at_work, stands_still

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
APART = 6.0
RECORDED = json.loads(Path(__file__).with_name("recorded_stacks.json").read_text())
"""As the real py-spy showed them (see `standstill`), without what lies below the training loop."""
AT_WORK = {name: tuple(frames) for name, frames in RECORDED["at_work"].items()}
TRAINING = {name: tuple(frames) for name, frames in RECORDED["training"].items()}
WAITS, SLEEPS, LOADS = TRAINING["all_reduce"], TRAINING["sleeps"], TRAINING["DataLoader"]


def stack(rank, frames=WAITS, **fields):
    return ProcessStack(**{"pid": 100 + (rank or 0), "rank": rank, "frames": frames, "cpu_s": 40.0} | fields)


def usage(**fields):
    return Usage(**{"processes": 6, "others_cpu_s": 3.0, "moved_bytes": 10**9, "in_files": 0} | fields)


def answer(stacks, *, seconds=0.0, used=None, problem=""):
    at = NOW + timedelta(seconds=seconds)
    return ProbeAnswer(id="p", at=at, stacks=tuple(stacks), usage=used or usage(), problem=problem)


def told(first, second=None, *, asked=None, gpus=None, before=None, after=None, apart=APART):
    """What two looks at the ranks of a node, or of some nodes, tell; `before` and `after` are what is used on each."""
    nodes = first if isinstance(first[0], list) else [first]
    again = (second if isinstance(second[0], list) else [second]) if second else nodes
    pairs = [
        Pair(f"n{n}", answer(one, used=before), answer(two, seconds=apart, used=after or before))
        for n, (one, two) in enumerate(zip(nodes, again, strict=True))
    ]
    return stands_still(pairs, len(nodes) if asked is None else asked, gpus or Gpus(), NOW)


def ranks(*frames):
    return [stack(rank, each) for rank, each in enumerate(frames)]


def spent(stacks, seconds):
    """The same a look later, each with so much more CPU time."""
    return [each.model_copy(update={"cpu_s": each.cpu_s + seconds}) for each in stacks]


# --- hangs ---


@pytest.mark.parametrize("odd", TRAINING.values(), ids=TRAINING)
def test_ranks_that_do_nothing_stand_still(odd):
    """Three wait in a collective for one that waits as well, sleeps, or never gets its data."""
    found = told(ranks(WAITS, WAITS, WAITS, odd))
    assert (found.signature, found.trust) == (STANDS_STILL, Trust.JOB)
    assert found.text.startswith("all 4 ranks did nothing for 6 s: none of the job's processes uses CPU, moves data")


def test_a_single_rank_may_stand_still():
    """Whether or not it has peers."""
    assert told(ranks(SLEEPS)).text.startswith("the only rank did nothing")


def test_ranks_on_several_nodes():
    """Numbered as the job numbers them, in whatever order."""
    assert told([[stack(2), stack(3)], [stack(0), stack(1)]])


def test_what_wakes_up_now_and_then_stands_still():
    """Watchdogs, launchers, loggers."""
    first = ranks(WAITS, WAITS)
    used = usage(moved_bytes=10**9 + int(0.9 * STILL_BYTES * APART), others_cpu_s=3.0 + 0.9 * OTHERS_CPU * APART)
    assert told(first, spent(first, 0.9 * RANK_CPU * APART), before=usage(), after=used)


def test_a_collective_that_spins_stands_still_where_power_is_down():
    """NCCL waits with a core each; without a word of the GPUs that is not told from work, nor outside of waiting."""
    first = ranks(WAITS, TRAINING["DDP backward"])
    spins = spent(first, APART)
    assert told(first, spins, gpus=Gpus(fell=True))
    assert told(first, spins) is None
    lone = ranks(WAITS, SLEEPS)
    assert told(lone, [spent(lone, APART)[0], lone[1]], gpus=Gpus(fell=True))
    assert told(lone, spent(lone, APART), gpus=Gpus(fell=True)) is None


# --- checkpoints, evaluations, start-ups ---


@pytest.mark.parametrize("frames", AT_WORK.values(), ids=AT_WORK)
def test_a_rank_at_work_keeps_the_patience(frames):
    """One of many, while the others wait for it, with nothing that moves: its storage does not take what it writes."""
    assert at_work(frames)
    assert told(ranks(frames, WAITS, WAITS, WAITS)) is None
    assert told(ranks(frames)) is None


@pytest.mark.parametrize("frames", AT_WORK.values(), ids=AT_WORK)
def test_ranks_that_wait_for_each_other_within_it_keep_the_patience(frames):
    """A barrier inside of a save: whether one still writes is not known."""
    inside = [n for n, frame in enumerate(frames) if at_work([frame])]
    assert told(ranks(*((*WAITS[:2], *frames[inside[-1] :]),) * 2)) is None


@pytest.mark.parametrize(
    "frame",
    [
        "CheckpointSaver.run (user.py:3)",
        "write_shards (user.py:3)",
        "dump_everything (user.py:3)",
        "run_eval (user.py:3)",
        "val_epoch (user.py:3)",
        "generate_samples (user.py:3)",
        "save_checkpoint (megatron/training/checkpointing.py:480)",
        "DeepSpeedEngine.save_checkpoint (deepspeed/runtime/engine.py:3150)",
        "AsyncCaller._wait (nemo/utils/callbacks/dist_ckpt_io.py:80)",
        "sync (s3fs/core.py:90)",
        "Thread.join (threading.py:1119)",
        "anything (evaluate.py:7)",
        "save",
    ],
)
def test_names_of_what_takes_long(frame):
    """In function, class or file; also where the frame has no file."""
    assert at_work((frame, *SLEEPS))


@pytest.mark.parametrize(
    "frame",
    [
        "checkpoint (torch/utils/checkpoint.py:497)",
        "CheckpointWrapper.forward (torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py:170)",
        "CheckpointFunction.forward (megatron/core/tensor_parallel/random.py:400)",
        "compile_wrapper (torch/_dynamo/eval_frame.py:832)",
        "_SubprocessScriptLauncher.launch (lightning/pytorch/strategies/launchers/subprocess_script.py:107)",
        "forward_backward_pipelining_with_interleaving (megatron/core/pipeline_parallel/schedules.py:900)",
        "Accelerator.wait_for_everyone (accelerate/accelerator.py:2900)",
        "DeepSpeedEngine.allreduce_gradients (deepspeed/runtime/engine.py:2000)",
    ],
)
def test_names_of_training(frame):
    """Checkpoints of activations, compiled code, launchers: where a rank hangs as well."""
    assert not at_work((*WAITS[:2], frame, *SLEEPS))


def test_one_long_write_of_any_name_keeps_the_patience():
    """No counter grows, no stack changes: only that a thread is within a call on a file tells it."""
    for used in ({"before": usage(in_files=1)}, {"before": usage(), "after": usage(in_files=1)}):
        assert told(ranks(SLEEPS, WAITS), **used) is None


@pytest.mark.parametrize(
    "after",
    [
        usage(moved_bytes=10**9 + int(STILL_BYTES * APART) + 1),  # it writes, or reads its data
        usage(others_cpu_s=3.0 + 1.1 * OTHERS_CPU * APART),  # data loaders start up
        usage(processes=7),  # one was started
    ],
)
@pytest.mark.parametrize("frames", [SLEEPS, LOADS], ids=["anywhere", "waiting for data"])
def test_processes_that_do_anything_keep_the_patience(frames, after):
    """Whatever the ranks' own stacks show."""
    assert told(ranks(frames, WAITS), before=usage(), after=after) is None


def test_a_launcher_that_works_keeps_the_patience():
    """It has a stack and no rank."""
    first = [stack(0), stack(None, pid=7)]
    assert told(first)
    assert told(first, [first[0], *spent(first[1:], 1.1 * OTHERS_CPU * APART)]) is None


def test_a_rank_that_computes_keeps_the_patience():
    """At one line all the while: it may be packing a checkpoint, or evaluating."""
    first = ranks(SLEEPS, WAITS)
    assert told(first, [*spent(first[:1], 1.1 * RANK_CPU * APART), first[1]]) is None


def test_gpus_at_work_keep_the_patience():
    """An evaluation whose host waits for them."""
    assert told(ranks(SLEEPS, SLEEPS), gpus=Gpus(work=True)) is None


def test_a_stack_that_changes_keeps_the_patience():
    """In one line of one rank."""
    assert told(ranks(WAITS, SLEEPS), ranks(WAITS, ("train (train.py:47)", *SLEEPS[1:]))) is None


# --- what is not known ---


@pytest.mark.parametrize(
    "second",
    [
        [stack(0), stack(1, cpu_s=None)],  # an older agent
        [stack(0), stack(1, frames=())],
        [stack(0), stack(1, problem="py-spy took longer than 5 s")],
        [stack(0), stack(1, pid=999)],  # started anew
        [stack(0), stack(1, cpu_s=39.0)],  # another process of that number
        [stack(0)],
    ],
)
def test_a_rank_that_is_not_known_keeps_the_patience(second):
    """Unknown is not yes, in either look."""
    first = [stack(0), stack(1)]
    assert told(first)
    assert told(first, second) is None
    assert told(second, first) is None


@pytest.mark.parametrize("numbers", [(1, 2), (0, 2), (0, 0), (None, None)])
def test_a_rank_that_is_missing_or_claimed_twice_keeps_the_patience(numbers):
    """The one that writes may be the one that is not seen."""
    assert told([stack(number, pid=n) for n, number in enumerate(numbers)]) is None


def test_a_node_that_is_not_seen_keeps_the_patience():
    """One of its nodes has no agent, or does not answer; or none has."""
    assert told(ranks(WAITS, WAITS), asked=2) is None
    assert stands_still([], 0, Gpus(), NOW) is None
    assert stands_still([], 2, Gpus(), NOW) is None


def test_usage_that_is_not_known_keeps_the_patience():
    """An older agent, or one that may not look; a failed probe; looks that are too close."""
    one, two = answer(ranks(WAITS)), answer(ranks(WAITS), seconds=APART)
    assert stands_still([Pair("n1", one, two)], 1, Gpus(), NOW)
    for without in (one.model_copy(update={"usage": None}), one.model_copy(update={"problem": "6 were not looked at"})):
        assert stands_still([Pair("n1", without, two)], 1, Gpus(), NOW) is None
        later = without.model_copy(update={"at": two.at})
        assert stands_still([Pair("n1", one, later)], 1, Gpus(), NOW) is None
    assert told(ranks(WAITS), apart=4.0) is None


@pytest.mark.parametrize("fewer", [{"moved_bytes": 1}, {"others_cpu_s": 1.0}])
def test_counters_that_fall_keep_the_patience(fewer):
    """A process has ended, so another was there."""
    assert told(ranks(WAITS), before=usage(), after=usage(**fewer)) is None


@given(st.lists(st.lists(st.text(max_size=40), max_size=6), max_size=5))
def test_frames_may_be_anything(frames):
    """A program's names are not ours to trust."""
    for each in frames:
        at_work(tuple(each))
    if frames:
        told(ranks(*map(tuple, frames)))
