"""What is told of time and its loss, put together: of a job, a partition, an account or the whole cluster. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.goodput import Account, Run, of_job, total
from relight.domain.goodput_costs import CauseCost, Cost, by_cause, costs
from relight.domain.goodput_interval import Interval, interval
from relight.domain.goodput_runs import clipped, in_order, told
from relight.domain.incidents import Incident

MOST_JOBS = 500
"""Jobs, and interruptions, that a report names; the sums hold all of them."""
PriceOf = Callable[[str], float | None]
"""What a GPU hour costs in a partition; None: not known."""


class JobFacts(Value):
    """Whose attempts are counted together: one job, whatever Slurm job ids it has had."""

    lineage: str
    job: str
    """Its newest Slurm job id, as Slurm's commands print it."""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""


class AttemptAccount(Value):
    """One attempt of a job."""

    attempt: AttemptKey
    number: int
    """From 1, in the order of their starts."""
    started_at: datetime
    ended_at: datetime
    """Now, while it runs."""
    running: bool
    ended_badly: bool
    completed: bool
    nodes: int
    gpus: int
    first_step: int | None
    last_step: int | None
    read: bool
    account: Account


class JobAccount(Value):
    """One job."""

    facts: JobFacts
    running: bool
    total: Account
    attempts: tuple[AttemptAccount, ...]
    interruptions: tuple[Cost, ...]
    interval: Interval | None
    price: float | None
    """Of a GPU hour."""


class Group(Value):
    """Jobs counted together."""

    name: str
    jobs: int
    total: Account
    money_lost: float | None
    """None: no price is known, or no GPUs."""


class Report(Value):
    """Where the time went."""

    scope: str
    """`job 4711`, `partition h100`, `account llm`, `cluster main`."""
    cluster: str
    since: datetime | None
    """None: from the first attempt on."""
    until: datetime
    total: Account
    jobs: tuple[JobAccount, ...]
    """Those that lost most first, at most `MOST_JOBS`; of a single job with its attempts."""
    jobs_in_all: int
    partitions: tuple[Group, ...]
    causes: tuple[CauseCost, ...]
    interruptions: tuple[Cost, ...]
    """The dearest first, at most `MOST_JOBS`."""
    interruptions_in_all: int
    currency: str
    money_lost: float | None
    notes: tuple[str, ...]
    """What is not known, or left out, and why."""


def job_account(
    facts: JobFacts,
    runs: Sequence[Run],
    incidents: Mapping[AttemptKey, Incident],
    price: float | None,
    since: datetime | None,
) -> JobAccount | None:
    """One job, as far as it ran since then; None where it did not.

    Args:
        facts: which.
        runs: its attempts.
        incidents: about their ends (`decisive`).
        price: of a GPU hour in its partition.
        since: None: from the first attempt on.
    """
    kept = runs if since is None else [part for run in runs if (part := clipped(run, since))]
    runs = in_order(kept)
    if not runs:
        return None
    accounts = of_job(runs, told(runs, incidents))
    summed = total(accounts)
    attempts = tuple(
        _attempt(number, run, each) for number, (run, each) in enumerate(zip(runs, accounts, strict=True), 1)
    )
    return JobAccount(
        facts=facts,
        running=any(run.running for run in runs),
        total=summed,
        attempts=attempts,
        interruptions=tuple(cost.model_copy(update={"price": price}) for cost in costs(runs, accounts, incidents)),
        interval=interval(summed),
        price=price,
    )


def _attempt(number: int, run: Run, account: Account) -> AttemptAccount:
    names = set(AttemptAccount.model_fields) - {"number", "account"}
    return AttemptAccount(number=number, account=account, **{name: getattr(run, name) for name in names})


def groups(jobs: Iterable[JobAccount], of: Callable[[JobFacts], str]) -> tuple[Group, ...]:
    """The jobs by what `of` tells of each, those that lost most first."""
    found: dict[str, list[JobAccount]] = {}
    for job in jobs:
        found.setdefault(of(job.facts), []).append(job)
    made = [
        Group(name=name, jobs=len(group), total=total(job.total for job in group), money_lost=money_lost(group))
        for name, group in found.items()
    ]
    return tuple(sorted(made, key=lambda group: (*_dearness(group.total), group.name)))


def money_lost(jobs: Iterable[JobAccount]) -> float | None:
    """What the GPU hours lost were worth, where prices are known; None: nowhere."""
    known = [job.price * job.total.gpu_hours_lost for job in jobs if job.price is not None and job.total.gpu_hours]
    return sum(known) if known else None


def report(
    scope: str,
    cluster: str,
    jobs: Sequence[JobAccount],
    *,
    since: datetime | None,
    until: datetime,
    currency: str,
    notes: Sequence[str] = (),
) -> Report:
    """All of it together. Attempts are told of a single job only."""
    found = sorted((cost for job in jobs for cost in job.interruptions), key=lambda c: (-c.gpu_hours, -c.time))
    dearest = sorted(jobs, key=lambda job: (*_dearness(job.total), job.facts.job))[:MOST_JOBS]
    if len(jobs) > 1:
        dearest = [job.model_copy(update={"attempts": (), "interruptions": ()}) for job in dearest]
    return Report(
        scope=scope,
        cluster=cluster,
        since=since,
        until=until,
        total=total(job.total for job in jobs),
        jobs=tuple(dearest),
        jobs_in_all=len(jobs),
        partitions=groups(jobs, lambda facts: facts.partition),
        causes=by_cause(found),
        interruptions=tuple(found[:MOST_JOBS]),
        interruptions_in_all=len(found),
        currency=currency,
        money_lost=money_lost(jobs),
        notes=tuple(notes),
    )


def _dearness(account: Account) -> tuple[float, float, float]:
    return -account.gpu_hours_lost, -account.node_hours_lost, -account.elapsed.total_seconds()
