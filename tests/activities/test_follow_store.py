# ruff: noqa: ASYNC240  the copies under test are small and local
"""Outputs in a log store (stand-ins for VictoriaLogs and Loki) are followed, diagnosed and kept as files are.

And what a store cannot say is said, not taken for a job's silence.
"""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from relight.activities import contracts as c
from relight.activities.follow import Follow
from relight.clients.log_files import LogFiles
from relight.clients.logs_store import naming, open_logs
from relight.config.log_store import LogStoreSettings
from relight.domain.detectors import unread_outputs
from relight.domain.evidence import Interruption
from relight.domain.ledger import RowKind
from relight.domain.policy import Policy
from relight.domain.progress import HangPolicy
from tests.clients.fake_log_servers import LogServer, log_server, says

TENANTS = {"victorialogs": "3:7", "loki": "team"}
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Shipped:
    """A world whose jobs' outputs are shipped to a store."""

    def __init__(self, world, server: LogServer, kind: str) -> None:
        self.world, self.server, self.kind = world, server, kind
        self.tenant = TENANTS[kind]
        self.path = str(world.folder / "train.out")
        self.followed: dict = {}

    def settings(self, **fields) -> LogStoreSettings:
        given = {"kind": self.kind, "url": self.server.url, "tenant": self.tenant, "labels": {"filename": "{path}"}}
        return LogStoreSettings(**{**given, **fields})

    def add(self, *lines: str, ago: float = 0.0, **labels: str) -> None:
        """Lines that the shipper stamps now, or some seconds ago."""
        at = round((self.world.clock.now.timestamp() - ago) * 1e9)
        labels = labels or {"filename": self.path}
        self.server.add(*((at + n, line) for n, line in enumerate(lines)), tenant=self.tenant, **labels)

    def steps(self, *steps: int, **given) -> None:
        self.add(*(f"step {step}/1000 | loss 0.5 | step_time 1.0 s" for step in steps), **given)

    async def rounds(self, count: int, *, step: int | None = None) -> None:
        """So many rounds of the follower, a second apart; with `step`, a step becomes visible in each."""
        for _ in range(count):
            if step is not None:
                step += 1
                self.steps(step)
            await self.world.run(self.world.follow._round, self.followed)
            self.world.clock.on(1)

    async def progress(self, attempt):
        """As the follower has it; the ledger is told in turn."""
        return self.followed[attempt.key].progress

    async def hangs(self):
        return [d for d in await self.world.ledger.undelivered() if d.kind is Interruption.HANG]

    async def diagnosis(self, attempt, ref, detection):
        arg = c.DiagnoseInput(incident=ref(attempt), detection=detection(attempt, self.world.clock.now))
        await self.world.run(self.world.confirm.confirm, c.ConfirmInput(incident=arg.incident, detection=arg.detection))
        return await self.world.run(self.world.investigate.diagnose, arg)

    async def blind(self) -> list[str]:
        return [row.body["why"] for row in await self.world.rows(RowKind.BLIND)]


@pytest.fixture
async def server():
    async with log_server() as server:
        yield server


@pytest.fixture(params=["victorialogs", "loki"])
async def reads(request, make_world, server):
    """Opens a world that reads a store by these settings."""
    opened = []

    async def make(**settings) -> Shipped:
        minute = timedelta(minutes=1)
        world = make_world(
            policy=Policy(hang=HangPolicy(floor=timedelta(seconds=30), unlearned=minute, startup=minute))
        )
        shipped = Shipped(world, server, request.param)
        settings = shipped.settings(**settings)
        source = open_logs(settings, LogFiles())
        logs = await source.__aenter__()
        opened.append(source)
        logs._store._now = world.clock
        object.__setattr__(world.site, "logs", logs)
        object.__setattr__(world.site, "named", naming(settings, "test"))
        world.follow = Follow(world.site, patience=timedelta(seconds=60))
        return shipped

    yield make
    for source in opened:
        await source.__aexit__(None, None, None)


@pytest.fixture
async def shipped(reads):
    return await reads()


