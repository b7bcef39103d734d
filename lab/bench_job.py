"""A job of the detection benchmark: prints steps, comes to grief at one of them, and writes down when.

It needs the standard library only and is run as `python -ISu bench_job.py PLAN`: sixty of them share two cores with all
that is measured. PLAN is JSON, see `bench_trials.Plan`.
"""

import json
import os
import random
import sys
import time
from typing import Any, TextIO

NOISE = 0.02
"""Standard deviation of ln(step time)."""
CHECKPOINT_EVERY, CHECKPOINT_S = 60, 4.0
"""Steps between two checkpoints of a job that stays healthy, and how long it writes one."""


def main() -> None:
    """Train until the fault, or until time is up."""
    plan = json.loads(sys.argv[1])
    with open(plan["truth"], "w", encoding="utf-8") as truth:  # noqa: PTH123 - pathlib takes longer to load than this runs
        train(plan, truth)


def train(plan: dict[str, Any], truth: TextIO) -> None:
    """Print steps; do what the plan says when its step has come."""
    noise = random.Random(plan["seed"])
    until, times, step = float("inf"), 1.0, 0
    while time.monotonic() < until:
        step += 1
        began = time.monotonic()
        seconds = plan["step_s"] * noise.lognormvariate(0, NOISE)
        if step == plan["at_step"]:
            until = time.monotonic() + plan["stay_s"]
            if plan["do"] == "slow":
                times = plan["factor"]
                note(truth, time.time())
            else:
                # It happens anywhere within a step.
                time.sleep(seconds * noise.random())
                fail(plan, truth)
                return
        time.sleep(seconds * times)
        took = time.monotonic() - began
        print(f"step {step}/1000000 | loss {8 / step + 2:.4f} | step_time {took:.3f} s | {64 / took:.0f} samples/s")
        if times > 1:
            note(truth, time.time())
        if plan["do"] == "nothing" and step % CHECKPOINT_EVERY == 0:
            print("saving checkpoint")
            time.sleep(CHECKPOINT_S)
            print(f"saved checkpoint step {step}")


def fail(plan: dict[str, Any], truth: TextIO) -> None:
    """Die, or say that all is lost, or fall silent; the last two end by themselves when nobody ends them."""
    if plan["do"] == "crash":
        note(truth, time.time())
        # Without Python's tidying up, which takes as long as the machine likes.
        os._exit(1)
    if plan["do"] == "fatal":
        print(plan["text"])
    note(truth, time.time())
    time.sleep(plan["stay_s"])


def note(truth: TextIO, at: float) -> None:
    """Write down when it was: first of the fault, then of each step since."""
    truth.write(f"{at}\n")
    truth.flush()


if __name__ == "__main__":
    main()
