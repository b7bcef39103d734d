"""`relight lab chaos`: interruptions of real jobs, and everything that can break while they are recovered.

Real Slurm with accounting, a real Temporal server, the controller worker that ships, node agents, and the ledger in
PostgreSQL. Many trials run at once, so that a part that there is one of breaks for all of them. What became of it is
judged by Slurm's own record (`chaos_check`), once all is over.
"""

import asyncio
import pwd
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from relight.clients.ledger import LedgerError
from relight.clients.ledger_audit import LedgerAudit
from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import load
from relight.domain.ledger import Row
from relight.lab.chaos_check import Case, Kind, Truth, Violation, check, story
from relight.lab.chaos_draw import draw
from relight.lab.chaos_nodes import tend
from relight.lab.chaos_parts import NotMendedError, Parts
from relight.lab.chaos_record import SACCT, SACCT_FIELDS, read_accounting, read_log
from relight.lab.chaos_seen import SeenRows
from relight.lab.chaos_stack import ChaosStack
from relight.lab.chaos_trial import BROKEN, NODES_OF_JOB, SETTLES_WITHIN_S, TOO_LATE, NotRunError, Scene, Trial, play
from relight.lab.users import USERS

POLICY: dict[str, Any] = {
    "drains_per_hour": 100,
    "drain_share": "100%",
    "most_unavailable": "100%",
    "drains_per_domain": 100,
    "cool_down": "1s",
    "breaker": {"nodes": 1000, "jobs": 1000, "failed_restarts": 100, "reversals": 100},
    "hang": {"unlearned": "45s"},
    "approval_expires": "20s",
}
"""Many jobs fail at once here, and each GPU fault is to be drained: what limits that on a site, and rightly, would end
the trials. A hang that no rhythm was learnt for, as the worker was down, is found within a minute in place of ten."""
AGENTS = 6
SPARE_NODES = 4
AFTERWARDS_S = 8.0
"""So long it is watched after the last trial: what comes late counts as well."""
THREADS = 64
PAGE = 1000


class Order(BaseModel):
    """What to try."""

    model_config = ConfigDict(frozen=True)

    trials: int = Field(default=200, ge=1)
    seed: int = Field(default=1, ge=0)
    """Of the first trial; each next one has the next. A trial alone is played again by its own."""
    at_once: int = Field(default=8, ge=1, le=24)
    postgres: bool = True
    """The ledger in PostgreSQL; else in SQLite."""
    keep: bool = False
    """Leave the folder with all logs."""

    @property
    def nodes(self) -> int:
        """Enough for all jobs, their retries beside drained nodes, and some that are down."""
        return min(self.at_once, self.trials) * (NODES_OF_JOB + 1) + SPARE_NODES


class Played:
    """What is known so far; an interruption leaves it as it is."""

    def __init__(self) -> None:
        """Nothing has been played."""
        self.trials: list[Trial] = []
        self.not_run: list[str] = []
        self.violations: list[Violation] = []
        self.stories: dict[int, list[str]] = {}
        """By trial, of those with violations."""
        self.interrupted = False
        self.failed = ""
        self.facts: dict[str, Any] = {}


def run(order: Order, say: Callable[[str], None]) -> Played:
    """Play all trials, and judge them. Ctrl-C ends it with those there are."""
    played = Played()
    began = time.monotonic()
    with _stack(order, say) as stack:
        try:
            asyncio.run(_play_all(stack, order, played, say))
        except KeyboardInterrupt:
            played.interrupted = True
            say("interrupted: what was played so far is judged")
        except (NotMendedError, ExceptionGroup) as error:
            played.failed = repr(error)
            say(f"ended early: {error!r}")
        try:
            asyncio.run(_judge(stack, played))
        except (*BROKEN, LedgerError, NotMendedError) as error:
            # What was left broken when it was interrupted may be what the judgement needs.
            played.failed = f"{played.failed} could not be judged: {error}".strip()
            say(played.failed)
    played.facts |= {"took_s": round(time.monotonic() - began, 1), "folder": str(stack.folder) if order.keep else ""}
    return played


