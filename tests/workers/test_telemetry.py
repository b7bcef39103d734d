"""What the worker shows of its watch, scraped over HTTP from the Temporal SDK's own page."""

import asyncio
import re
import socket
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from relight.activities.sights import reports
from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.config.settings import ConfigError, TelemetrySettings
from relight.domain.policy import Policy
from relight.workers import telemetry

MINUTE = timedelta(minutes=1)


def now():
    return datetime.now(UTC)


@pytest.fixture
def site(tmp_path):
    """A site of which only Slurm is simulated."""
    slurm, ledger = MemorySlurm(now), memory_ledger()
    yield Site(
        cluster="test",
        slurm=slurm,
        nodes=slurm,
        ledger=ledger,
        logs=LogFiles(),
        kernel_logs=KernelLogFiles(""),
        policy=Policy(),
        clock=now,
        sleep=asyncio.sleep,
        kept=tmp_path,
    )
    ledger.close()


@pytest.fixture
def address():
    """An address that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def scrape(address):
    """The page's samples of ours, by name and labels."""

    def get():
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(relight_\S+) (\S+)$", page, re.MULTILINE)}

    return get


async def until(good, look):
    """Look until it is good."""
    async with asyncio.timeout(20):
        while not good(seen := await asyncio.to_thread(look)):  # noqa: ASYNC110 - it lives behind HTTP
            await asyncio.sleep(0.02)
    return seen


def of(detector, name="relight_detector_overdue"):
    return f'{name}{{cluster="test",detector="{detector}"}}'


async def test_each_detectors_last_success_is_a_metric(site, address, scrape, monkeypatch):
    """With whether it sees, what waits, and when the worker last wrote; labels are few, whatever the cluster's size."""
    monkeypatch.setattr(telemetry, "EVERY", timedelta(seconds=0.05))
    before = now().timestamp()
    site.detectors.saw("jobs", MINUTE)
    site.detectors.blind("nodes", "timed out", MINUTE)
    site.detectors.followed({"test/7/20261130T092712Z": "/home/a/7.out"}, MINUTE)
    async with telemetry.telling(site, telemetry.runtime(TelemetrySettings(prometheus=address))):
        seen = await until(lambda found: 'relight_incidents_open{cluster="test"}' in found, scrape)
        last = "relight_detector_last_success_timestamp_seconds"
        assert before <= seen[of("jobs", last)] <= now().timestamp()
        assert of("nodes", last) not in seen, "it has never seen"
        assert {name: seen[of(name)] for name in ("jobs", "nodes", "logs", "outbox")} == {
            "jobs": 0,
            "nodes": 1,
            "logs": 0,
            "outbox": 0,
        }
        assert seen['relight_attempts_unreadable{cluster="test"}'] == 1
        assert seen['relight_outbox_undelivered{cluster="test"}'] == 0
        assert before <= seen['relight_worker_last_sign_timestamp_seconds{cluster="test"}'] <= now().timestamp()
        site.detectors.saw("nodes", MINUTE)
        await until(lambda found: found[of("nodes")] == 0, scrape)
    (report,) = (await reports(site)).workers
    assert report.sights["nodes"].last is not None


async def test_without_the_ledger_the_last_sign_ages_and_the_rest_goes_on(site, address, scrape, monkeypatch):
    """No ledger is the worker's own blindness; what its detectors see is shown all the same."""
    monkeypatch.setattr(telemetry, "EVERY", timedelta(seconds=0.05))

    async def away(_change):
        raise LedgerUnavailableError("the database does not answer")

    async with telemetry.telling(site, telemetry.runtime(TelemetrySettings(prometheus=address))):
        sign = 'relight_worker_last_sign_timestamp_seconds{cluster="test"}'
        await until(lambda found: sign in found, scrape)
        monkeypatch.setattr(site.ledger, "commit", away)
        site.detectors.blind("jobs", "timed out", MINUTE)
        stands = (await until(lambda found: found[of("jobs")] == 1, scrape))[sign]
        site.detectors.saw("jobs", MINUTE)
        seen = await until(lambda found: found[of("jobs")] == 0, scrape)
        assert seen[sign] == stands
        monkeypatch.undo()
        await until(lambda found: found[sign] > seen[sign], scrape)


def test_without_an_address_nothing_is_served():
    """The default."""
    assert telemetry.runtime(TelemetrySettings()) is None


def test_an_address_that_is_taken_is_said():
    """With the setting's name, in one line."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        page = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"telemetry\.prometheus {page}: .*in use"):
            telemetry.runtime(TelemetrySettings(prometheus=page))
