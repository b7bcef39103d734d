"""The audit trail as it is checked: findings, and the anchors by which a cut end shows. Pure."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from relight.domain.base import Value, canonical_json

ANCHOR = "relight-anchor"
"""Names our lines in a log that others write to as well."""
MOST_FINDINGS = 200
"""Findings that are told one by one; of the others, how many there are."""


class Rule(StrEnum):
    """What a finding speaks against."""

    CHAIN = "chain"
    """Each row is as it was written, in the place where it was written, and the newest is the one sealed."""
    ANCHOR = "anchor"
    """What was anchored elsewhere is still there."""
    READABLE = "readable"
    """A row holds what its kind says."""
    PLAN = "plan"
    """Nothing is done for an incident without a plan, or in mode monitor."""
    APPROVAL = "approval"
    """What people had to approve was approved by enough of them, by their signatures, in time."""
    DOUBLE = "double"
    """No attempt is restarted twice."""
    INTENT = "intent"
    """No effect without the intent before it."""
    END = "end"
    """One end for each incident."""


class Finding(Value):
    """Something in the ledger that is not as it must be."""

    rule: Rule
    seq: int | None = None
    """The row, where it is one."""
    incident: str = ""
    expected: str
    found: str


class Report(Value):
    """What a check of the whole audit trail found."""

    rows: int
    head: str
    """Hash of the newest row; empty where there is none."""
    anchors: int
    """Anchors of this ledger that were looked at."""
    findings: tuple[Finding, ...]
    """At most `MOST_FINDINGS`, in the order found."""
    found: int
    """How many there are in all."""
    unproven: int
    """Decisions that count and were written before signatures were kept (version 0.1): believed, not judged again."""

    @property
    def ok(self) -> bool:
        """True where there is nothing."""
        return not self.found


class Anchor(Value):
    """The head of a ledger at one moment, as it is kept elsewhere."""

    cluster: str
    ledger: str
    """Hash of its first row: a ledger that was begun anew has another."""
    seq: int
    hash: str
    at: datetime
    mac: str = ""
    """By the ledger's own key, hexadecimal; empty until it is made."""

    @property
    def text(self) -> str:
        """What the MAC is over. No row and no seal begins like it, so neither can be taken for the other."""
        return f"anchor v1 {canonical_json(self._body())}"

    @property
    def line(self) -> str:
        """As it is kept: one line of JSON."""
        return canonical_json({**self._body(), "mac": self.mac})

    def _body(self) -> dict[str, Any]:
        at = self.at.astimezone(UTC).isoformat()
        return {"cluster": self.cluster, "ledger": self.ledger, "seq": self.seq, "hash": self.hash, "at": at}


def read_anchor(line: str) -> Anchor | None:
    """The anchor in a line of a file, or of a log that puts its own words before it; None where there is none.

    Half a line, as a full disk leaves it, is none: it says nothing of the ledger.
    """
    text = line.rpartition(f"{ANCHOR}: ")[2].strip()
    if not text.startswith("{"):
        return None
    try:
        return Anchor.model_validate(json.loads(text))
    except (ValueError, RecursionError):  # pydantic's and json's errors are both
        return None


class AnchorState(Value):
    """How the anchoring at one place goes."""

    seq: int = 0
    hash: str = ""
    """The head last kept there; empty: none yet."""
    at: datetime | None = None
    problem: str = ""
    """Why the last try failed; empty: it did not."""
    since: datetime | None = None
    """While it fails: since when."""


class AnchorStates(Value):
    """All of a cluster's, by the place's name."""

    places: dict[str, AnchorState] = {}


def anchors_cursor(cluster: str) -> str:
    """Where the ledger keeps how the anchoring goes."""
    return f"anchors/{cluster}"


def kept(anchor: Anchor) -> AnchorState:
    """After an anchor was kept."""
    return AnchorState(seq=anchor.seq, hash=anchor.hash, at=anchor.at)


def failed(before: AnchorState, why: str, now: datetime) -> AnchorState:
    """After it was not; what was kept before stands."""
    return before.model_copy(update={"problem": why[:300] or "no reason", "since": before.since or now})
