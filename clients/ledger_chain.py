"""The chain that makes the audit trail tamper-evident.

Each row's hash is an HMAC-SHA256 over everything else in the row, its predecessor's hash included. The
newest row is sealed in a table of its own, so that rows taken off the end show as well. Whoever can write to
the database and lacks the key cannot make any of it fit; only an older state put back as a whole (or
everything removed) needs an anchor kept elsewhere to be found.
"""

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, RowMapping, Select, delete, exc, func, insert, select

from relight.clients.ledger import LedgerCorruptError
from relight.clients.ledger_schema import head, ledger
from relight.domain.audit import Anchor
from relight.domain.ledger import ChainReport

ZERO = "0" * 64
"""What the first row has for its predecessor."""
COLUMNS = tuple(column.name for column in ledger.columns)
_BATCH = 2000
_BLOCK = hashlib.sha256().block_size


def row_text(row: Sequence[Any]) -> str:
    """What a row's hash is over: the canonical JSON of all its other columns.

    A million rows are checked by it, so the text is put together here, three times as fast as by `canonical_json`.

    Args:
        row: the values in the order of `COLUMNS`; the hash may be missing.

    Raises:
        TypeError: a value of a type that was never written, such as a blob.
    """
    seq, id_, kind, at, cluster, incident, attempt, lineage, node, body, prev_hash = row[:11]
    return (
        f'{{"at":{quoted(at)},"attempt":{quoted(attempt)},"body":{quoted(body)},"cluster":{quoted(cluster)},'
        f'"id":{quoted(id_)},"incident":{quoted(incident)},"kind":{quoted(kind)},"lineage":{quoted(lineage)},'
        f'"node":{quoted(node)},"prev_hash":{quoted(prev_hash)},"seq":{seq:d}}}'
    )


class Broken(NamedTuple):
    """Where the chain does not hold."""

    seq: int
    """The row at which it shows."""
    expected: str
    found: str
    problem: str
    """Both in one sentence."""


class Chain:
    """Links, seals and checks rows with one key."""

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(each ^ 0x36 for each in block))
        self._outer = hashlib.sha256(bytes(each ^ 0x5C for each in block))

    def link(self, stored: Mapping[str, str], seq: int, prev_hash: str) -> dict[str, Any]:
        """The row that goes after the one whose hash is `prev_hash`."""
        row: dict[str, Any] = {**stored, "seq": seq, "prev_hash": prev_hash}
        return {**row, "hash": self._mac(row_text([row[name] for name in COLUMNS[:-1]]))}

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
        found = connection.execute(select(ledger).order_by(ledger.c.seq.desc()).limit(1)).first()
        if found is not None and not self.fits(found):
            raise LedgerCorruptError(
                "the ledger's key file does not fit its newest row: another key, or the row was changed"
            )

    def verify(self, engine: Engine, anchor: ChainReport | None = None) -> ChainReport:
        """Check every row up to the first that is wrong; memory stays bounded and writers are not held up.

        With an earlier report kept outside the database as `anchor`, its head must still be in the chain.
        """
        walk, count, newest = Walk(self, engine), 0, ZERO
        for row, broken in walk:
            seq, found = row[0], row[-1]
            problem = broken[0].problem if broken else ""
            if not problem and anchor and anchor.rows == seq and anchor.head != found:
                problem = f"row {seq} is not the one that was anchored"
            if problem:
                return ChainReport(rows=count, head=_said(count, newest), broken_at=seq, problem=problem)
            count, newest = seq, found
        problem = f"{anchor.rows} rows were anchored, {count} are left" if anchor and anchor.rows > count else ""
        problem = problem or walk.end_problem
        broken_at = count + 1 if problem else None
        return ChainReport(rows=count, head=_said(count, newest), broken_at=broken_at, problem=problem)

    def broken(self, row: Sequence[Any], seq: int, prev_hash: str) -> Iterator[Broken]:
        """What is wrong with a row that should be number `seq` and follow `prev_hash`."""
        if row[0] != seq:
            lost = f"row {seq}" if row[0] == seq + 1 or row[0] < seq else f"rows {seq} to {row[0] - 1}"
            verb = "is" if lost.count(" ") == 1 else "are"
            yield Broken(row[0], f"row {seq}", f"row {row[0]}", f"{lost} {verb} missing")
        elif row[10] != prev_hash:
            text = f"row {seq} does not follow row {seq - 1}"
            yield Broken(seq, f"a row that follows {_short(prev_hash)}", f"one that follows {_short(row[10])}", text)
        if not self.fits(row):
            text = f"row {row[0]} is not as it was written"
            yield Broken(
                row[0], "content that its hash fits", f"content with another hash than {_short(row[11])}", text
            )

    def fits(self, row: Sequence[Any]) -> bool:
        """True where the row is as it was written."""
        try:
            return bool(self._mac(row_text(row)) == row[11])
        except (TypeError, ValueError):
            return False

    def anchor(self, anchor: Anchor) -> Anchor:
        """The anchor with its MAC."""
        return anchor.model_copy(update={"mac": self._mac(anchor.text)})

    def made(self, anchor: Anchor) -> bool:
        """True for an anchor that was made with this key."""
        return hmac.compare_digest(anchor.mac.encode(), self._mac(anchor.text).encode())

    def end_problem(self, sealed: RowMapping | None, count: int, newest: str) -> str:
        """What is wrong with the end of a chain of so many rows; empty where nothing is."""
        return "" if count == 0 and sealed is None else self._head_problem(sealed, count, newest)

    def _head_problem(self, sealed: RowMapping | None, seq: int, newest: str) -> str:
        if sealed is None:
            return "the seal of the newest row is gone"
        if not hmac.compare_digest(str(sealed["seal"]), self._seal(sealed["seq"], sealed["hash"])):
            return "the seal of the newest row was made with another key, or changed"
        if (sealed["seq"], sealed["hash"]) != (seq, newest):
            return f"row {sealed['seq']} was sealed as the newest, row {seq} is"
        return ""

    def _seal(self, seq: int, newest: str) -> str:
        return self._mac(f"head {seq} {newest}")

    def _mac(self, words: str) -> str:
        # HMAC (RFC 2104) from two states that are made once: half the time of `hmac.new` for each row.
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(words.encode())
        outer.update(inner.digest())
        return outer.hexdigest()


