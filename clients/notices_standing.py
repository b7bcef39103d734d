"""Where the channels stand, as the ledger has it: for `relight status`, and for metrics."""

from collections.abc import Iterable

from relight.clients.ledger import Ledger
from relight.domain.notices_channel import Standing, cursor_name


async def standings(ledger: Ledger, cluster: str, channels: Iterable[str]) -> dict[str, Standing | None]:
    """Where each channel of a cluster stands; None: nothing has followed the ledger for it yet.

    Of a standing, `undelivered` says how many notices wait, and `failing` since when nothing gets through.

    Raises:
        LedgerError: when the ledger does not answer.
    """
    found: dict[str, Standing | None] = {}
    for name in channels:
        known = await ledger.cursor(cursor_name(cluster, name))
        found[name] = Standing.model_validate(known) if known is not None else None
    return found
