"""Kinds that the process itself tells (GPU libraries, data, numerics, program, settings), with their usual echoes."""

import pytest

from relight.attribution.sources import Context
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Interruption

ELASTIC = (
    "E1130 09:31:02.1 77 torch/distributed/elastic/api.py:9] failed (exitcode: 1) local_rank: 1 (pid: 82)",
    "Traceback (most recent call last):",
    '  File "/env/bin/torchrun", line 8, in <module>',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "============================================================",
    "pretrain.py FAILED",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-30_09:31:01",
    "  host      : n1",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : 1 (pid: 82)",
    "  error_file: <N/A>",
    "srun: error: n1: task 0: Exited with exit code 1",
    "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T09:31:05 ***",
)
"""What follows the end of one rank under torchrun and Slurm."""
WATCHDOG = (
    "[rank3]:[E1130 09:41:00.4 ProcessGroupNCCL.cpp:6] [Rank 3] Watchdog caught collective operation timeout: Work",
    "srun: error: n2: tasks 2-3: Aborted (core dumped)",
)
"""What the ranks print that waited for one that had ended."""
WARNINGS = (
    "/env/lib/torch/utils/data/dataloader.py:554: UserWarning: This DataLoader will create 32 worker processes.",
    "W1130 09:00:00.0 77 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process",
    "apex was installed without --cpp_ext. Original ImportError was: ModuleNotFoundError(\"No module named 'apex_C'\")",
    "W dso_loader.cc:64] Could not load dynamic library; dlerror: libnvinfer.so.7: cannot open shared object file",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "W1130 torch/_inductor/select_algorithm.py:15] out of resource: shared memory, Required: 9, Hardware limit: 8",
)
"""What healthy runs print as well."""


def steps(first, last, loss="2.5"):
    """Progress lines."""
    return [f"step {step}/1000 | loss {loss} | step_time 0.2 s" for step in range(first, last + 1)]


def traceback(*last, rank=1):
    """A rank's traceback that ends in these lines."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/u/pretrain.py", line 12, in <module>',
        "    main()",
        *last,
    )
    return [f"[rank{rank}]: {line}" for line in lines]


STOP, RESTART, EXCLUDE = Action.STOP, Action.RESTART, Action.RESTART_EXCLUDING_NODE
CASES = {
    (Category.GPU, EXCLUDE): [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "RuntimeError: CUDA error: unspecified launch failure",
        "HW Exception by GPU node-2 (Agent handle: 0x55) reason :GPU Hang",
    ],
    (Category.NODE, EXCLUDE): [
        "Cuda failure 802 'system not yet initialized'",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
    (Category.CONFIG, STOP): [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: HIP error: invalid device function",
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "RuntimeError: the provided PTX was compiled with an unsupported toolchain.",
        "ValueError: bf16 is not supported on this GPU",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "AssertionError: num_attention_heads (12) must be divisible by tensor parallel size (8)",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: 1)",
        "wandb.errors.errors.UsageError: api_key not configured (no-tty).",
        "OSError: /models/m does not appear to have a file named config.json.",
    ],
    (Category.USER_CODE, STOP): [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.5GiB",
        "ResourceExhaustedError: OOM when allocating tensor with shape[8,512]",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ImportError: /env/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by _C.so)",
        "pretrain.py: error: unrecognized arguments: --lrr",
        "yaml.scanner.ScannerError: mapping values are not allowed here",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "RuntimeError: Expected to mark a variable ready only once.",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 9x4)",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices",
        "my.pkg.BatchError: empty batch",
        "SyntaxError: invalid syntax",
    ],
    (Category.FRAMEWORK, RESTART): [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: misaligned address",
        "Memory access fault by GPU node-4 (Agent handle: 0x5) on address 0x7f. Reason: Unknown.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa)`",
        "RuntimeError: GET was unable to find an engine to execute this computation",
    ],
    (Category.FRAMEWORK, STOP): [
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
        "torch._inductor.exc.InductorError: LoweringException: ValueError: no layout",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 9, Hardware limit: 8",
    ],
    (Category.DATA, STOP): [
        "PIL.UnidentifiedImageError: Caught UnidentifiedImageError in DataLoader worker process 2.",
        "OSError: cannot identify image file 'x.png'",
        "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer.",
        "tarfile.ReadError: unexpected end of data",
        "ValueError: mmap length is greater than file size",
        "KeyError: Caught KeyError in DataLoader worker process 0.",
        "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0",
        "ValueError: num_samples should be a positive integer value, but got num_samples=0",
        "StopIteration",
    ],
    (Category.STORAGE, STOP): ["OSError: [Errno 28] No space left on device"],
}
"""Whose fault it is and what to do, for the last line of a rank's traceback."""
ROWS = [pytest.param(last, *told, id=last[:40]) for told, lines in CASES.items() for last in lines]


