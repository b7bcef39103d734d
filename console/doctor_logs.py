"""The check of a log store: it answers us, and has the lines of jobs that run."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from relight.clients.log_files import LogFiles
from relight.clients.logs import Cursor, LogError, LogNotFoundError, Logs
from relight.clients.logs_store import naming, open_logs
from relight.clients.slurm import Slurm, SlurmError
from relight.config.log_store import LogStoreSettings
from relight.config.settings import LOOPBACK, ConfigError, Settings
from relight.console.doctor_checks import Check, brief, fail, ok, warn
from relight.console.text import count
from relight.domain.base import clip
from relight.domain.log_labels import JOB_FIELDS, reference
from relight.domain.slurm import JobRecord

NAME = "log store"
LOOKED_AT = 5
AHEAD_S = 60.0
"""A newest line stamped so far in the future tells of clocks that differ."""


async def check_log_store(settings: Settings, slurm: Slurm) -> Sequence[Check]:
    """It answers, as this tenant and with this secret, and has lines of a few jobs that run."""
    store = settings.logs.store
    try:
        async with open_logs(store, LogFiles()) as logs:
            return (await _store(settings, slurm, logs), *_in_the_clear(store))
    except ConfigError as error:
        return (fail(NAME, str(error), "The worker does not start with this."),)


async def _store(settings: Settings, slurm: Slurm, logs: Logs) -> Check:
    store = settings.logs.store
    named, whose = naming(store, settings.cluster), _whose(store)
    try:
        # A log that nobody has: an answer of nothing is an answer.
        await logs.ahead(reference(None, path="/relight/doctor", **dict.fromkeys(JOB_FIELDS, "0")), Cursor())
    except LogError as error:
        return fail(NAME, clip(str(error), 300), "Without it there is no progress, no hang and no cause of any job.")
    try:
        partitions = settings.policy.partitions
        jobs = [job for job in await slurm.jobs() if job.running and (not partitions or job.partition in partitions)]
    except SlurmError as error:
        return warn(NAME, f"{whose} answers; Slurm does not say what runs: {brief(error)}", "See the check of Slurm.")
    wanted = [(job, name) for job in jobs for name in named(job)[:1]][:LOOKED_AT]
    if not wanted:
        found = f"{whose} answers; no job is running: nothing to look for in it"
        return warn(NAME, found, "Run doctor again while jobs run: a wrong tenant or label looks like an empty log.")
    return _judged(whose, store, wanted, await asyncio.gather(*(_newest(logs, name) for _, name in wanted)))


def _judged(
    whose: str,
    store: LogStoreSettings,
    wanted: Sequence[tuple[JobRecord, str]],
    seen: Sequence[datetime | LogError],
) -> Check:
    stamps = [each for each in seen if isinstance(each, datetime)]
    lost = [error for error in seen if isinstance(error, LogError)]
    found = f"{whose} has lines of {len(stamps)} of {count(len(seen), 'running job')}"
    if not stamps:
        wrong = f"tenant ({store.tenant or 'none named'}) or labels ({ {**store.labels, **store.fields} }) are wrong"
        advice = f"It answers, so {wrong}, or these outputs are not shipped there: {clip(str(lost[0]), 300)}"
        return fail(NAME, found, advice)
    late = (datetime.now(UTC) - max(stamps)).total_seconds()
    if late < -AHEAD_S:
        return warn(NAME, f"{found}, the newest stamped {-late:.0f} s from now", "Clocks differ: see to NTP.")
    found += f"; the newest is {max(late, 0):.0f} s old"
    if lost:
        job = next(job for (job, _), each in zip(wanted, seen, strict=True) if isinstance(each, LogError))
        return warn(NAME, found, f"Job {job.display_id} may not have printed yet. {clip(str(lost[0]), 300)}")
    return ok(NAME, found)


async def _newest(logs: Logs, name: str) -> datetime | LogError:
    """The stamp of a log's newest line."""
    try:
        chunk = await logs.read_new(name, None)
    except LogError as error:
        return error
    return datetime.fromtimestamp((chunk.cursor.offset - 1) / 1e9, UTC) if chunk.lines else LogNotFoundError(name)


def _whose(store: LogStoreSettings) -> str:
    return f"{store.kind} at {store.url}" + (f", tenant {store.tenant}," if store.tenant else "")


def _in_the_clear(store: LogStoreSettings) -> Sequence[Check]:
    url = urlsplit(store.url)
    if url.scheme == "https" or not store.token_file or url.hostname in LOOPBACK:
        return ()
    found = f"the secret in {store.token_file} travels unencrypted to {url.hostname}"
    return (warn(NAME, found, "Use https in logs.store.url, where the store or a proxy before it has a certificate."),)
