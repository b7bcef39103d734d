"""Fixtures of the activities' tests: a whole site of which only Slurm and the clock are simulated."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from inspect import isawaitable
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from relight.activities import contracts as c
from relight.activities import investigate
from relight.activities.close import Close
from relight.activities.confirm import Confirm
from relight.activities.follow import Follow
from relight.activities.ingest import NodeSight
from relight.activities.investigate import Investigate
from relight.activities.nodes import NodeActs
from relight.activities.restart import Restart
from relight.activities.site import Site
from relight.activities.verify import Verify
from relight.activities.watch import Watch
from relight.attribution.catalogue import load
from relight.attribution.scanner import Scanner
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.domain.attempts import Attempt, AttemptKey, Progress, progress_cursor
from relight.domain.evidence import Detection, Interruption
from relight.domain.incidents import Incident, Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Mode, Plan
from relight.domain.plan import Restart as How
from relight.domain.policy import Policy

MOST_SLEEPS = 3000
AUTO = Policy(mode=Mode.AUTO)


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def on(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class FlakyLedger:
    """A real ledger that can be taken away, as a whole or for entries of some kinds."""

    def __init__(self) -> None:
        self.real = memory_ledger()
        self.down = False
        self.refused: set[RowKind] = set()

    def __getattr__(self, name: str):
        call = getattr(self.real, name)

        async def answer(*args, **kwargs):
            kinds = {entry.kind for entry in args[0].entries} if name == "commit" else set()
            if self.down or kinds & self.refused:
                raise LedgerUnavailableError("the database does not answer")
            return await call(*args, **kwargs)

        return answer


class World:
    """A cluster with its ledger, logs and activities; what waits moves the clock, and what is due then happens."""

    def __init__(self, folder: Path, policy: Policy, **slurm) -> None:
        self.clock = Clock()
        self.folder = folder
        self.slurm = MemorySlurm(self.clock, **slurm)
        self.ledger = FlakyLedger()
        self.sleeps = 0
        self._due: list[tuple[datetime, Callable[[], object]]] = []
        self.site = Site(
            cluster="test",
            slurm=self.slurm,
            nodes=self.slurm,
            ledger=self.ledger,
            logs=LogFiles(),
            kernel_logs=KernelLogFiles(str(folder / "kern-{node}.log")),
            policy=policy,
            clock=self.clock,
            sleep=self._sleep,
            kept=folder / "kept",
        )
        self.watch = Watch(self.site)
        # However busy the machine that runs the tests is.
        self.follow = Follow(self.site, patience=timedelta(seconds=60))
        self.restart = Restart(self.site)
        self.verify = Verify(self.site)
        self.nodes = NodeActs(self.site)
        self.close = Close(self.site)
        self.sights: dict[str, NodeSight] = {}

    @cached_property
    def investigate(self) -> Investigate:
        """Built where it is needed: it compiles all signatures."""
        return Investigate(self.site, self.sights.get)

    @property
    def confirm(self) -> Confirm:
        """Looks again, with what `sights` say of nodes' agents."""
        return Confirm(self.site, self.sights.get)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps += 1
        assert self.sleeps < MOST_SLEEPS, "it waits for ever"
        self.clock.on(seconds)
        for entry in [entry for entry in self._due if entry[0] <= self.clock.now]:
            self._due.remove(entry)
            happened = entry[1]()
            if isawaitable(happened):
                await happened

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Let something happen while an activity waits."""
        self._due.append((self.clock.now + timedelta(seconds=seconds), act))

    async def run(self, call, *args):
        """Run an activity, or a part of one, as Temporal would."""
        return await ActivityEnvironment().run(call, *args)

    async def look(self) -> None:
        """One round of the job watcher."""
        await self.run(self.watch._look_at_jobs)

    async def train(self, **fields) -> Attempt:
        """Submit a job, start it, and let the watcher see it run; a minute passes."""
        job_id = self.slurm.submit(**{"stdout": str(self.folder / "train.out"), **fields})
        assert self.slurm.start(job_id).running
        await self.look()
        self.clock.on(60)
        return await self.attempt(job_id)

    async def failed(self, **fields) -> Attempt:
        """A job that ran and failed, seen by the watcher."""
        attempt = await self.train(**fields)
        self.slurm.fail(attempt.key.job_id)
        await self.look()
        self.clock.on(1)
        return attempt

    async def requeued(self, **fields) -> Attempt:
        """A job that failed and was queued again a while ago."""
        attempt = await self.failed(**fields)
        await self.slurm.requeue(attempt.key.job_id)
        self.clock.on(5)
        self.slurm.writes.clear()
        return attempt

    async def attempt(self, job_id: int) -> Attempt:
        """The newest attempt of a job that the ledger knows."""
        return (await self.ledger.attempts_of_job("test", job_id))[0].attempt

    def record(self, attempt: Attempt):
        """The job as Slurm has it now."""
        return self.slurm.job_records[attempt.key.job_id]

    def change(self, attempt: Attempt, **fields) -> None:
        """Somebody else changes the job's record."""
        self.slurm.job_records[attempt.key.job_id] = self.record(attempt).model_copy(update=fields)

    async def steps(self, key: AttemptKey, step: int, at: datetime | None = None) -> None:
        """Let the follower have seen a step."""
        progress = Progress(last_step=step, last_step_at=at or self.clock.now)
        await self.ledger.commit(Change(cursors={progress_cursor(key): progress.model_dump(mode="json")}))

    async def rows(self, kind: RowKind | None = None):
        """Rows of the audit trail."""
        return await self.ledger.rows(kind=kind)

    @property
    def writes(self) -> list[str]:
        """What was to change something in Slurm, in order."""
        return [call.method for call in self.slurm.writes]