@pytest.mark.parametrize(("last", "category", "action"), ROWS)
@pytest.mark.parametrize("echoes", [ELASTIC, WATCHDOG], ids=["torchelastic", "watchdog"])
def test_kind_with_its_echoes(verdict_of, last, category, action, echoes):
    """The kind is recognised between ordinary warnings and the teardown that follows, after training has gone on."""
    verdict = verdict_of(*WARNINGS, *steps(1, 30), *traceback(last), *echoes)
    assert (verdict.category, verdict.action) == (category, action), verdict.signature


@pytest.mark.parametrize(("last", "category", "action"), ROWS)
def test_kind_before_the_first_step(verdict_of, last, category, action):
    """The same, where nothing has been trained and nothing but the traceback is there."""
    verdict = verdict_of(*traceback(last))
    assert (verdict.category, verdict.action) == (category, action), verdict.signature


PREFIXES = [
    "(WorkerDict pid=71) ",
    "2026-11-30T09:00:00.1Z: [1,0]<stderr>:",
    "n1: [rank3]: ",
    "E1130 09:00:00.1 7 api.py:7] ",
]


@pytest.mark.parametrize(("last", "category", "action"), ROWS[::4])
@pytest.mark.parametrize("prefix", PREFIXES, ids=["Ray", "mpirun", "pdsh", "torchelastic"])
def test_kind_behind_a_launchers_prefix(verdict_of, last, category, action, prefix):
    """Launchers put something before each line."""
    verdict = verdict_of(*(prefix + line for line in ("Traceback (most recent call last):", last)))
    assert (verdict.category, verdict.action) == (category, action), verdict.signature


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: No CUDA GPUs are available",
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
    ],
)
def test_what_was_never_there_is_the_settings(verdict_of, line):
    """Before the first step a GPU or a service that is not there was never asked for, or never allowed."""
    verdict = verdict_of(*traceback(line), *ELASTIC)
    assert (verdict.category, verdict.action) == (Category.CONFIG, STOP)


def test_gpus_that_vanish_while_training_are_the_nodes(verdict_of):
    """A job that has trained had its GPUs: the node has lost them since."""
    verdict = verdict_of(*steps(1, 30), *traceback("RuntimeError: No CUDA GPUs are available"))
    assert (verdict.category, verdict.action) == (Category.NODE, EXCLUDE)


def test_a_service_that_answered_before_may_answer_again(verdict_of):
    """A job that has trained could reach what it needs."""
    last = "OSError: We couldn't connect to 'https://huggingface.co' to load this file"
    verdict = verdict_of(*steps(1, 30), *traceback(last))
    assert (verdict.category, verdict.action) == (Category.DATA, RESTART)


def test_no_memory_at_the_very_start_may_be_a_left_over(verdict_of):
    """CUDA without memory before anything was allocated: another process, or a sick GPU; after training, the model."""
    line = "RuntimeError: CUDA error: out of memory"
    assert verdict_of(*traceback(line)).category is Category.GPU
    verdict = verdict_of(*steps(1, 30), *traceback(line))
    assert (verdict.category, verdict.action) == (Category.USER_CODE, STOP)


NAN = [
    "AssertionError: Rank 5: found NaN in local grad norm in backward pass before data-parallel",
    "ValueError: The loss returned in `training_step` is nan or inf.",
    "RuntimeError: Function 'MmBackward0' returned nan values in its 1th output.",
    "FloatingPointError: Loss became infinite or NaN at iteration=2137!",
    "Loss is nan, stopping training",
    "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.",
]


