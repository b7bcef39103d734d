"""The chain that makes the audit trail tamper-evident, and the key that it hangs on.

Each row's hash is an HMAC-SHA256 over everything else in the row, its predecessor's hash included. The
newest row is sealed in a table of its own, so that rows taken off the end show as well. Whoever can write to
the database and lacks the key cannot make any of it fit; only an older state put back as a whole (or
everything removed) needs an anchor kept elsewhere to be found.
"""

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, delete, func, insert, select

from relight.clients.ledger import LedgerCorruptError, LedgerUnavailableError
from relight.clients.ledger_schema import head, ledger
from relight.domain.base import canonical_json
from relight.domain.ledger import ChainReport

ZERO = "0" * 64
"""What the first row has for its predecessor."""
_BATCH = 2000
_KEY_BYTES = 32
_PEOPLE = stat.S_IRWXG | stat.S_IRWXO


class Chain:
    """Links, seals and checks rows with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def link(self, stored: Mapping[str, str], seq: int, prev_hash: str) -> dict[str, Any]:
        """The row that goes after the one whose hash is `prev_hash`."""
        row: dict[str, Any] = {**stored, "seq": seq, "prev_hash": prev_hash}
        return {**row, "hash": self._mac(canonical_json(row))}

    def newest(self, connection: Connection) -> tuple[int, str]:
        """Number and hash of the newest row, (0, `ZERO`) where there is none.

        Raises:
            LedgerCorruptError: when the newest row is not the one sealed, or was sealed with another key.
        """
        found = connection.execute(select(ledger).order_by(ledger.c.seq.desc()).limit(1)).mappings().first()
        sealed = connection.execute(select(head)).mappings().first()
        if found is None and sealed is None:
            return 0, ZERO
        problem = self._head_problem(sealed, found["seq"] if found else 0, found["hash"] if found else ZERO)
        if problem or found is None:
            raise LedgerCorruptError(problem or "all rows are gone")
        return found["seq"], found["hash"]

    def seal(self, connection: Connection, seq: int, newest: str) -> None:
        """Record which row is the newest."""
        connection.execute(delete(head))
        connection.execute(insert(head), {"one": 1, "seq": seq, "hash": newest, "seal": self._seal(seq, newest)})

    def check_key(self, connection: Connection) -> None:
        """Refuse a key that did not write this chain.

        Raises:
            LedgerCorruptError: when the newest row was written with another key, or changed since.
        """
        found = connection.execute(select(ledger).order_by(ledger.c.seq.desc()).limit(1)).mappings().first()
        if found is not None and not self._fits(found):
            raise LedgerCorruptError(
                "the ledger's key file does not fit its newest row: another key, or the row was changed"
            )

    def verify(self, engine: Engine, anchor: ChainReport | None = None) -> ChainReport:
        """Check every row, a batch at a time: memory stays bounded and writers are not held up.

        With an earlier report kept outside the database as `anchor`, its head must still be in the chain.
        """
        count, newest = 0, ZERO
        while True:
            batch, sealed, last = _read(engine, after=count)
            for row in batch:
                problem = self._row_problem(row, count + 1, newest)
                if not problem and anchor and anchor.rows == row["seq"] and anchor.head != row["hash"]:
                    problem = f"row {row['seq']} is not the one that was anchored"
                if problem:
                    return ChainReport(rows=count, head=_said(count, newest), broken_at=row["seq"], problem=problem)
                count, newest = row["seq"], row["hash"]
            if not batch and last <= count:
                break
        problem = self._end_problem(sealed, count, newest, anchor)
        return ChainReport(
            rows=count,
            head=_said(count, newest),
            broken_at=count + 1 if problem else None,
            problem=problem,
        )

    def _row_problem(self, row: RowMapping, seq: int, prev_hash: str) -> str:
        if row["seq"] != seq:
            return f"row {seq} is missing"
        if row["prev_hash"] != prev_hash:
            return f"row {seq} does not follow row {seq - 1}"
        if not self._fits(row):
            return f"row {seq} is not as it was written"
        return ""

    def _end_problem(self, sealed: RowMapping | None, count: int, newest: str, anchor: ChainReport | None) -> str:
        if anchor and anchor.rows > count:
            return f"{anchor.rows} rows were anchored, {count} are left"
        if count == 0 and sealed is None:
            return ""
        return self._head_problem(sealed, count, newest)

    def _head_problem(self, sealed: RowMapping | None, seq: int, newest: str) -> str:
        if sealed is None:
            return "the seal of the newest row is gone"
        if not hmac.compare_digest(str(sealed["seal"]), self._seal(sealed["seq"], sealed["hash"])):
            return "the seal of the newest row was made with another key, or changed"
        if (sealed["seq"], sealed["hash"]) != (seq, newest):
            return f"row {sealed['seq']} was sealed as the newest, row {seq} is"
        return ""

    def _fits(self, row: RowMapping) -> bool:
        rest = {name: value for name, value in row.items() if name != "hash"}
        try:
            return hmac.compare_digest(str(row["hash"]), self._mac(canonical_json(rest)))
        except (TypeError, ValueError):  # a type that was never written, such as a blob
            return False

    def _seal(self, seq: int, newest: str) -> str:
        return self._mac(f"head {seq} {newest}")

    def _mac(self, words: str) -> str:
        return hmac.new(self._key, words.encode(), hashlib.sha256).hexdigest()


def _read(engine: Engine, after: int) -> tuple[list[RowMapping], RowMapping | None, int]:
    """The next rows; where there are none, what is sealed, and the newest row's number at that moment."""
    rows = select(ledger).where(ledger.c.seq > after).order_by(ledger.c.seq).limit(_BATCH)
    # One statement, so that both are of the same moment on each database.
    last = select(func.coalesce(func.max(ledger.c.seq), 0)).scalar_subquery()
    with engine.connect() as connection:
        batch = list(connection.execute(rows).mappings())
        if batch:
            return batch, None, after
        sealed = connection.execute(select(head, last.label("last"))).mappings().first()
        return [], sealed, sealed["last"] if sealed else after


def _said(count: int, newest: str) -> str:
    return newest if count else ""


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
