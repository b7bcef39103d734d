"""The life cycles that the audit trail tells, checked beside its chain: in a process of its own where there is much."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Engine, func, select

from relight.clients.ledger import LedgerUnavailableError
from relight.clients.ledger_chain import fetched
from relight.clients.ledger_schema import connect, in_memory, ledger, told
from relight.domain.audit import MOST_FINDINGS, Finding
from relight.domain.audit_lives import LOOKED_AT, Lives, Written

MUCH = 100_000
"""Rows from which on a second process is worth its start."""
_BATCH = 2000
_NAMES = tuple(name for name in Written._fields if name != "seq")


class Lived(NamedTuple):
    """What is wrong with the life cycles."""

    findings: tuple[Finding, ...]
    """At most `MOST_FINDINGS`."""
    found: int
    unproven: int


@contextmanager
def lived(engine: Engine) -> Iterator[Callable[[], Lived]]:
    """Begins to check, and gives what returns the result; a ledger with much in it meanwhile, on another core.

    Raises:
        LedgerUnavailableError: the database does not answer, or the process was ended.
    """
    with engine.connect() as connection:
        much = (connection.scalar(select(func.max(ledger.c.seq))) or 0) >= MUCH
    if not much or in_memory(engine.url.database) or (os.cpu_count() or 1) < 2:  # noqa: PLR2004 - there is no other
        yield partial(check, engine)
        return
    # Not forked: connections and threads do not survive that.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        future = pool.submit(_check_at, engine.url.render_as_string(hide_password=False))

        def result() -> Lived:
            try:
                return future.result()
            except (RuntimeError, OSError) as error:  # BrokenProcessPool is the first
                raise LedgerUnavailableError("the process that checked the life cycles was ended") from error

        yield result


def _check_at(url: str) -> Lived:
    with told():
        engine = connect(url)
        try:
            return check(engine)
        finally:
            engine.dispose()


def check(engine: Engine) -> Lived:
    """Check all incidents, row after row."""
    lives, findings, found = Lives(), list[Finding](), 0
    for row in _rows(engine):
        try:
            wrong = list(lives.see(Written(*row)))
        except ValueError:  # text that cannot be told of: the chain shows that row
            continue
        found += len(wrong)
        findings += wrong[: MOST_FINDINGS - len(findings)]
    return Lived(tuple(findings), found, lives.unproven)


def _rows(engine: Engine) -> Iterator[Sequence[Any]]:
    kinds = sorted(kind.value for kind in LOOKED_AT)
    # By number, page after page: concatenated, the kind is no reason to go by its index and sort.
    wanted = ledger.c.kind.concat("").in_(kinds)
    query = select(ledger.c.seq, *(ledger.c[name] for name in _NAMES)).where(wanted)
    query = query.order_by(ledger.c.seq).limit(_BATCH)
    after: int | None = None
    while True:
        with engine.connect() as connection:
            batch = fetched(connection, query if after is None else query.where(ledger.c.seq > after))
        yield from batch
        if len(batch) < _BATCH:
            return
        after = batch[-1][0]
