"""`relight doctor` on a log store (stand-ins for both): what is wrong is one clear line with what to do about it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.clients.files import LocalFiles
from relight.clients.memory import MemorySlurm
from relight.clients.slurm_process import LocalRunner
from relight.clients.ways import Access
from relight.config.settings import Settings, Way
from relight.console.doctor import probes_of_slurm
from relight.console.doctor_checks import Check, Health
from relight.console.doctor_logs import check_log_store
from tests.clients.fake_log_servers import LogServer, log_server, says

LOKI = {"kind": "loki", "url": "https://logs.example", "labels": {"job": "{job_id}"}}
TENANTS = {"victorialogs": "0:0", "loki": "team"}


class Site:
    """A cluster with jobs, and a store to which their outputs may be shipped."""

    def __init__(self, server: LogServer, kind: str) -> None:
        self.server, self.kind = server, kind
        self.slurm = MemorySlurm(lambda: self.began)
        self.began = datetime.now(UTC) - timedelta(minutes=20)

    def job(self, **fields: object) -> str:
        """A job that runs since 20 minutes; the path of its output."""
        return self.slurm.start(self.slurm.submit(nodes=1, **fields)).stdout

    def ship(self, path: str, *, ago: float = 1.0) -> None:
        at = round((datetime.now(UTC).timestamp() - ago) * 1e9)
        self.server.add((at, "a line"), tenant=TENANTS[self.kind], filename=path)

    async def check(self, policy: dict[str, object] | None = None, **store: object) -> list[Check]:
        given = {"kind": self.kind, "url": self.server.url, "tenant": TENANTS[self.kind]}
        given |= {"labels": {"filename": "{path}"}, **store}
        checks = await check_log_store(Settings(policy=policy or {}, logs={"store": given}), self.slurm)
        for check in checks:
            assert check.name == "log store"
            assert "\n" not in check.found + check.advice
        return list(checks)


@pytest.fixture(params=["victorialogs", "loki"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async with log_server() as server:
        yield Site(server, request.param)


async def test_a_store_with_the_jobs_lines(site: Site):
    """All is well, and how far the shipper lags is said."""
    for _ in range(2):
        site.ship(site.job(), ago=4)
    (check,) = await site.check()
    assert check.status is Health.OK
    assert "lines of 2 of 2 running jobs; the newest is 4 s old" in check.found


async def test_a_store_without_any_of_the_jobs_lines(site: Site):
    """A wrong tenant or label answers nothing, without an error: that must not look well."""
    site.ship(site.job())
    wrong = "9:9" if site.kind == "victorialogs" else "others"
    (check,) = await site.check(tenant=wrong)
    assert check.status is Health.FAIL
    assert "has lines of 0 of 1 running job" in check.found
    for said in (f"tenant ({wrong})", "'filename': '{path}'", "when its job began"):
        assert said in check.advice


async def test_a_store_with_some_of_them(site: Site):
    """One that has printed nothing yet is no proof of anything."""
    site.ship(site.job())
    site.job()
    (check,) = await site.check()
    assert check.status is Health.WARN
    assert "1 of 2" in check.found
    assert "Job 2 may not have printed yet" in check.advice


async def test_lines_of_the_future(site: Site):
    """Clocks that differ by minutes put steps into the wrong attempt."""
    site.ship(site.job(), ago=-300)
    (check,) = await site.check()
    assert (check.status, "NTP" in check.advice) == (Health.WARN, True)


async def test_no_job_to_try_it_on(site: Site):
    """Whether it answers is found all the same."""
    site.job(partition="other")
    (check,) = await site.check({"partitions": ["gpu"]}, labels={"job": "{job_id}"})
    assert check.status is Health.WARN
    assert "answers; no job is running" in check.found


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (says(401, "token expired"), "renew it"),
        (says(403, "no"), "check the tenant"),
        (says(404), "check the address"),
        (says(429, "slow down", Retry_After="30"), "limits our rate; it is asked again in 30 s"),
        (says(502, "<html>\n<h1>Bad Gateway</h1>"), "status 502"),
        (says(302, Location="/login"), "to log in"),
    ],
)
async def test_a_store_that_refuses(site: Site, fault: object, said: str):
    """What it means stands in the line."""
    site.job()
    site.server.faults.append(fault)  # type: ignore[arg-type]
    (check,) = await site.check()
    assert check.status is Health.FAIL
    assert said in check.found


async def test_a_store_that_is_not_there(site: Site):
    """With its address."""
    (check,) = await site.check(url="http://127.0.0.1:9")
    assert check.status is Health.FAIL
    assert "127.0.0.1:9" in check.found


async def test_files_that_cannot_be_read(site: Site, tmp_path: Path):
    """The key is named."""
    for key in ("token_file", "ca"):
        (check,) = await site.check(**{key: str(tmp_path / "missing")})
        assert check.status is Health.FAIL
        assert f"logs.store.{key}" in check.found
        assert "No such file" in check.found


async def test_a_secret_in_the_clear(site: Site, tmp_path: Path):
    """Where others may overhear it."""
    (tmp_path / "token").write_text("t0p")
    site.server.token = "t0p"
    (check,) = await site.check(token_file=str(tmp_path / "token"))
    assert check.status is Health.WARN  # no job is running; the loopback is no network
    *_, check = await site.check(token_file=str(tmp_path / "token"), url="http://logs.invalid:1")
    assert "unencrypted to logs.invalid" in check.found


@pytest.mark.parametrize(("store", "name"), [({}, "job logs"), (LOKI, "log store")])
def test_the_place_where_outputs_are_read_is_checked(store: dict[str, object], name: str):
    """The store instead of the files; either would say nothing of the other."""
    slurm = MemorySlurm(lambda: datetime.now(UTC))
    runner = LocalRunner()
    access = Access(Way.COMMANDS, "", slurm, runner, slurm, (), runner, None, LocalFiles())
    names = [probe.name for probe in probes_of_slurm(Settings(logs={"store": store}), access)]
    assert [each for each in names if each in ("job logs", "log store")] == [name]