async def test_steps_are_followed(shipped):
    """As they become visible, each once, late ones too; a progress file that the job names is a file all the same."""
    folder = shipped.world.folder
    comment = json.dumps({"relight": {"progress": "progress.jsonl"}})
    attempt = await shipped.world.train(work_dir=str(folder), comment=comment)
    await shipped.rounds(1)
    shipped.steps(1, 2)
    await shipped.rounds(1)
    assert (await shipped.progress(attempt)).last_step == 2
    shipped.steps(3, ago=4)
    await shipped.rounds(1)
    found = await shipped.progress(attempt)
    assert (found.last_step, list(found.files)) == (3, [attempt.outputs[0]])
    await shipped.rounds(2)
    assert await shipped.progress(attempt) == found
    (folder / "progress.jsonl").write_text('{"step": 7}\n')
    await shipped.rounds(1)
    assert (await shipped.progress(attempt)).last_step == 7
    assert await shipped.blind() == []


async def test_a_new_follower_goes_on_where_the_last_stood(shipped):
    """The store's cursor outlives the worker."""
    attempt = await shipped.world.train()
    shipped.steps(1, 2)
    await shipped.rounds(1)
    seen = await shipped.progress(attempt)
    shipped.followed.clear()
    await shipped.rounds(1)
    assert await shipped.progress(attempt) == seen


async def test_other_jobs_lines_under_the_same_labels_are_not_read(shipped):
    """A store empties no file: what an earlier job, or attempt, wrote to this path lies before this one's start."""
    world = shipped.world
    shipped.steps(901, 902)
    shipped.add(ECC)
    world.clock.on(60)
    attempt = await world.train()
    shipped.steps(*range(1, 11))
    await shipped.rounds(2)
    assert (await shipped.progress(attempt)).last_step == 10
    await world.slurm.requeue(attempt.key.job_id)
    await world.look()
    world.clock.on(125)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    assert again.outputs != attempt.outputs
    await shipped.rounds(1)
    assert (await shipped.progress(again)).last_step is None
    shipped.steps(5)
    await shipped.rounds(1)
    assert (await shipped.progress(again)).last_step == 5


@pytest.mark.parametrize(("fatal", "after"), [(False, 31), (True, 21)])
async def test_a_job_that_falls_silent_hangs_once(shipped, fatal, after):
    """By the same limits as with files: sooner where a line says that it is lost."""
    await shipped.world.train()
    await shipped.rounds(25, step=0)
    if fatal:
        shipped.add(ECC)
    await shipped.rounds(after - 2)
    assert await shipped.hangs() == []
    await shipped.rounds(30)
    (found,) = await shipped.hangs()
    assert found.detected_at - found.occurred_at <= timedelta(seconds=after)
    assert any("ECC" in evidence.text for evidence in found.evidence) == fatal


async def test_logs_by_job_id(reads):
    """Where the shipper tells the job instead of the path, both outputs are one log."""
    shipped = await reads(labels={"job": "{job_id}", "cluster": "main"})
    attempt = await shipped.world.train(stderr="/elsewhere/train.err")
    assert len(attempt.outputs) == 1
    shipped.add("step 4/10 | loss 0.5", job=str(attempt.key.job_id), cluster="main")
    shipped.add("step 9/10 | loss 0.5", job="999", cluster="main")
    await shipped.rounds(2)
    assert (await shipped.progress(attempt)).last_step == 4


# --- an empty or unreadable store is not silence ---


async def test_a_log_that_was_never_there_is_no_silence(shipped):
    """A job known to step, in a wrong tenant since its start: no hang; minutes later that is said, once."""
    world = shipped.world
    attempt = await world.train()
    await shipped.rounds(3, step=0)
    await world.slurm.requeue(attempt.key.job_id)
    await world.look()
    await shipped.rounds(1)
    kept = shipped.server.kept.pop(shipped.tenant)
    world.clock.on(125)
    await world.look()
    await shipped.rounds(100)
    world.clock.on(190)
    await shipped.rounds(3)
    assert await shipped.blind() == []
    world.clock.on(10)
    await shipped.rounds(3)
    (why,) = await shipped.blind()
    assert "has no line of" in why
    assert "when its job began" in why
    assert await shipped.hangs() == []
    shipped.server.kept[shipped.tenant] = kept
    shipped.steps(5)
    await shipped.rounds(1)
    assert not any(each.blind for each in shipped.followed.values())


async def test_an_output_without_a_line_is_empty(shipped, ref, detection):
    """Where the job's other output has lines: nothing is blind, a hang is found, and the diagnosis knows."""
    world = shipped.world
    attempt = await world.train(stderr=str(world.folder / "train.err"))
    world.clock.on(300)
    await shipped.rounds(25, step=0)
    await shipped.rounds(40)
    assert await shipped.blind() == []
    assert len(await shipped.hangs()) == 1
    found = await shipped.diagnosis(attempt, ref, detection)
    assert unread_outputs(attempt, found.unreadable) == ()
    shipped.server.kept.clear()
    found = await shipped.diagnosis(attempt, ref, detection)
    assert len(unread_outputs(attempt, found.unreadable)) == 2


