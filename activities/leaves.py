"""The last look at a leave, where it counts: no node is taken out of service without one in the ledger."""

from relight.activities.contracts import IncidentRef
from relight.activities.site import Site
from relight.domain.evidence import TRUST, Source, Trust
from relight.domain.guard import NodeAct
from relight.domain.ledger import RowKind

PLATFORM = frozenset(str(source) for source in Source if TRUST[source] is Trust.PLATFORM)


async def on_record(site: Site, ref: IncidentRef, node: str, action: NodeAct) -> bool:
    """True where the ledger holds the guard's grant for this incident, node and action, on a platform witness there.

    An argument that says so is not enough: it comes from a workflow, and anybody may have started one.
    """
    rows = await site.ledger.rows(incident=ref.id, node=node, kind=RowKind.LEAVE)
    for row in rows:
        leave, evidence = row.body.get("leave", {}), row.body.get("evidence", [])
        witnessed = any(each.get("node") == node and each.get("source") in PLATFORM for each in evidence)
        granted = leave.get("granted") is True and leave.get("action", str(NodeAct.DRAIN)) == action
        if granted and witnessed:
            return True
    return False