class Walk:
    """All rows in their order, each with what is wrong with it: once, a batch at a time."""

    def __init__(self, chain: Chain, engine: Engine) -> None:
        """Make ready; nothing is read yet."""
        self._chain, self._engine = chain, engine
        self.count = 0
        """Rows so far."""
        self.last = 0
        """Number of the last."""
        self.newest = ZERO
        """Its hash."""
        self.end_problem = ""
        """What is wrong with the end, once it is reached."""

    def __iter__(self) -> Iterator[tuple[Sequence[Any], tuple[Broken, ...]]]:
        """Go through them; after a break it goes on from what is there, so that each break shows once."""
        fits, seq = self._chain.fits, 0
        after: int | None = None  # a forged row may have any number
        while True:
            batch, sealed, last = _read(self._engine, after)
            for row in batch:
                seq += 1
                if row[0] == seq and row[10] == self.newest and fits(row):
                    broken: tuple[Broken, ...] = ()
                else:
                    broken = tuple(self._chain.broken(row, seq, self.newest))
                    seq = row[0]
                self.count += 1
                self.last, self.newest = seq, row[11]
                yield row, broken
            after = batch[-1][0] if batch else after
            if not batch and (after is None or last <= after):
                break
        self.end_problem = self._chain.end_problem(sealed, seq, self.newest)


def _read(engine: Engine, after: int | None) -> tuple[Sequence[Sequence[Any]], RowMapping | None, int]:
    """The next rows; where there are none, what is sealed, and the newest row's number at that moment."""
    rows = select(ledger).order_by(ledger.c.seq).limit(_BATCH)
    # One statement, so that both are of the same moment on each database.
    last = select(func.coalesce(func.max(ledger.c.seq), 0)).scalar_subquery()
    with engine.connect() as connection:
        batch = fetched(connection, rows if after is None else rows.where(ledger.c.seq > after))
        if batch:
            return batch, None, 0
        sealed = connection.execute(select(head, last.label("last"))).mappings().first()
        return [], sealed, sealed["last"] if sealed else 0


def fetched(connection: Connection, query: Select[Any]) -> Sequence[Sequence[Any]]:
    """The rows of a query, also where SQLite holds text that is none: its bytes are then lone surrogates."""
    try:
        return connection.execute(query).fetchall()
    except exc.OperationalError as error:
        if "Could not decode" not in str(error.orig):
            raise
    driver: Any = connection.connection.dbapi_connection
    driver.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    try:
        return connection.execute(query).fetchall()
    finally:
        driver.text_factory = str


def _short(value: object) -> str:
    """The beginning of a stored value, whatever it is."""
    return ascii(value)[1:13] if isinstance(value, str) else ascii(value)[:12]


def _said(count: int, newest: str) -> str:
    return newest if count else ""
