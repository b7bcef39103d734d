"""Changes that somebody makes to a ledger with all rights on its SQLite database, but without key and anchor."""

import hashlib
import random
import sqlite3
from typing import NamedTuple

from relight.clients.ledger_chain import COLUMNS, Chain

KINDS = ("column", "removed", "removed, numbers closed up", "swapped", "forged", "cut", "cut and chained anew")


class Edit(NamedTuple):
    """What was done."""

    kind: str
    seq: int | None
    """The row at which it must show, within one; None: at the end, or by the anchor."""
    what: str


def drawn(kind: str, raw: sqlite3.Connection, dice: random.Random) -> Edit:
    """Make one edit of this kind at a random row."""
    last = raw.execute("SELECT max(seq) FROM ledger").fetchone()[0]
    seq, edit = dice.randint(2, last - 1), Edit(kind, None, "")
    match kind:
        case "column":
            edit = _column(raw, dice, dice.randint(1, last))
        case "removed":
            raw.execute("DELETE FROM ledger WHERE seq = ?", (seq,))
            edit = Edit(kind, seq, "")
        case "removed, numbers closed up":
            raw.execute("DELETE FROM ledger WHERE seq = ?", (seq,))
            raw.execute("UPDATE ledger SET seq = -seq WHERE seq > ?", (seq,))
            raw.execute("UPDATE ledger SET seq = -seq - 1 WHERE seq < 0")
            edit = Edit(kind, seq, "")
        case "swapped":
            other = dice.choice([n for n in range(1, last + 1) if n != seq])
            for old, new in ((seq, 0), (other, seq), (0, other)):
                raw.execute("UPDATE ledger SET seq = ? WHERE seq = ?", (new, old))
            edit = Edit(kind, min(seq, other), f"with {other}")
        case "forged":
            edit = _forged(raw, dice, last)
        case "cut":
            _cut(raw, seq)
            edit = Edit(kind, None, f"from {seq} on")
        case _:
            edit = _anew(raw, seq, last)
    return edit


def _column(raw: sqlite3.Connection, dice: random.Random, seq: int) -> Edit:
    name = dice.choice(COLUMNS)
    old = raw.execute(f"SELECT {name} FROM ledger WHERE seq = ?", (seq,)).fetchone()[0]  # noqa: S608
    values: list[object] = [" ", "x", "{}", "0" * 63, b"\x01", sqlite3.Binary(str(old).encode()), f"{old} ", f"é{old}"]
    if len(str(old)) > 1:
        place = dice.randrange(len(str(old)))
        values.append(f"{str(old)[:place]}{chr((ord(str(old)[place]) + 1) % 128)}{str(old)[place + 1 :]}")
    new: object = dice.choice((0, -3, seq + 10_000)) if name == "seq" else dice.choice(values)
    undecodable = name not in {"seq", "id", "prev_hash"} and dice.random() < 0.1  # noqa: PLR2004
    value = "CAST(? AS TEXT)" if undecodable else "?"
    new = b"\xff\xfe" if undecodable else new
    raw.execute(f"UPDATE ledger SET {name} = {value} WHERE seq = ?", (new, seq))  # noqa: S608
    return Edit("column", seq if name != "seq" else None, f"{name} = {new!r}")


def _forged(raw: sqlite3.Connection, dice: random.Random, last: int) -> Edit:
    """A row that looks right, in a place of its own: between two others, before the first, or after the last."""
    seq = dice.choice((last + 1, last + 1, dice.randint(2, last), 0, -7))
    if 0 < seq <= last:
        raw.execute("UPDATE ledger SET seq = -seq WHERE seq >= ?", (seq,))
        raw.execute("UPDATE ledger SET seq = -seq + 1 WHERE seq < 0")
    like = dice.randint(1, last)
    row = list(raw.execute("SELECT * FROM ledger WHERE seq <> ? LIMIT 1 OFFSET ?", (seq, like - 1)).fetchone())
    before = raw.execute("SELECT hash FROM ledger WHERE seq = ?", (seq - 1,)).fetchone()
    taken = raw.execute("SELECT 1 FROM ledger WHERE prev_hash = ?", before or ("",)).fetchone()
    row[0], row[1] = seq, f"{row[1]}/forged"
    row[10] = f"{dice.random()}" if taken or not before else before[0]
    row[11] = hashlib.sha256(repr(row).encode()).hexdigest()
    raw.execute(f"INSERT INTO ledger VALUES ({','.join('?' * len(row))})", row)  # noqa: S608
    return Edit("forged", None if seq < 1 else seq, f"as {seq}")


def _cut(raw: sqlite3.Connection, seq: int) -> None:
    raw.execute("DELETE FROM ledger WHERE seq >= ?", (seq,))


def _anew(raw: sqlite3.Connection, seq: int, last: int) -> Edit:
    """Cut off, written anew and chained with another key, the seal made with it too."""
    kept = [list(row) for row in raw.execute("SELECT * FROM ledger WHERE seq >= ? ORDER BY seq", (seq,))]
    newest = raw.execute("SELECT hash FROM ledger WHERE seq = ?", (seq - 1,)).fetchone()[0]
    _cut(raw, seq)
    chain = Chain(b"another key of thirty-two bytes!")
    for number, row in enumerate(kept, seq):
        stored = dict(zip(COLUMNS[1:10], row[1:10], strict=True)) | {"body": "{}"}
        linked = chain.link(stored, number, newest)
        raw.execute(f"INSERT INTO ledger VALUES ({','.join('?' * 12)})", [linked[name] for name in COLUMNS])  # noqa: S608
        newest = linked["hash"]
    raw.execute("UPDATE ledger_head SET seq = ?, hash = ?", (last, newest))
    return Edit("cut and chained anew", seq, "")
