"""A changed policy is taken over without a restart; one that cannot be used is refused, and both are written down."""

import asyncio
import os
import pwd
from datetime import UTC, datetime

import pytest
import yaml

from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.config.settings import load
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode
from relight.workers import policy_reload
from relight.workers.policy_reload import PolicyFile, following_policy


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    """What this shell has set is not part of the tests."""
    for name in [name for name in os.environ if name.startswith("RELIGHT_")]:
        monkeypatch.delenv(name)


def now():
    return datetime.now(UTC)


class Worker:
    """A site with a settings file, and what its worker does about that."""

    def __init__(self, site, file):
        self.site = site
        self.file = file
        self.policy = PolicyFile(site, file, load(file), "ctl/1")

    def write(self, **policy):
        self.file.write_text(yaml.safe_dump({"policy": policy}))

    async def looks(self, times=2):
        for _ in range(times):
            await self.policy.look()

    async def told(self):
        rows = await self.site.ledger.rows(kind=RowKind.NOTE)
        return [row.body for row in rows if row.body.get("what") == "policy"]


@pytest.fixture
def worker(tmp_path):
    """A worker in mode monitor; of its site only Slurm is simulated."""
    file = tmp_path / "relight.yaml"
    file.write_text("policy: {mode: monitor}\n")
    slurm, ledger = MemorySlurm(now), memory_ledger()
    site = Site(
        cluster="test",
        slurm=slurm,
        nodes=slurm,
        ledger=ledger,
        logs=LogFiles(),
        kernel_logs=KernelLogFiles(""),
        policy=load(file).policy,
        clock=now,
        sleep=asyncio.sleep,
        kept=tmp_path,
    )
    yield Worker(site, file)
    ledger.close()


async def test_a_changed_policy_is_taken_over(worker):
    """With both versions, the file, whose it is and when it was changed, and the policy itself."""
    before = worker.site.policy_version
    worker.write(mode="approve")
    await worker.looks()
    assert worker.site.policy.mode is Mode.APPROVE
    (told,) = await worker.told()
    assert (told["change"], told["old"], told["new"]) == ("changed", before, worker.site.policy_version)
    assert (told["file"], told["owner"]) == (str(worker.file), pwd.getpwuid(os.getuid()).pw_name)
    assert told["changed"]
    assert told["policy"]["mode"] == "approve"


async def test_a_file_that_is_being_written_is_waited_for(worker):
    """Half a policy may be a valid one, and another than meant."""
    worker.write(mode="auto")
    await worker.looks(1)
    worker.write(mode="auto", modes={"drain": "off"})
    await worker.looks(1)
    assert worker.site.policy.mode is Mode.MONITOR
    await worker.looks(1)
    assert worker.site.policy.modes == {"drain": "off"}


@pytest.mark.parametrize("text", ["policy: {mode: full}", "policy: [", "clutser: x", "policy: {rules: [{}]}", None])
async def test_what_cannot_be_used_is_refused(worker, caplog, text):
    """The old policy stays, which is said in the log, in the ledger, and to `relight status`."""
    before = worker.site.policy
    worker.file.unlink() if text is None else worker.file.write_text(text)
    await worker.looks(4)
    assert worker.site.policy == before
    (record,) = caplog.records
    assert (record.levelname, "stays in force" in record.message) == ("ERROR", True)
    (told,) = await worker.told()
    assert (told["change"], told["old"]) == ("refused", told["new"])
    assert str(worker.file) in told["text"]
    assert str(worker.file) in worker.site.policy_problem


async def test_a_file_that_is_right_again_is_told(worker):
    """Also where it says what it said before."""
    worker.file.write_text("policy: {mode: full}")
    await worker.looks()
    worker.write(mode="monitor")
    await worker.looks()
    assert worker.site.policy_problem == ""
    assert [each["change"] for each in await worker.told()] == ["refused", "unchanged"]


async def test_a_touched_file_changes_nothing(worker):
    """Nor does one that says the same in other words."""
    worker.file.write_text("# the same\npolicy:\n  mode: monitor\n  approval_expires: 30m\n")
    await worker.looks(4)
    assert await worker.told() == []


async def test_a_change_right_after_the_start_is_not_missed(worker):
    """Between reading the settings and the first look."""
    stamp = worker.file.stat()
    worker.write(mode="auto")
    os.utime(worker.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    late = PolicyFile(worker.site, worker.file, load(worker.file), "ctl/1")
    await late.look()
    assert worker.site.policy.mode is Mode.AUTO


async def test_a_worker_that_starts_with_another_policy_tells(worker):
    """Once, and not each time that it starts."""
    await worker.policy.began()
    await worker.policy.began()
    (told,) = await worker.told()
    assert (told["old"], told["new"]) == ("", worker.site.policy_version)


async def test_other_settings_wait_for_a_restart(worker, caplog):
    """This is said."""
    worker.file.write_text("policy: {mode: auto}\ntemporal: {address: 'other:1'}\n")
    await worker.looks()
    assert worker.site.policy.mode is Mode.AUTO
    assert "they count after a restart" in caplog.text


async def test_what_the_ledger_did_not_take_is_written_later(worker, monkeypatch):
    """The policy is in force all the same: nothing is done without the ledger anyway."""
    real = worker.site.ledger.commit

    async def down(_change):
        raise LedgerUnavailableError("no")

    monkeypatch.setattr(worker.site.ledger, "commit", down)
    worker.write(mode="auto")
    await worker.looks(1)
    with pytest.raises(LedgerUnavailableError):
        await worker.looks(1)
    assert worker.site.policy.mode is Mode.AUTO
    monkeypatch.setattr(worker.site.ledger, "commit", real)
    await worker.looks(1)
    assert [each["change"] for each in await worker.told()] == ["changed"]


async def test_the_loop_takes_a_change_over(worker, monkeypatch):
    """As the controller runs it."""
    monkeypatch.setattr(policy_reload, "EVERY", 0.01)
    async with following_policy(worker.site, worker.file, load(worker.file)):
        worker.write(mode="auto")
        async with asyncio.timeout(30):
            while worker.site.policy.mode is not Mode.AUTO:  # noqa: ASYNC110 - it is told by nothing
                await asyncio.sleep(0.01)
    async with following_policy(worker.site, None, load(worker.file)):
        assert worker.site.policy.mode is Mode.AUTO
