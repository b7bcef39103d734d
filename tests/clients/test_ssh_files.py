"""Files over SFTP: what is not as on this machine. The rest is in `test_logs.py` and `test_checkpoint_files.py`."""

import asyncio
import io
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from relight.clients import ssh_files
from relight.clients.checkpoint_files import CheckpointFiles
from relight.clients.files import Files, Stream, UnreachableError
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.log_files import LogFiles
from relight.clients.logs import Cursor, LogNotFoundError, LogUnreadableError
from relight.clients.ssh import SshConnection, SshRunner
from relight.clients.ssh_files import SftpFiles
from relight.domain.checkpoints import HowNamed, Root
from relight.lab.processes import descendants, wait_until
from relight.lab.sshd import Sshd

PATIENCE = timedelta(seconds=20)


def test_it_keeps_the_contract(sftp: SftpFiles) -> None:
    """The class is a `Files` for the type checker."""
    contract: Files = sftp
    assert contract


async def test_a_stream_reads_as_a_file_of_ours(sftp: SftpFiles, tmp_path: Path) -> None:
    """Positions, ends and sizes, in a thread."""
    data = os.urandom(3_000_000)
    (tmp_path / "data").write_bytes(data)

    def read() -> None:
        with io.BufferedReader(Stream(sftp.open(str(tmp_path / "data")), 10), 1 << 20) as file:
            assert file.read(5) == data[10:15]
            assert file.seek(-7, os.SEEK_END) == len(data) - 7
            assert file.read() == data[-7:]
            assert file.read() == b""
            file.seek(0)
            assert file.read() == data
        with pytest.raises(OSError, match="before the beginning"):
            Stream(sftp.open(str(tmp_path / "data"))).seek(-1)

    await asyncio.to_thread(read)


async def test_logs_open_is_for_a_thread(sftp: SftpFiles, tmp_path: Path) -> None:
    """What the scanner gets is a file from an offset on; what is no file is an OSError."""
    (tmp_path / "log").write_text("one\ntwo\n")
    logs = LogFiles(files=sftp, private=(tmp_path / "secret",))

    def read() -> bytes:
        with logs.open(str(tmp_path / "log"), 4) as file:
            return file.read()

    assert await asyncio.to_thread(read) == b"two\n"
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "secret/key"):
        with pytest.raises(OSError):  # noqa: PT011 - which one is told by its text alone
            await asyncio.to_thread(logs.open, str(path))


async def test_another_file_with_the_same_end_is_another_file(sftp: SftpFiles, tmp_path: Path) -> None:
    """A longer file whose bytes before the cursor are the old ones is known by its beginning."""
    log, logs = tmp_path / "log", LogFiles(files=sftp)
    log.write_bytes(b"attempt 1\n" + b"step\n" * 100)
    cursor = (await logs.read_new(str(log), Cursor())).cursor
    log.write_bytes(b"attempt 2\n" + b"step\n" * 200)
    chunk = await logs.read_new(str(log), cursor)
    assert chunk.restarted
    assert len(chunk.lines) == 201


async def test_kernel_logs(sftp: SftpFiles, tmp_path: Path) -> None:
    """The newest lines of each node's file."""
    (tmp_path / "n1.log").write_bytes(b"x" * 5_000_000 + b"\nXid 79\n")
    logs = KernelLogFiles(str(tmp_path / "{node}.log"), sftp)
    assert await logs.tail("n1") == b"Xid 79\n"
    with pytest.raises(LogNotFoundError):
        await logs.tail("n2")


async def test_names_that_are_no_text(sftp: SftpFiles, tmp_path: Path) -> None:
    """A folder with such a name in it is read, the name as the standard library spells it."""
    (tmp_path / os.fsdecode(b"step_1\xff")).mkdir()
    entries = await asyncio.to_thread(sftp.listing, str(tmp_path), 10)
    assert [entry.name for entry in entries] == ["step_1\udcff"]


