"""The controller's site is built as its settings say: where outputs are read, and how they are named there."""

from datetime import UTC, datetime

import pytest

from relight.clients.ledger_sql import SqlLedger
from relight.clients.memory import memory_ledger
from relight.config.settings import ConfigError, Settings
from relight.domain.log_labels import reference
from relight.domain.slurm import JobRecord, JobState
from relight.workers.controller import open_site

NOW = datetime(2026, 11, 30, 9, tzinfo=UTC)
JOB = JobRecord(job_id=7, state=JobState.RUNNING, submit_time=NOW, start_time=NOW, stdout="/out/7.out")
LOKI = {"kind": "loki", "url": "http://127.0.0.1:9", "labels": {"job": "{job_id}"}}


@pytest.fixture
def ledger():
    ledger = memory_ledger()
    assert isinstance(ledger, SqlLedger)
    yield ledger
    ledger.close()


def settings(tmp_path, **store):
    return Settings(data=tmp_path, slurm={"way": "commands"}, logs={"store": store})


async def test_outputs_are_files(tmp_path, ledger):
    """Where no store is named."""
    async with open_site(settings(tmp_path), ledger) as site:
        (tmp_path.parent / "train.out").write_text("x")
        assert site.named(JOB) == ()
        assert await site.logs.size(str(tmp_path.parent / "train.out")) == 1


async def test_outputs_are_in_a_store(tmp_path, ledger):
    """Files that jobs name themselves are read as files all the same, under the same checks."""
    async with open_site(settings(tmp_path, **LOKI), ledger) as site:
        (name,) = site.named(JOB)
        assert name == reference(NOW, job_id="7")
        assert site.logs.place(name) == LOKI["url"]
        (tmp_path / "key").write_text("secret")
        with pytest.raises(OSError, match="private"):
            site.logs.open(str(tmp_path / "key"))


async def test_a_store_that_cannot_be_used_is_said(tmp_path, ledger):
    """Before anything is watched, with the key."""
    with pytest.raises(ConfigError, match=r"logs\.store\.token_file: .*token: the secret cannot be read"):
        async with open_site(settings(tmp_path, **LOKI, token_file=str(tmp_path / "token")), ledger):
            pass
