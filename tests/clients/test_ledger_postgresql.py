"""The same ledger on a real PostgreSQL server, where the machine has one."""

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, exc, text

from relight.clients.ledger import LedgerUnavailableError
from relight.clients.ledger_sql import SqlLedger
from relight.domain.ledger import Change, Entry, RowKind

pytest.importorskip("psycopg")
AT = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)


def entry(name: str, **fields: object) -> Entry:
    return Entry(**{"id": name, "kind": RowKind.NOTE, "at": AT, "cluster": "c", **fields})


def _binary(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    binary = str(found[-1]) if found else shutil.which(name)
    if not binary:
        pytest.skip(f"no {name} on this machine")
    return binary


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a fresh server; PostgreSQL refuses to run as root."""
    folder = tmp_path_factory.mktemp("pg")
    as_user: list[str] = []
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("no user postgres to run the server as")
        for part in (folder, *folder.parents[:3]):
            if part != Path("/tmp"):
                part.chmod(0o755)
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    data = folder / "data"
    initdb = [_binary("initdb"), "-D", data, "-U", "relight", "-A", "trust", "-E", "UTF8", "--locale=C"]
    subprocess.run([*as_user, *initdb], check=True, capture_output=True, cwd=folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"-p {port} -h 127.0.0.1 -k {folder}"
    control = [*as_user, _binary("pg_ctl"), "-D", str(data), "-w"]
    subprocess.run([*control, "-o", options, "-l", str(folder / "log"), "start"], check=True, cwd=folder, stdout=-3)
    yield f"postgresql+psycopg://relight@127.0.0.1:{port}/postgres"
    subprocess.run([*control, "-m", "immediate", "stop"], check=False, cwd=folder, stdout=-3)


async def test_postgresql_keeps_one_chain(server: str, tmp_path: Path):
    """Many writers on several connections, retries included, make one chain that verifies."""
    ledgers = [SqlLedger.open(server, tmp_path / "key") for _ in range(4)]
    changes = [Change(entries=(entry(f"{n % 150}", body={"n": n}),), cursors={"x": {"n": n}}) for n in range(300)]
    counts = await asyncio.gather(*(ledgers[n % 4].commit(change) for n, change in enumerate(changes)))
    assert sum(counts) == 150
    report = await ledgers[0].verify()
    assert (report.ok, report.rows) == (True, 150), report
    assert len(await ledgers[1].rows(limit=10, after=5)) == 10
    assert await ledgers[2].cursor("x") is not None
    engine = create_engine(server)
    for sql in ("UPDATE ledger SET body = ''", "DELETE FROM ledger", "TRUNCATE ledger"):
        with pytest.raises(exc.DBAPIError, match="only grows"), engine.begin() as connection:
            connection.execute(text(sql))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE ledger DISABLE TRIGGER ALL"))
        connection.execute(text("UPDATE ledger SET body = '{}' WHERE seq = 77"))
    engine.dispose()
    assert (await ledgers[3].verify()).broken_at == 77
    for ledger in ledgers:
        ledger.close()


def test_no_server_is_unavailable(tmp_path: Path):
    """A server that does not answer raises the ledger's own error."""
    with pytest.raises(LedgerUnavailableError):
        SqlLedger.open("postgresql+psycopg://relight@127.0.0.1:9/postgres", tmp_path / "key")
