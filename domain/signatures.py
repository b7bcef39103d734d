"""Signed decisions: Ed25519 (RFC 8032) over what was said, about which plan, when. Pure, so a replay judges the same.

The text signed begins with a context of its own: a signature that was made for anything else is none here.
"""

from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from relight.domain.base import Value, canonical_json
from relight.domain.plan import Decision
from relight.domain.rights import key_bytes

CONTEXT = "relight decision v1"


class SignedDecision(Value):
    """A decision made with the CLI or console, as it travels to the workflow."""

    incident: str
    """What was decided on: an incident's id, or `node/<name>`."""
    run_id: str = ""
    """The run of the workflow that asked. Empty in what version 0.1 sent."""
    decision: Decision
    at: datetime
    nonce: str = ""
    """Tells apart two equal decisions of one moment; one that was heard before is a replay."""
    key: str = ""
    """The signer's public key, as it stands in the list of approvers."""
    signature: str
    """Ed25519, hexadecimal."""

    @property
    def text(self) -> bytes:
        """What is signed: all of it but key and signature, as canonical JSON."""
        said = self.decision
        body = {
            "context": CONTEXT,
            "incident": self.incident,
            "run_id": self.run_id,
            "plan": said.digest,
            "decision": "approve" if said.approved else "reject",
            "by": said.by,
            "reason": said.reason,
            "nonce": self.nonce,
            "at": self.at.astimezone(UTC).isoformat(),
        }
        return canonical_json(body).encode(errors="backslashreplace")


def signed(decision: SignedDecision, key: Ed25519PrivateKey) -> SignedDecision:
    """The decision with its signature."""
    return decision.model_copy(update={"signature": key.sign(decision.text).hex()})


def genuine(decision: SignedDecision, key: str) -> bool:
    """True where the decision was signed with the private half of this key (as `rights.public_key` returns it)."""
    if decision.at.tzinfo is None:
        return False  # it would be taken for this machine's own time
    try:
        Ed25519PublicKey.from_public_bytes(key_bytes(key)).verify(bytes.fromhex(decision.signature), decision.text)
    except (InvalidSignature, ValueError, OverflowError):
        return False
    return True
