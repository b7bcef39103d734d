"""What the chaos harness tells: counts, how rare each violation is for sure, and each trial."""

from collections import Counter
from typing import Any

from rich.table import Table

from relight.lab.chaos import POLICY, Order, Played
from relight.lab.chaos_bounds import upper_bound
from relight.lab.chaos_check import Kind
from relight.lab.chaos_trial import Trial

COUNTS = {
    Kind.LOST: "lost",
    Kind.DOUBLED: "doubled",
    Kind.UNRECORDED: "unrecorded",
    Kind.HEALTHY_DRAIN: "healthy_drains",
}


def result(order: Order, played: Played) -> dict[str, Any]:
    """All of it, for JSON: counts are of trials in which it happened, and of what belongs to none."""
    number = len(played.trials)
    counts, upper = {}, {}
    for kind, name in COUNTS.items():
        mine = [violation for violation in played.violations if violation.kind is kind]
        counts[name] = len({v.trial for v in mine if v.trial is not None}) + sum(v.trial is None for v in mine)
        upper[name] = round(upper_bound(min(counts[name], number), number), 5)
    return {
        "trials": number,
        **counts,
        "upper_95": upper,
        "violations": [{"kind": v.kind, "seed": v.trial, "text": v.text} for v in played.violations],
        "stories": played.stories,
        "trains": sum(trial.trains for trial in played.trials),
        "not_run": played.not_run,
        "outcomes": dict(Counter(outcome for trial in played.trials for outcome in trial.outcomes).most_common()),
        "interrupted": played.interrupted,
        "failed": played.failed,
        "records": [_record(trial) for trial in played.trials],
        "conditions": {
            "seed": order.seed,
            "at_once": order.at_once,
            "nodes": order.nodes,
            "ledger": "postgresql" if order.postgres else "sqlite",
            "policy": POLICY,
            "faults": dict(Counter(str(trial.script.fault) for trial in played.trials)),
            "broken": dict(Counter(str(trial.script.part) for trial in played.trials)),
            **played.facts,
        },
    }


def _record(trial: Trial) -> dict[str, Any]:
    script = trial.script
    return {
        "seed": script.seed,
        "fault": script.fault,
        "part": script.part,
        "how": script.how,
        "command": script.command,
        "moment": f"{script.moment.delay_s:.2f} s after {script.moment.after}",
        "for_s": round(script.for_s, 2),
        "hit": trial.hit,
        "struck_after": trial.struck_after,
        "job": trial.job,
        "outcomes": trial.outcomes,
        "settled": trial.settled,
        "trains": trial.trains,
        "seconds": trial.seconds,
    }


def good(told: dict[str, Any]) -> bool:
    """Whether all went as it must."""
    return not (told["violations"] or told["interrupted"] or told["failed"])


def report(told: dict[str, Any]) -> Table:
    """The counts as a table; below it what is wrong."""
    number, conditions = told["trials"], told["conditions"]
    title = f"{number} trials on real Slurm {conditions.get('slurm', '')}, ledger in {conditions['ledger']}"
    table = Table("", "of the trials", "at most, 95 % sure", title=title)
    for name in COUNTS.values():
        table.add_row(name.replace("_", " "), str(told[name]), f"{told['upper_95'][name]:.2%}")
    wrong = [f"{each['kind']} (seed {each['seed']}): {each['text']}" for each in told["violations"]]
    wrong += [f"could not be brought about: {text}" for text in told["not_run"]]
    ends = ", ".join(f"{outcome} {times}" for outcome, times in told["outcomes"].items())
    table.caption = "\n".join(
        [f"outcomes: {ends}; {told['trains']} jobs train on; {conditions.get('took_s')} s", *wrong]
    )
    return table
