"""A real sshd on loopback, for whoever reads files or runs commands over SSH; no Slurm behind it."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from relight.clients.ssh import SshConnection
from relight.clients.ssh_files import SftpFiles
from relight.lab.errors import WayMissingError
from relight.lab.sshd import Sshd
from relight.lab.users import current_user


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """One whose account may do anything, and is ours."""
    folder = Path(tempfile.mkdtemp(prefix="relight-sshd-", dir="/tmp"))
    folder.chmod(0o755)
    sshd = Sshd(folder / "ssh", current_user(), Path.home())
    try:
        sshd.start()
        sshd.authorize()
        yield sshd
    except WayMissingError as reason:
        pytest.skip(str(reason))
    finally:
        sshd.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
async def connection(sshd: Sshd) -> AsyncIterator[SshConnection]:
    """Our connection to it."""
    connection = SshConnection(**sshd.login)
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
async def sftp(connection: SshConnection) -> SftpFiles:
    """Its files."""
    return SftpFiles(connection)