def _ref(attempt: Attempt, kind: Interruption = Interruption.CRASH, *, name: str = "i1") -> c.IncidentRef:
    key = attempt.key
    return c.IncidentRef(id=name, workflow_id=key.workflow_id, run_id=f"run-{name}", attempt=key, kind=kind)


def _detection(attempt: Attempt, at: datetime, kind: Interruption = Interruption.CRASH, **fields) -> Detection:
    given = {"id": f"{attempt.key}/{kind}", "attempt": attempt.key, "kind": kind, "detected_at": at}
    return Detection(**{**given, **fields})


@pytest.fixture(scope="session")
def scanner():
    """The shipped signatures, compiled once for all tests."""
    return Scanner(load())


@pytest.fixture
def make_world(tmp_path, monkeypatch, scanner):
    """Makes a site; options are those of `MemorySlurm`, and `policy`."""
    made = []
    monkeypatch.setattr(investigate, "Scanner", lambda _catalogue: scanner)

    def make(*, policy=AUTO, **slurm) -> World:
        made.append(World(tmp_path, policy, **slurm))
        return made[-1]

    yield make
    for world in made:
        world.ledger.real.close()


@pytest.fixture
def world(make_world):
    """A site in mode auto with four nodes, whose epilogs take no time."""
    return make_world()


@pytest.fixture(scope="session")
def ref():
    """Names an incident of an attempt."""
    return _ref


@pytest.fixture(scope="session")
def detection():
    """Makes a detection about an attempt."""
    return _detection


@pytest.fixture
def act(world):
    """What an acting activity is given: an incident, its detection, a plan to requeue."""

    def make(attempt: Attempt, kind: Interruption = Interruption.CRASH, **plan) -> c.ActInput:
        given = {"attempt": attempt.key, "restart": How.REQUEUE, "reason": "why"}
        found = _detection(attempt, world.clock.now, kind)
        return c.ActInput(incident=_ref(attempt, kind), plan=Plan(**{**given, **plan}), detection=found)

    return make


@pytest.fixture(scope="session")
def incident():
    """Makes an incident as the ledger keeps it, open where not said."""

    def make(ref: c.IncidentRef, attempt: Attempt, at: datetime, **fields) -> Incident:
        given = {
            "id": ref.id,
            "workflow_id": ref.workflow_id,
            "run_id": ref.run_id,
            "attempt": ref.attempt,
            "lineage": attempt.lineage,
            "kind": ref.kind,
            "phase": Phase.CONFIRMING,
            "mode": Mode.AUTO,
            "opened_at": at,
            "detected_at": at,
        }
        return Incident(**{**given, **fields})

    return make
