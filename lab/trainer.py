"""A real data-parallel training, one process per rank: `srun python -m relight.lab.trainer --run DIR`.

It behaves as trainers do: rank 0 reports steps and writes checkpoints, a start resumes from the newest valid
checkpoint, and any rank's failure ends the job with a traceback. SIGTERM ends a rank at once (Python's default, which
also works within a collective); checkpoints are written so that this does no harm.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from relight.lab import checkpoints, engines, sharded
from relight.lab.engines import BATCH, Model
from relight.lab.fault_rules import Deed, FaultFile, FaultRule, due, slowness
from relight.lab.rendezvous import Place
from relight.lab.xids import XIDS

LABELS = {"cat": 0, "dog": 1, "horse": 2}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until the last step."""
    options = _parser().parse_args(arguments)
    place = Place.from_environment(os.environ)
    timeout = timedelta(seconds=options.collective_timeout)
    model = engines.join(options.engine, place, options.run, timeout)
    train(model, place, options)
    model.close()


def train(model: Model, place: Place, options: argparse.Namespace) -> None:
    """Resume, then train step by step."""
    reporter = Reporter(place, options.steps, options.progress_file)
    faults = FaultFile(options.run)
    reporter.introduce(model)
    keeps = resume_sharded if options.layout == "sharded" else resume
    first = keeps(model, place, options.run, reporter) + 1
    save = sharded.save if options.layout == "sharded" else checkpoints.save
    for step in range(first, options.steps + 1):
        began = time.monotonic()
        fault = due(faults.rules(), place.rank, step, place.attempt)
        load_batch(model, fault)
        loss = model.step(step)
        compute_until(began + options.busy * options.step_time)
        time.sleep(max(0.0, began + slowness(fault) * options.step_time - time.monotonic()))
        reporter.step(step, loss, time.monotonic() - began)
        if step % options.checkpoint_every == 0 and place.rank == 0:
            file = save(checkpoint_folder(options.run), step, model.dump(), model.suffix)
            reporter.say(f"saved checkpoint step {step} ({file})")
    reporter.say(f"training finished after step {options.steps}")


def compute_until(end: float) -> None:
    """Use the CPU, as a larger model would."""
    while time.monotonic() < end:
        sum(range(1000))


def checkpoint_folder(run: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run / "checkpoints"


def resume(model: Model, place: Place, run: Path, reporter: "Reporter") -> int:
    """Load the newest valid checkpoint and return its step, 0 when there is none.

    Rank 0 chooses and tells the others: each looking for itself, they might see different files.
    """
    chosen = ""
    if place.rank == 0:
        chosen = str(checkpoints.newest_valid(checkpoint_folder(run), model.suffix, reporter.warn) or "")
    chosen = model.share(chosen)
    if not chosen:
        return 0
    model.load(Path(chosen))
    step = checkpoints.step_of(Path(chosen))
    reporter.say(f"resumed from checkpoint step {step} ({chosen})")
    return step


def resume_sharded(model: Model, place: Place, run: Path, reporter: "Reporter") -> int:
    """The same from `sharded` checkpoints: the highest number is loaded whatever is in it, and may fail the start."""
    chosen = model.share(str(sharded.newest(checkpoint_folder(run)) or "") if place.rank == 0 else "")
    if not chosen:
        return 0
    with sharded.joined(Path(chosen), model.suffix) as file:
        model.load(file)
    step = sharded.step_of(Path(chosen))
    reporter.say(f"resumed from checkpoint step {step} ({chosen})")
    return step


class Reporter:
    """What rank 0 prints; the other ranks print only their errors."""

    def __init__(self, place: Place, steps: int, progress_file: Path | None) -> None:
        """Report to standard output and, where named, as JSON lines to a file."""
        self._place = place
        self._steps = steps
        self._progress_file = progress_file

    def say(self, line: str) -> None:
        """Print a line at once."""
        if self._place.rank == 0:
            print(line, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.say(f"warning: {text}")

    def introduce(self, model: Model) -> None:
        """Print the size of the job and where each rank runs."""
        lines = model.gather(str(self._place))
        self.say(f"world size {self._place.world} | engine {type(model).__name__} | attempt {self._place.attempt}")
        for line in lines:
            self.say(line)

    def step(self, number: int, loss: float, seconds: float) -> None:
        """Report a finished step."""
        if self._place.rank != 0:
            return
        rate = BATCH * self._place.world / max(seconds, 1e-9)
        self.say(f"step {number}/{self._steps} | loss {loss:.4f} | step_time {seconds:.3f} s | {rate:.0f} samples/s")
        if self._progress_file is not None:
            entry = {"step": number, "loss": loss, "step_time_s": round(seconds, 4), "samples_per_s": round(rate)}
            stamp = {"time": datetime.now(UTC).isoformat(), "attempt": self._place.attempt}
            with self._progress_file.open("a") as stream:
                stream.write(json.dumps(stamp | entry) + "\n")


def load_batch(model: Model, fault: FaultRule | None) -> None:
    """Prepare a step's data; a fault that is due happens here, where real ones of its kind do."""
    if fault is None or fault.do is Deed.SLOW:
        encode_labels(["cat", "horse"])
    elif fault.do is Deed.RAISE:
        encode_labels(["cat", fault.text or "zebra"])
    elif fault.do is Deed.ECC:
        to_device(fault.text or XIDS[48].cuda_text)
    elif fault.do is Deed.NAN:
        model.poison()
    elif fault.do is Deed.HANG:
        spin()
    else:
        # Not sys.exit: no clean-up, no word, as when a library calls abort.
        os._exit(fault.code)


def encode_labels(labels: Sequence[str]) -> list[int]:
    """Return the numbers of labels; a label that nobody has foreseen is the user's bug."""
    return [LABELS[label] for label in labels]


def to_device(error: str) -> NoReturn:
    """Fail as a copy to a broken GPU does."""
    raise RuntimeError(error)


def spin() -> NoReturn:
    """Never come back."""
    while True:
        time.sleep(0.1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relight.lab.trainer", description="A small data-parallel training.")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and faults.json")
    parser.add_argument("--engine", choices=["auto", "torch", "numpy"], default="auto")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-time", type=float, default=0.2, help="seconds that a step takes at least")
    parser.add_argument("--busy", type=float, default=0.0, help="share of the step time in which the CPU is used")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--layout", choices=["own", "sharded"], default="own", help="of checkpoints")
    parser.add_argument("--progress-file", type=Path, help="also write steps as JSON lines to this file")
    parser.add_argument("--collective-timeout", type=float, default=1800.0, help="seconds, as PyTorch's default")
    return parser


if __name__ == "__main__":
    main()
