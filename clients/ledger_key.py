"""The key that the ledger's chain hangs on, in a file outside the database."""

import os
import secrets
import stat
from pathlib import Path

from relight.clients.ledger import LedgerCorruptError, LedgerUnavailableError

_KEY_BYTES = 32
_PEOPLE = stat.S_IRWXG | stat.S_IRWXO


def read_key(path: Path) -> bytes | None:
    """The key in this file, None when there is no such file.

    Raises:
        LedgerCorruptError: when others may read the file, or it holds no key of ours.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            words = file.read(4 * _KEY_BYTES)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise LedgerUnavailableError(f"the ledger's key file {path} cannot be read: {e.strerror}") from e
    if mode & _PEOPLE:
        raise LedgerCorruptError(f"the ledger's key file {path} is open to others: chmod 600 it")
    try:
        key = bytes.fromhex(words.decode().strip())
    except ValueError as e:
        raise LedgerCorruptError(f"the ledger's key file {path} holds no key") from e
    if len(key) != _KEY_BYTES:
        raise LedgerCorruptError(f"the ledger's key file {path} holds no key of {_KEY_BYTES} bytes")
    return key


def make_key(path: Path) -> bytes:
    """A new key in this file, or the one that another process has put there meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    key = secrets.token_bytes(_KEY_BYTES)
    handle = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)  # fails where the file exists, and never shows half a key
    except FileExistsError:
        found = read_key(path)
        if found is None:
            raise
        return found
    finally:
        fresh.unlink(missing_ok=True)
    return key
