"""What people are asked about a node in quarantine, and what they sign. Pure."""

import hashlib
from datetime import datetime, timedelta

from relight.domain.approvals import Request
from relight.domain.base import canonical_json
from relight.domain.rights import Approver, Right

WHAT = {
    Right.RETURN: "return {node} to service",
    Right.DOWN: "set {node} down: Slurm ends what hangs on it",
    Right.REBOOT: "ask the platform to reboot {node}",
    Right.REPLACE: "ask the platform to replace {node}",
}


def care_digest(cluster: str, node: str, mark: str, right: Right) -> str:
    """Names exactly this action on this node under this mark; an approval is bound to it."""
    body = {"cluster": cluster, "node": node, "mark": mark, "do": str(right)}
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


def care_request(
    right: Right,
    *,
    cluster: str,
    node: str,
    mark: str,
    run_id: str,
    why: str,
    needed: int,
    approvers: tuple[Approver, ...],
    trust_bare: bool,
    now: datetime,
    expires: timedelta,
    execution_expires: timedelta,
) -> Request:
    """What people are asked."""
    return Request(
        subject=f"node/{node}",
        run_id=run_id,
        digest=care_digest(cluster, node, mark, right),
        what=WHAT[right].format(node=node),
        why=why,
        rights=(right,),
        needed=needed,
        approvers=approvers,
        trust_bare=trust_bare,
        asked_at=now,
        until=now + expires,
        execution_expires=execution_expires,
    )