@pytest.mark.parametrize("line", NAN)
def test_nan_in_each_trainers_words(verdict_of, line):
    """Numbers that go wrong in the middle of training are tried once more."""
    verdict = verdict_of(*steps(190, 205), line, *ELASTIC)
    assert (verdict.signature, verdict.category, verdict.action) == ("NUM_NAN", Category.NUMERICS, RESTART)


@pytest.mark.parametrize(
    "line",
    [
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        "RuntimeError: grad_scale is too small, exiting: 8.47e-22",
    ],
)
def test_loss_scale_at_its_end(verdict_of, line):
    """A loss scale that cannot go lower has diverged for good."""
    verdict = verdict_of(*steps(190, 205), line, *ELASTIC)
    assert (verdict.signature, verdict.action) == ("NUM_SCALE_MIN", STOP)


def test_nan_in_the_step_lines_only(verdict_of):
    """Where no line complains, the step lines themselves tell; from the first steps on it is the settings."""
    assert verdict_of(*steps(1, 30), *steps(31, 40, "nan")).signature == "NUM_NAN"
    verdict = verdict_of(*steps(1, 2), *steps(3, 9, "nan"))
    assert (verdict.category, verdict.action) == (Category.CONFIG, STOP)


def test_a_loss_that_swings_is_no_spike(verdict_of):
    """The loss of a small batch doubles now and then without meaning anything."""
    swinging = [line for step in range(60) for line in steps(step, step, "0.8" if step % 2 else "0.4")]
    assert verdict_of(*swinging).category is Category.UNKNOWN


def test_a_spike_explains_no_hang_and_no_silent_crash(verdict_of):
    """A loss that jumped and came back is no reason for an end that somebody has seen; and none explains a hang."""
    came_back = [*steps(1, 5, "2.0"), *steps(6, 9, "7.5"), *steps(10, 12, "1.9")]
    assert verdict_of(*came_back, context=Context(interruption=Interruption.CRASH)).action is RESTART
    verdict = verdict_of(*steps(1, 5, "2.0"), *steps(6, 9, "7.5"), context=Context(interruption=Interruption.HANG))
    assert verdict.signature == "HANG_NO_LOG"


PLACED = [f"rank {rank} -> node n{rank // 2 + 1} local_rank {rank % 2} gpu {rank % 2}" for rank in range(8)]


@pytest.mark.parametrize(
    ("ranks", "category", "action"),
    [(range(8), Category.USER_CODE, STOP), ((4, 5), Category.NODE, EXCLUDE), ((3,), Category.USER_CODE, STOP)],
    ids=["all", "one node", "one rank"],
)
def test_a_broken_environment_of_one_node(verdict_of, ranks, category, action):
    """What all ranks of one node miss, and no others, is that node's; else it is the program's."""
    lines = [f"[rank{rank}]: ModuleNotFoundError: No module named 'apex'" for rank in ranks]
    verdict = verdict_of(*PLACED, *lines)
    assert (verdict.category, verdict.action) == (category, action)


SURVIVED = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Retrying with batch size 8",
    "WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15 GiB total)",
    "wandb.errors.CommError: could not upload, retrying",
    "Loss is nan, skipping this batch",
    "ModuleNotFoundError: No module named '_distutils_hack'",
]


@pytest.mark.parametrize("line", SURVIVED)
def test_what_training_survived_is_not_the_cause(verdict_of, line):
    """What training went on after ended nothing, whatever it says."""
    limit = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T09:31:00 DUE TO TIME LIMIT ***"
    assert verdict_of(*steps(1, 5), line, *steps(6, 40), limit).signature == "SLURM_TIME_LIMIT"


def test_ordinary_warnings_are_no_failure(verdict_of):
    """Deprecations, optional modules, a loss scale that is lowered, kernels that autotuning rejects."""
    assert verdict_of(*WARNINGS, *steps(1, 40)).category is Category.UNKNOWN
    assert verdict_of(*WARNINGS, *steps(960, 1000)).category is Category.CONTROL
