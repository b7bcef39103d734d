"""The faults of the demo and the benchmark: what is done to the job, and the only outcome that is right."""

from collections.abc import Callable
from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from relight.domain.incidents import Outcome
from relight.lab import faults

NODES_OF_JOB = 3
TASKS_PER_NODE = 2
VICTIM = 3
"""A rank on the job's second node."""


class Scenario(BaseModel):
    """One fault, told."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    name: str
    told: str
    """What is about to be done, for a person."""
    fault: Callable[[int], faults.Fault]
    """Made from the step that training has reached."""
    outcome: Outcome
    healthy_for: timedelta = timedelta(seconds=4)
    """How long training runs undisturbed before."""
    busy: float = 0.0
    """Share of the time in which each rank uses the CPU."""
    drains: bool = False
    """Whether the node of the fault must be drained, and the retry kept off it."""
    goes_back: bool = False
    """Whether the retry must go on from the checkpoint before the newest; the job's checkpoints are `sharded` then."""


SCENARIOS: dict[str, Scenario] = {
    s.name: s
    for s in (
        Scenario(
            name="crash",
            told=f"rank {VICTIM}'s process is killed (SIGKILL)",
            fault=lambda _step: faults.crash(rank=VICTIM),
            outcome=Outcome.RECOVERED,
        ),
        Scenario(
            name="gpu",
            told=f"rank {VICTIM}'s GPU has an uncorrectable ECC error: an Xid in its node's kernel log (a stand-in "
            "file), and what CUDA then tells the process (printed by the training program: there is no GPU here)",
            fault=lambda _step: faults.gpu(rank=VICTIM),
            outcome=Outcome.RECOVERED,
            drains=True,
        ),
        Scenario(
            name="hang",
            told=f"rank {VICTIM}'s process is stopped (SIGSTOP); the others wait for it in their next collective",
            fault=lambda _step: faults.hang(rank=VICTIM),
            outcome=Outcome.RECOVERED,
            # Long enough to know the job's rhythm and its ordinary CPU use, the second witness of a hang; and not until
            # a round step such as 150, after which a checkpoint might come that takes minutes for the first time.
            healthy_for=timedelta(seconds=34),
            busy=0.2,
        ),
        Scenario(
            name="node",
            told="the job's first node loses its power: slurmd, batch script and ranks are gone at once",
            fault=lambda _step: faults.node(),
            outcome=Outcome.ADOPTED,
        ),
        Scenario(
            name="bug",
            told="the training program raises the same Python exception in every attempt",
            # Far enough ahead that training has not passed it by the time the rule is written.
            fault=lambda step: faults.bug(step=step + 20),
            outcome=Outcome.STOPPED,
        ),
        Scenario(
            name="straggler",
            told=f"rank {VICTIM}'s process takes half as long again for each step; the others wait for it",
            fault=lambda _step: faults.slow(rank=VICTIM),
            # It still trains: Relight says so and changes nothing.
            outcome=Outcome.OBSERVED,
            # Long enough to know how long its steps take.
            healthy_for=timedelta(seconds=20),
        ),
    )
}
DEMOS: dict[str, Scenario] = {
    **SCENARIOS,
    "badckpt": Scenario(
        name="badckpt",
        told=f"the newest checkpoint loses half of one of its files, and rank {VICTIM}'s process is killed; the "
        "training program takes the newest checkpoint unchecked, as transformers does, and would fail for ever",
        fault=lambda _step: faults.badckpt(rank=VICTIM),
        outcome=Outcome.RECOVERED,
        # Two checkpoints at least.
        healthy_for=timedelta(seconds=8),
        goes_back=True,
    ),
}
"""What the demo can show: the benchmark's faults, and what only Relight on the job's own files can mend."""
