"""The lemon scores of nodes, for activities."""

from collections.abc import Collection

from relight.activities.site import Site
from relight.clients import node_history
from relight.domain.lemons import Score


async def scores(site: Site, nodes: Collection[str]) -> dict[str, Score]:
    """The lemon scores of these nodes now.

    Raises:
        LedgerUnavailableError: nothing is known of them.
    """
    return await node_history.scores(site.ledger, site.cluster, nodes, site.clock())
