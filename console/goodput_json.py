"""Accounts of time for other programs: docs/goodput.md has the fields. Times in seconds; keys are only ever added."""

from typing import Any

from relight.domain.goodput import Account
from relight.domain.goodput_costs import CauseCost, Cost
from relight.domain.goodput_interval import Interval
from relight.domain.goodput_report import AttemptAccount, Group, JobAccount, Report


def as_json(told: Report) -> dict[str, Any]:
    """The report for other programs."""
    alone = told.jobs[0] if told.jobs_in_all == 1 and told.jobs else None
    return {
        "scope": told.scope,
        "cluster": told.cluster,
        "since": told.since.isoformat() if told.since else None,
        "until": told.until.isoformat(),
        "total": account_as_json(told.total),
        "currency": told.currency,
        "money_lost": told.money_lost,
        "jobs": [_job_as_json(job) for job in told.jobs],
        "jobs_in_all": told.jobs_in_all,
        "attempts": [_attempt_as_json(attempt) for attempt in alone.attempts] if alone else [],
        "partitions": [_group_as_json(group) for group in told.partitions],
        "causes": [_cause_as_json(cause) for cause in told.causes],
        "interruptions": [_cost_as_json(cost) for cost in told.interruptions],
        "interruptions_in_all": told.interruptions_in_all,
        "notes": list(told.notes),
    }


def account_as_json(account: Account) -> dict[str, Any]:
    """Where time went."""
    ran = account.elapsed.total_seconds()
    return {
        "attempts": account.runs,
        "interruptions": account.interruptions,
        "elapsed_seconds": ran,
        "queued_seconds": account.queued.total_seconds(),
        "productive_seconds": account.productive.total_seconds(),
        "lost_seconds": {str(kind): time.total_seconds() for kind, time in account.lost.items()},
        "disruption_seconds": {str(part): time.total_seconds() for part, time in account.parts.items()},
        "goodput": list(account.goodput) if account.goodput else None,
        "ettr": list(account.ettr) if account.ettr else None,
        "explained": account.explained,
        "gpu_hours": account.gpu_hours or None,
        "gpu_hours_lost": account.gpu_hours_lost if account.gpu_hours else None,
        "node_hours": account.node_hours,
        "node_hours_lost": account.node_hours_lost,
        "steps_redone": account.steps_redone,
        "saves": account.saves,
    }


def _job_as_json(job: JobAccount) -> dict[str, Any]:
    lost = job.price * job.total.gpu_hours_lost if job.price is not None and job.total.gpu_hours else None
    return {
        **job.facts.model_dump(),
        "running": job.running,
        "money_lost": lost,
        "interval": _interval_as_json(job.interval),
        **account_as_json(job.total),
    }


def _attempt_as_json(attempt: AttemptAccount) -> dict[str, Any]:
    plain = attempt.model_dump(mode="json", exclude={"account", "attempt"})
    return {"attempt": str(attempt.attempt), **plain, **account_as_json(attempt.account)}


def _group_as_json(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "jobs": group.jobs,
        "money_lost": group.money_lost,
        **account_as_json(group.total),
    }


def _cause_as_json(cause: CauseCost) -> dict[str, Any]:
    plain = cause.model_dump(mode="json", exclude={"time"})
    return {**plain, "seconds": cause.time.total_seconds()}


def _cost_as_json(cost: Cost) -> dict[str, Any]:
    return {
        "attempt": str(cost.attempt),
        "at": cost.at.isoformat(),
        "incident": cost.incident or None,
        "cause": cost.cause,
        "category": cost.category or None,
        "outcome": cost.outcome or None,
        "seconds": cost.time.total_seconds(),
        "parts_seconds": {part: time.total_seconds() for part, time in cost.parts.items()},
        "unknown": list(cost.unknown),
        "ongoing": cost.ongoing,
        "gpu_hours": cost.gpu_hours if cost.gpus else None,
        "node_hours": cost.node_hours,
        "money": cost.money,
    }


def _interval_as_json(found: Interval | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "interruptions": found.interruptions,
        "save_cost_seconds": found.save_cost.total_seconds(),
        "mean_time_between_seconds": found.mean_time_between.total_seconds(),
        "mean_time_between_95": [each.total_seconds() for each in found.between],
        "now_seconds": found.now.total_seconds(),
        "best_seconds": found.best.total_seconds(),
        "best_95": [each.total_seconds() for each in found.best_range],
        "saved_share": found.saved_share,
        "saved_share_95": list(found.saved_range),
    }