async def test_a_log_that_is_gone_is_no_silence(shipped):
    """An empty answer where lines were read before (another tenant): blindness, and no hang, until they are back."""
    await shipped.world.train()
    await shipped.rounds(20, step=0)
    kept = shipped.server.kept.pop(shipped.tenant)
    await shipped.rounds(90)
    (why,) = await shipped.blind()
    assert "no longer has the lines" in why
    assert await shipped.hangs() == []
    shipped.server.kept[shipped.tenant] = kept
    await shipped.rounds(60)
    assert len(await shipped.hangs()) == 1


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ([says(401, "token expired")] * 60, "renew it"),
        ([says(403, "no")] * 60, "check the tenant"),
        ([says(429, "slow down", Retry_After="40")], "limits our rate"),
        ([says(500, "boom")] * 60, "cannot answer"),
    ],
)
async def test_a_store_that_refuses_is_no_silence(shipped, faults, said, monkeypatch):
    """Said once, in one line; afterwards no line is missing, none comes twice, and silence counts again."""
    world = shipped.world
    monkeypatch.setattr(world.site.logs._store._store, "_monotonic", lambda: world.clock().timestamp())
    attempt = await world.train()
    await shipped.rounds(20, step=0)
    shipped.server.faults += faults
    await shipped.rounds(40)
    (why,) = await shipped.blind()
    assert said in why
    assert "\n" not in why
    assert await shipped.hangs() == []
    shipped.server.faults.clear()
    shipped.steps(21, ago=15)
    shipped.steps(22)
    await shipped.rounds(5)
    assert (await shipped.progress(attempt)).last_step == 22
    await shipped.rounds(60)
    assert len(await shipped.hangs()) == 1


# --- at the end ---


async def test_diagnosis_reads_the_store(shipped, ref, detection):
    """The cause stands in lines of this attempt alone."""
    world = shipped.world
    shipped.add("ModuleNotFoundError: No module named 'flash_attn'")
    world.clock.on(10)
    attempt = await world.train()
    shipped.steps(1, 2)
    shipped.add("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", ago=-1)
    await shipped.rounds(1)
    world.slurm.fail(attempt.key.job_id)
    await world.look()
    world.clock.on(5)
    found = await shipped.diagnosis(attempt, ref, detection)
    assert found.verdict.signature == "CUDA_OOM"
    assert found.verdict.evidence[0].file == "train.out"
    assert unread_outputs(attempt, found.unreadable) == ()
    shipped.server.faults.append(says(500))
    found = await shipped.diagnosis(attempt, ref, detection)
    (blind,) = unread_outputs(attempt, found.unreadable)
    assert "status 500" in blind.text


async def test_outputs_are_kept(shipped, act):
    """A copy of the attempt's own lines, or why there is none."""
    world = shipped.world
    shipped.add("an earlier job")
    world.clock.on(10)
    attempt = await world.failed()
    shipped.add("first", "last")
    await world.run(world.restart.keep_outputs, act(attempt))
    shipped.server.faults.append(says(503))
    done = await world.run(world.restart.keep_outputs, act(attempt, Interruption.HANG))
    rows = await world.rows(RowKind.OUTPUTS_KEPT)
    (copy,) = rows[0].body["kept"]
    assert Path(copy).read_text() == "first\nlast\n"
    assert Path(copy).name.startswith("train.out.")
    assert "status 503" in done.text


async def test_many_jobs_are_few_questions(reads):
    """A round asks for all running jobs' logs together, as far as the follower reads them at once."""
    shipped = await reads(labels={"job": "{job_id}"})
    world = shipped.world
    attempts = [await world.train(nodes=1) for _ in range(4)]
    for attempt in attempts:
        shipped.add("step 1/9 | loss 0.5", job=str(attempt.key.job_id))
    await shipped.rounds(1)
    for attempt in attempts:
        shipped.add("step 2/9 | loss 0.5", job=str(attempt.key.job_id))
    shipped.server.asked.clear()
    await shipped.rounds(1)
    assert len(shipped.server.asked) == 1
    assert [(await shipped.progress(attempt)).last_step for attempt in attempts] == [2] * 4
