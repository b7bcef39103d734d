"""`relight doctor` on GPU metrics: whether the store answers, and whose GPUs it shows. On a stand-in store."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from relight.clients.memory import MemorySlurm
from relight.clients.metrics import MetricsUnavailableError, Shown
from relight.clients.slurm import SlurmUnavailableError
from relight.config.settings import Settings
from relight.console import doctor_metrics
from relight.console.doctor_checks import Health
from relight.domain.gpu_metrics import TOGETHER


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def slurm():
    """Four nodes, n1 to n4."""
    return MemorySlurm(now)


@pytest.fixture
def check(slurm, monkeypatch):
    """Runs the check with a store that shows this, or fails so."""

    async def run(shown: Shown | Exception):
        class Store:
            async def shown(self):
                if isinstance(shown, Exception):
                    raise shown
                return shown

        @asynccontextmanager
        async def opened(_settings):
            yield Store()

        monkeypatch.setattr(doctor_metrics, "open_metrics", opened)
        return await doctor_metrics.check_metrics(Settings(), slurm)

    return run


def shown(*fresh: str, old=(), twice=(), apart=timedelta(0)) -> Shown:
    at = now() + apart
    return Shown(at, dict.fromkeys(fresh, at) | dict.fromkeys(old, at - TOGETHER * 2), frozenset(twice))


async def test_nothing_is_said_where_nothing_is_read(slurm):
    """Metrics are one way to see GPUs, not the only one."""
    assert await doctor_metrics.check_metrics(Settings(), slurm) == ()


async def test_of_how_many_nodes_there_are_fresh_metrics(check):
    """And how many names are nobody's."""
    (found,) = await check(shown("n1.example:9400", "n2", "login7", old=["n3"]))
    assert found.status is Health.OK
    assert found.found == "fresh of 2 of 4 nodes; 1 name that Slurm does not have, such as login7"


@pytest.mark.parametrize(("fresh", "old"), [((), ()), (("login7",), ()), ((), ("n1",))])
async def test_of_no_node_is_a_failure(check, fresh, old):
    """With what may be the reason."""
    (found,) = await check(shown(*fresh, old=old))
    assert (found.status, found.found.partition(";")[0]) == (Health.FAIL, "fresh of 0 of 4 nodes")
    assert "metrics.prometheus.node_label" in found.advice


async def test_a_name_that_two_claim_is_a_warning(check):
    """One of them may be a user's program."""
    (found,) = await check(shown("n1", twice=["n2"]))
    assert found.status is Health.WARN
    assert "two exporters claim to be n2" in found.found


async def test_clocks_that_differ_are_a_warning(check):
    """Beside what else there is to say."""
    checks = await check(shown("n1", apart=timedelta(minutes=5)))
    assert [each.status for each in checks] == [Health.OK, Health.WARN]
    assert "5 min apart" in checks[1].found


async def test_a_store_that_does_not_answer_is_a_failure(check):
    """In its own words."""
    (found,) = await check(MetricsUnavailableError("http://p: no answer within 10 s"))
    assert (found.status, found.found) == (Health.FAIL, "http://p: no answer within 10 s")


async def test_without_slurm_it_is_not_known_whose_they_are(check, slurm):
    """Unknown is a warning."""
    slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    (found,) = await check(shown("n1"))
    assert found.status is Health.WARN
    assert "timed out" in found.found


async def test_settings_that_cannot_be_used_are_a_failure(slurm):
    """As they are for the worker."""
    settings = Settings(metrics={"prometheus": {"url": "http://127.0.0.1:9", "token_file": "/does/not/exist"}})
    (found,) = await doctor_metrics.check_metrics(settings, slurm)
    assert found.status is Health.FAIL
    assert "metrics.prometheus.token_file" in found.found
