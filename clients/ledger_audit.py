"""The audit trail read from its first row to its last: checked, listed, exported. It blocks, and writes nothing.

It opens what nobody else would open any more: a ledger whose end was tampered with.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine, select, true

from relight.clients import ledger_schema as db
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.ledger_chain import Chain, Walk
from relight.clients.ledger_key import read_key
from relight.clients.ledger_lives import Lived, lived
from relight.clients.ledger_rows import read_row, stamp, storable
from relight.clients.ledger_versions import version_of
from relight.domain.audit import MOST_FINDINGS, Anchor, Finding, Report, Rule
from relight.domain.ledger import Row, RowKind

_PAGE = 1000
_TELL_EVERY = 50_000


class Wanted(NamedTuple):
    """Which rows are read; what is empty or None leaves none out."""

    incident: str = ""
    """An incident's id, or the id of a node's care."""
    attempts: tuple[str, ...] | None = None
    """Text forms of attempts' keys: those of one job."""
    node: str = ""
    kinds: tuple[RowKind, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    """The first moment that is left out."""


class LedgerAudit:
    """Reads one ledger."""

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine = engine
        self._chain = Chain(key)

    @classmethod
    def open(cls, url: str, key_file: Path) -> "LedgerAudit":
        """Open it as it is: neither made, nor brought up to date, nor refused for what is wrong with its rows.

        Raises:
            LedgerUnavailableError: there is none, no key, or the database does not answer.
            LedgerCorruptError: the key file is open to others, or holds no key.
        """
        key = read_key(key_file)
        if key is None:
            raise LedgerUnavailableError(f"the ledger's key file {key_file} is missing: without it nothing is proven")
        with db.told():
            engine = db.connect(url)
            with engine.connect() as connection:
                found = version_of(connection)
        if found is None:
            engine.dispose()
            raise LedgerUnavailableError("there is no ledger in this database")
        return cls(engine, key)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def rows(self, wanted: Wanted, *, backwards: bool = False) -> Iterator[Row]:
        """The rows that fit, in the order written or the newest first, a page at a time.

        Raises:
            LedgerUnavailableError: the database does not answer.
            LedgerCorruptError: a row cannot be read.
        """
        table = db.ledger
        query = select(table).order_by(table.c.seq.desc() if backwards else table.c.seq).limit(_PAGE)
        if wanted.incident:
            query = query.where(table.c.incident == storable(wanted.incident))
        if wanted.attempts is not None:
            query = query.where(table.c.attempt.in_([storable(each) for each in wanted.attempts]))
        if wanted.node:
            query = query.where(table.c.node == storable(wanted.node))
        if wanted.kinds:
            query = query.where(table.c.kind.in_([kind.value for kind in wanted.kinds]))
        if wanted.since:
            query = query.where(table.c.at >= stamp(wanted.since))
        if wanted.until:
            query = query.where(table.c.at < stamp(wanted.until))
        after: int | None = None
        while True:
            with db.told(), self._engine.connect() as connection:
                on = true() if after is None else table.c.seq < after if backwards else table.c.seq > after
                found = connection.execute(query.where(on)).mappings().all()
            yield from (read_row(row) for row in found)
            if len(found) < _PAGE:
                return
            after = found[-1]["seq"]

    def verify(
        self, anchors: Iterable[tuple[str, Anchor]] = (), *, cluster: str = "", say: Callable[[int], None] | None = None
    ) -> Report:
        """Check the chain, the life cycles, and that what was anchored is still there.

        Args:
            anchors: each with the place it was read from.
            cluster: anchors of other clusters are of other ledgers, and not looked at.
            say: is called with the number of rows checked, every now and then.

        Raises:
            LedgerUnavailableError: the database does not answer.
            LedgerCorruptError: it cannot be read at all.
        """
        with db.told():
            check = _Check(self._chain, self._engine, [each for each in anchors if each[1].cluster == cluster])
            with lived(self._engine) as lives:
                check.walk(say)
                return check.report(lives())


class _Check:
    """One check from beginning to end."""

    def __init__(self, chain: Chain, engine: Engine, anchors: list[tuple[str, Anchor]]) -> None:
        self._chain, self._walk = chain, Walk(chain, engine)
        self._count = len(anchors)
        self._findings: list[Finding] = []
        self._found = 0
        self._ledger = ""
        self._anchors: dict[int, dict[str, tuple[str, Anchor]]] = {}
        """By number and hash of the row anchored, the first of each."""
        for place, anchor in anchors:
            self._expect(place, anchor)

    def walk(self, say: Callable[[int], None] | None) -> None:
        """The chain and the anchors, from the first row to the last."""
        for row, broken in self._walk:
            for each in broken:
                self._add(Finding(rule=Rule.CHAIN, seq=each.seq, expected=each.expected, found=each.found))
            self._ledger = self._ledger or row[11]
            if row[0] in self._anchors:
                self._compare(row[0], row[11])
            if say and self._walk.count % _TELL_EVERY == 0:
                say(self._walk.count)
        if problem := self._walk.end_problem:
            self._add(Finding(rule=Rule.CHAIN, expected="the newest row is the one sealed", found=problem))
        self._compare_rest()

    def report(self, lives: Lived) -> Report:
        """All that was found, what is wrong with the chain first."""
        count = self._walk.count
        return Report(
            rows=count,
            head=ascii(self._walk.newest)[1:-1] if count else "",
            anchors=self._count,
            findings=(*self._findings, *lives.findings)[:MOST_FINDINGS],
            found=self._found + lives.found,
            unproven=lives.unproven,
        )

    def _add(self, finding: Finding) -> None:
        self._found += 1
        if len(self._findings) < MOST_FINDINGS:
            self._findings.append(finding)

    def _expect(self, place: str, anchor: Anchor) -> None:
        if self._chain.made(anchor):
            self._anchors.setdefault(anchor.seq, {}).setdefault(anchor.hash, (place, anchor))
            return
        told = f"{place}: row {anchor.seq}, {anchor.at.isoformat()}: its MAC is of another key, or it was changed"
        self._add(Finding(rule=Rule.ANCHOR, seq=anchor.seq, expected="an anchor made with this key", found=told))

    def _compare(self, seq: int, found: str) -> None:
        for place, anchor in self._anchors.pop(seq).values():
            if anchor.hash == found and anchor.ledger == self._ledger:
                continue
            expected = f"hash {anchor.hash[:12]}, anchored {anchor.at.isoformat()} at {place}"
            other = (
                "" if anchor.ledger == self._ledger else f" of a ledger that begins with {ascii(self._ledger)[1:13]}"
            )
            self._add(Finding(rule=Rule.ANCHOR, seq=seq, expected=expected, found=f"hash {ascii(found)[1:13]}{other}"))

    def _compare_rest(self) -> None:
        """Those whose row is not there: the end was cut off, or the ledger is another."""
        for seq in sorted(self._anchors):
            for place, anchor in self._anchors[seq].values():
                expected = f"row {seq}, anchored {anchor.at.isoformat()} at {place}"
                found = f"the ledger ends with row {self._walk.last}"
                self._add(Finding(rule=Rule.ANCHOR, seq=seq, expected=expected, found=found))
