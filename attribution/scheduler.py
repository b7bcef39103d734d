"""What Slurm itself says about the end of an attempt, as hypotheses."""

from collections.abc import Iterator

from relight.attribution.catalogue import Catalogue
from relight.attribution.facts import Facts
from relight.attribution.sources import Context
from relight.attribution.verdicts import as_is
from relight.domain.diagnosis import Action, Category, Hypothesis, Implicated
from relight.domain.evidence import Evidence, Source
from relight.domain.slurm import JobState

DO_NOT_REQUEUE = 93
"""Exit code by which a batch script says that a retry is useless."""

_BY_STATE = {
    JobState.OUT_OF_MEMORY: "SLURM_OOM",
    JobState.NODE_FAIL: "SLURM_NODE_FAIL",
    JobState.BOOT_FAIL: "SLURM_NODE_FAIL",
    JobState.TIMEOUT: "SLURM_TIME_LIMIT",
    JobState.PREEMPTED: "SLURM_PREEMPT",
    JobState.CANCELLED: "SLURM_CANCELLED",
}
_BY_SIGNAL = {9: "EXIT_SIGKILL", 11: "EXIT_SIGSEGV", 7: "HOST_SIGBUS"}
FINAL = frozenset({JobState.PREEMPTED, JobState.CANCELLED, JobState.COMPLETED, JobState.DEADLINE})
"""Ends that are nobody's failure: whatever the log says after it."""


def hypotheses(facts: Facts, catalogue: Catalogue) -> Iterator[Hypothesis]:
    """What slurmctld or accounting says; nothing where it says nothing."""
    context = facts.context
    lost = context.lost_nodes
    identity = _BY_STATE.get(context.state) if context.state else None
    if context.not_launched_on:
        identity = "SLURM_LAUNCH_FAILED"
    if lost:
        identity = "SLURM_NODE_FAIL"
    if identity is None and context.exit_signal:
        identity = _BY_SIGNAL.get(context.exit_signal)
    if context.state in {JobState.COMPLETED, JobState.DEADLINE}:
        yield _ended(context.state)
    elif identity is not None:
        yield _told(identity, facts, catalogue)


def _told(identity: str, facts: Facts, catalogue: Catalogue) -> Hypothesis:
    signature, context = catalogue[identity], facts.context
    category, action, repeats = as_is(signature, facts.lines.get(identity, []), facts)
    cancelled = identity == "SLURM_CANCELLED"
    lost = context.lost_nodes
    named = lost or context.not_launched_on
    text = f"Slurm: {_what(context)}" + (f", lost {', '.join(lost)}" if lost else "")
    summary = signature.summary.format_map(dict.fromkeys(("where",), ", ".join(named) or "a node"))
    return Hypothesis(
        signature=identity,
        category=category,
        action=Action.STOP if cancelled else action,  # a person's cancel is never undone
        action_if_it_repeats=Action.STOP if cancelled else repeats,
        confidence=0.99 if context.state in FINAL else signature.weight,
        implicated=Implicated(nodes=named[:32]),
        summary="Slurm says the job was cancelled." if cancelled else summary,
        drain_nodes=lost,
        evidence=(Evidence(source=Source.SLURMCTLD, text=text[:600], signature=identity),),
    )


def _what(context: Context) -> str:
    if context.state:
        return f"state {context.state}"
    if context.not_launched_on:
        return f"not launched on {', '.join(context.not_launched_on)}, queued again"
    return f"signal {context.exit_signal}"


def _ended(state: JobState) -> Hypothesis:
    done = state is JobState.COMPLETED
    action = Action.NONE if done else Action.STOP
    return Hypothesis(
        signature=f"SLURM_{state}",
        category=Category.CONTROL if done else Category.SCHEDULER,
        action=action,
        action_if_it_repeats=action,
        confidence=0.99,
        summary="The job completed." if done else "The job's deadline ended it.",
        evidence=(Evidence(source=Source.SLURMCTLD, text=f"Slurm: state {state}"),),
    )
