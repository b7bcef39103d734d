"""Reads what the ledger knows of nodes: what speaks against them, and where their quarantines stand."""

from collections.abc import Collection
from datetime import datetime, timedelta

from relight.clients.ledger import Ledger
from relight.domain.care_history import Quarantine, quarantines, signs_of
from relight.domain.ledger import Row, RowKind
from relight.domain.lemons import FORGOTTEN, Score, score

MOST_INCIDENTS = 500
"""The newest ones are looked through: on a cluster that has more within three months, older ones weigh little."""
MOST_ROWS = 5000
LOOKED_BACK = timedelta(days=400)
"""Quarantines that have told nothing for so long are not listed."""


async def scores(ledger: Ledger, cluster: str, nodes: Collection[str], now: datetime) -> dict[str, Score]:
    """The lemon scores of these nodes.

    Raises:
        LedgerUnavailableError: nothing is known of them.
    """
    if not nodes:
        return {}
    incidents = await ledger.incidents(cluster=cluster, limit=MOST_INCIDENTS)
    found = {}
    for node in nodes:
        rows = await ledger.rows(node=node, since=now - FORGOTTEN, limit=MOST_ROWS)
        mine = tuple(row for row in rows if row.cluster == cluster)
        found[node] = score(signs_of(node, incidents, mine), now)
    return found


async def in_care(ledger: Ledger, cluster: str, now: datetime) -> tuple[Quarantine, ...]:
    """The newest quarantine of each node that ever was in one, whether or not it goes on."""
    rows: list[Row] = []
    after = 0
    while page := await ledger.rows(kind=RowKind.CARE, since=now - LOOKED_BACK, after=after, limit=MOST_ROWS):
        rows += (row for row in page if row.cluster == cluster)
        after = page[-1].seq
        if len(page) < MOST_ROWS:
            break
    return quarantines(rows)
