"""What earlier failures of the same job change about a verdict."""

from relight.attribution.facts import Facts
from relight.attribution.sources import PriorFailure
from relight.domain.diagnosis import Action, Category, Hypothesis

SAME_STEP = 2
"""Steps apart that still count as the same place."""
_OOM = frozenset({"CUDA_OOM", "CUDA_OOM_AT_INIT", "NCCL_CUDA_OOM"})
NO_MEMORY = "CUDA_OOM_AT_INIT"
_BAD_GPU = ("XID_", "CUDA_ECC", "CUDA_NVLINK", "CUDA_UNKNOWN", "NVML_GPU_LOST")


def with_history(verdict: Hypothesis, facts: Facts) -> Hypothesis:
    """The verdict in the light of the job's earlier failures."""
    if not facts.context.history:
        return verdict
    return _sick_gpu(verdict, facts) or _repeated(verdict, facts)


def _repeated(verdict: Hypothesis, facts: Facts) -> Hypothesis:
    """The same failure at the same place as the last time: the other answer."""
    last = facts.context.history[-1]
    if last.signature != verdict.signature:
        return verdict
    now, then = facts.last_step, last.failed_step
    same_place = now is None or then is None or abs(now - then) <= SAME_STEP
    same_node = bool(set(last.nodes) & set(verdict.implicated.nodes))
    if not same_place and not same_node:
        return verdict
    place = f" at step {now}" if same_place and now is not None else ""
    summary = f"{verdict.summary} It is the second time in a row{place}."
    return verdict.model_copy(update={"action": verdict.action_if_it_repeats, "summary": summary})


def same_again(verdict: Hypothesis, last: PriorFailure) -> bool:
    """True when the job's last failure was of this kind, or of the GPU that has no memory now."""
    return last.signature == verdict.signature or (
        verdict.signature == NO_MEMORY and last.signature.startswith(_BAD_GPU)
    )


def _sick_gpu(verdict: Hypothesis, facts: Facts) -> Hypothesis | None:
    """No memory at the start of a job that has trained, on a node whose GPU had just failed: it is that node."""
    last = facts.context.history[-1]
    if verdict.signature not in _OOM or facts.last_step is not None or not last.signature.startswith(_BAD_GPU):
        return None
    allocated = facts.context.nodes
    nodes = tuple(node for node in last.nodes if not allocated or node in allocated)
    if not nodes:
        return None
    return verdict.model_copy(
        update={
            "signature": NO_MEMORY,
            "category": Category.GPU,
            "action": Action.RESTART_EXCLUDING_NODE,
            "action_if_it_repeats": Action.RESTART_EXCLUDING_NODE,
            "implicated": verdict.implicated.model_copy(update={"nodes": nodes}),
            "summary": f"No GPU memory at the start, on a node whose GPU had just failed ({', '.join(nodes)}).",
        },
    )