async def test_a_lost_connection_is_not_an_empty_folder(sshd: Sshd, tmp_path: Path) -> None:
    """With sshd down nothing is known of any file, in each of the three readers; it is read again when it is back."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/step_1.pt").write_bytes(b"x")
    (tmp_path / "log").write_text("one\n")
    connection = SshConnection(**sshd.login)
    files = SftpFiles(connection)
    logs, kernel = LogFiles(files=files), KernelLogFiles(str(tmp_path / "{node}"), files)
    checkpoints = CheckpointFiles(files=files)
    roots = [Root(path=str(tmp_path), how=HowNamed.PERSON)]
    assert len((await checkpoints.look(roots)).series) == 1
    opened = await asyncio.to_thread(logs.open, str(tmp_path / "log"))
    await asyncio.to_thread(sshd.stop)
    try:
        for call in (logs.size(str(tmp_path / "log")), kernel.tail("log")):
            with pytest.raises(LogUnreadableError):
                await call
        survey = await checkpoints.look(roots)
        assert (survey.series, survey.complete) == ((), False)
        with pytest.raises(OSError, match="SFTP"):
            await asyncio.to_thread(opened.read)
        with pytest.raises(UnreachableError, match="refuses connections"):
            await asyncio.to_thread(files.stat, str(tmp_path))
    finally:
        await asyncio.to_thread(sshd.start)
    assert len((await checkpoints.look(roots)).series) == 1
    assert await logs.size(str(tmp_path / "log")) == 4
    await connection.close()


async def test_a_connection_lost_in_the_middle_of_a_search(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found until then is not the answer."""
    for n in range(20):
        (tmp_path / f"run{n}").mkdir()
        (tmp_path / f"run{n}/step_{n}.pt").write_bytes(b"x")
    connection = SshConnection(**sshd.login)
    files, listing, looked = SftpFiles(connection), SftpFiles.listing, []

    def cut(self: SftpFiles, folder: str, most: int) -> list[ssh_files.Entry]:
        looked.append(folder)
        if len(looked) == 10:
            asyncio.run_coroutine_threadsafe(connection.close(), self._loop).result()
            monkeypatch.setattr(connection, "_timeout", timedelta(0))
        return listing(self, folder, most)

    monkeypatch.setattr(SftpFiles, "listing", cut)
    survey = await CheckpointFiles(files=files).look([Root(path=str(tmp_path), how=HowNamed.PERSON)])
    assert not survey.complete
    assert "no login" in survey.problems[0]


async def test_a_file_system_that_hangs_holds_up_its_own_folder_only(sshd: Sshd, tmp_path: Path) -> None:
    """A frozen sftp-server: its read is given up, that folder is left alone, others get a session of their own."""
    for name in ("dead", "alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log").write_text("one\n")
    connection = SshConnection(**sshd.login)
    logs = LogFiles(files=SftpFiles(connection, patience=timedelta(seconds=0.3)), timeout=timedelta(seconds=0.4))
    dead, alive = str(tmp_path / "dead/log"), str(tmp_path / "alive/log")
    assert await logs.size(dead) == 4
    frozen = signalled(sshd, signal.SIGSTOP)
    assert frozen
    with pytest.raises(LogUnreadableError, match="did not answer"):
        await logs.size(dead)
    assert await logs.size(alive) == 4
    with pytest.raises(LogUnreadableError, match="still does not answer"):
        await logs.size(dead)
    assert (await SshRunner(connection).run(("echo", "on"), PATIENCE)).out == "on\n"
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)

    async def healed() -> bool:
        try:
            return await logs.size(dead) == 4
        except LogUnreadableError:
            return False

    for _ in range(500):
        if await healed():
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("a file system that answers again is read again")
    await connection.close()


def signalled(sshd: Sshd, number: signal.Signals) -> list[int]:
    """Send a signal to the sftp-servers of an sshd; their PIDs."""
    assert sshd._process is not None
    wait_until(lambda: "sftp-server" in sshd.running(), 10, "an sftp-server")
    found = [pid for pid in descendants(sshd._process.pid) if _name(pid) == "sftp-server"]
    for pid in found:
        os.kill(pid, number)
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def test_sessions_that_hang_are_few(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While `MAX_SESSIONS` of them hang none is started; each is closed after `STUCK`."""
    monkeypatch.setattr(ssh_files, "STUCK", timedelta(seconds=5))
    own = SshConnection(**sshd.login)
    files = SftpFiles(own, patience=timedelta(seconds=0.5))
    await asyncio.to_thread(files.stat, str(tmp_path))
    frozen: list[int] = []
    waiting = []
    for _ in range(ssh_files.MAX_SESSIONS):
        frozen += signalled(sshd, signal.SIGSTOP)
        waiting.append(asyncio.create_task(asyncio.to_thread(files.stat, str(tmp_path))))
        await asyncio.to_thread(wait_until, lambda: files._session is None, 10, "the session to be put aside")
        if len(waiting) < ssh_files.MAX_SESSIONS:
            await asyncio.to_thread(files.stat, str(tmp_path))
    with pytest.raises(UnreachableError, match="still does not answer"):
        await asyncio.to_thread(files.stat, str(tmp_path))
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnreachableError] * ssh_files.MAX_SESSIONS
    await asyncio.to_thread(files.stat, str(tmp_path))
    for pid in set(frozen):
        os.kill(pid, signal.SIGCONT)
    await own.close()


async def test_without_sftp_nothing_is_known(sshd: Sshd, tmp_path: Path) -> None:
    """An account whose forced command is something else says so."""
    try:
        sshd.authorize(None, "/bin/false")
        connection = SshConnection(**sshd.login)
        with pytest.raises(LogUnreadableError, match="SFTP"):
            await LogFiles(files=SftpFiles(connection)).size(str(tmp_path / "log"))
        await connection.close()
    finally:
        sshd.authorize()