@contextmanager
def _stack(order: Order, say: Callable[[str], None]) -> Iterator[ChaosStack]:
    folder = Path(tempfile.mkdtemp(prefix="relight-chaos-", dir="/tmp"))
    folder.chmod(0o755)
    stack = ChaosStack(folder, nodes=order.nodes, agents_on=AGENTS, postgres=order.postgres, policy=POLICY)
    try:
        stack.start(say)
        stack.start_agents()
        say(stack.without_agents or f"node agents on {len(stack.agents)} of {order.nodes} nodes")
        yield stack
    finally:
        stack.stop()
        if not order.keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _play_all(stack: ChaosStack, order: Order, played: Played, say: Callable[[str], None]) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    with _ledger(stack) as ledger:
        seen, parts = SeenRows(ledger), Parts(stack)
        scene = Scene(stack, seen, parts, {}, set())
        played.facts["parts"] = parts
        async with asyncio.TaskGroup() as group:
            around = [
                group.create_task(work)
                for work in (seen.follow(), parts.supervise(), tend(stack, scene.held, scene.done))
            ]
            numbers = iter(range(order.trials))
            slots = (group.create_task(_slot(scene, order, numbers, played, say)) for _ in range(order.at_once))
            await asyncio.gather(*slots)
            await asyncio.sleep(AFTERWARDS_S)
            for task in around:
                task.cancel()


async def _slot(scene: Scene, order: Order, numbers: Iterator[int], played: Played, say: Callable[[str], None]) -> None:
    """One trial after the other; one that could not be brought about gets a second chance."""
    for number in numbers:
        script = draw(order.seed + number)
        for chance in (1, 2):
            try:
                trial = await play(scene, number * 2 + chance, script)
            except NotRunError as error:
                played.not_run.append(f"seed {script.seed}: {error}")
                say(f"seed {script.seed}: could not be brought about: {error}")
                continue
            played.trials.append(trial)
            say(_told(trial, len(played.trials), order.trials))
            break


def _told(trial: Trial, number: int, of: int) -> str:
    how = ", ".join(trial.outcomes) or "NO OUTCOME"
    trains = "trains" if trial.trains else "does not train" if trial.settled else "NOT SETTLED"
    late = f" ({TOO_LATE})" if trial.struck_after == TOO_LATE else ""
    return f"{number}/{of} seed {trial.script.seed}: {trial.script}{late}: {how}, {trains}; {trial.seconds:.0f} s"


def _findings(stack: ChaosStack) -> list[str]:
    """What the audit of the ledger finds: its chain, and whether each thing done might be done."""
    settings = load(stack.config, environment={})
    audit = LedgerAudit.open(settings.ledger_url, settings.ledger_key)
    try:
        report = audit.verify(cluster=settings.cluster)
    finally:
        audit.close()
    return [f"row {each.seq}: {each.rule}: {each.found}, where {each.expected} was due" for each in report.findings]


async def _judge(stack: ChaosStack, played: Played) -> None:
    """Compare Slurm's record with the ledger."""
    parts: Parts | None = played.facts.pop("parts", None)
    if parts is None:
        return
    cluster = stack.cluster
    await parts.start_database()
    with _ledger(stack) as ledger:
        rows = await _all_rows(ledger)
    accounting = cluster.run(*SACCT, SACCT_FIELDS, "--starttime=now-2days", timeout_s=120)
    broken: defaultdict[str, list[datetime]] = defaultdict(list)
    for node, at in parts.broken:
        broken[node].append(at)
    with (cluster.folder / "log/slurmctld.log").open(errors="replace") as log:
        deeds = read_log(log)
    truth = Truth(
        cases=[Case(trial.script.seed, trial.job, trial.interrupted, trial.until) for trial in played.trials],
        broken=broken,
        crashes=parts.crashes,
        ours=pwd.getpwnam(USERS.service).pw_uid,
        deeds=deeds,
        executions=read_accounting(accounting.stdout),
        rows=rows,
        findings=_findings(stack),
    )
    played.violations = check(truth) + [
        Violation(Kind.LOST, trial.script.seed, f"job {trial.job} did not come to rest within {SETTLES_WITHIN_S:g} s")
        for trial in played.trials
        if not trial.settled
    ]
    played.stories = {each.trial: story(truth, each.trial) for each in played.violations if each.trial is not None}
    played.facts |= {
        "slurm": cluster.status().slurm_version,
        "agents": len(stack.agents),
        "without_agents": stack.without_agents,
        "slurmctld_crashes": len(parts.crashes),
        "worker_ended_by_itself": parts.ended_by_itself,
        "ledger_rows": len(rows),
        "deeds": dict(Counter(str(deed.what) for deed in deeds)),
    }


async def _all_rows(ledger: SqlLedger) -> list[Row]:
    rows: list[Row] = []
    while page := await ledger.rows(after=rows[-1].seq if rows else 0, limit=PAGE):
        rows += page
    return rows


@contextmanager
def _ledger(stack: ChaosStack) -> Iterator[SqlLedger]:
    settings = load(stack.config, environment={})
    ledger = SqlLedger.open(settings.ledger_url, settings.ledger_key)
    try:
        yield ledger
    finally:
        ledger.close()
