"""Whether the policy of the settings is the one by which the workers decide."""

from collections.abc import Sequence
from datetime import datetime

from relight.clients.ledger import LedgerError
from relight.config.settings import Settings
from relight.console.context import now, opened
from relight.console.doctor_checks import Check, fail, ok, warn
from relight.console.errors import Stop
from relight.domain.detectors import WorkerReports, sights_cursor
from relight.domain.policy_rules import version_of

_NAME = "policy"


async def check_policy(settings: Settings) -> Sequence[Check]:
    """The workers that work have this very policy in force."""
    try:
        async with opened(settings) as ledger:
            known = WorkerReports.model_validate(await ledger.cursor(sights_cursor(settings.cluster)) or {})
    except (Stop, LedgerError):
        known = WorkerReports()  # the check of the ledger says so
    return (judge_policy(version_of(settings.policy), known, now()),)


def judge_policy(version: str, known: WorkerReports, at: datetime) -> Check:
    """What the workers have written of their policy, against that of the settings. Pure."""
    living = [each for each in known.workers if each.lives(at) and each.policy]
    if refusing := next((each for each in living if each.policy_problem), None):
        found = f"{refusing.worker} refuses its settings file: {refusing.policy_problem}"
        return fail(_NAME, found, f"Policy {refusing.policy} stays in force until the file is right.")
    if other := next((each for each in living if each.policy != version), None):
        found = f"{version} here, {other.policy} in force at {other.worker}"
        return warn(_NAME, found, "Give doctor the worker's own file and variables; a change counts within seconds.")
    return ok(_NAME, f"{version}, in force" if living else f"{version}; no worker tells which one it has")
