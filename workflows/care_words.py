"""What people say about a node in quarantine, and whether it counts. The workflow records it and acts on it."""

from datetime import datetime
from typing import NamedTuple

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from relight.domain.approvals import Approval, Request, hear_signed
    from relight.domain.base import Value
    from relight.domain.care import Word, WordKind
    from relight.domain.signatures import SignedDecision
    from relight.workflows.approval import check_size

MOST_SAID = 4000
"""Characters of a name and a reason: a reason, not a report."""


class ReleaseSay(Value):
    """What the update `release` carries: a signed word (`relight release`), or a bare one where a site takes those."""

    signed: SignedDecision | None = None
    by: str = ""
    reason: str = ""


class KeepSay(Value):
    """What the update `keep` carries. A word that keeps a node out needs no proof of who says it."""

    by: str = ""
    reason: str = ""


class HeardRelease(NamedTuple):
    """What became of a word that the node is repaired."""

    word: Word | None
    """None: it does not count."""
    wrong: str = ""


def hear_release(say: ReleaseSay, request: Request, nonces: tuple[str, ...], now: datetime) -> HeardRelease:
    """Judge a person's word that the node is repaired: as an approval of its return, since that is what follows.

    Args:
        say: as it came.
        request: the return of this very node under this very mark; who may approve that may release.
        nonces: of signed words that were heard before.
        now: the time.
    """
    if say.signed is None:
        if not request.trust_bare:
            return HeardRelease(
                None, "this site takes no bare words (trust_temporal_ui is false); use `relight release`"
            )
        return HeardRelease(Word(kind=WordKind.RELEASE, by=say.by, reason=say.reason, at=now))
    heard = hear_signed(Approval(request=request, nonces=nonces), say.signed, now)
    if not heard.counts or not heard.decision.approved:
        return HeardRelease(None, heard.remark or "a release says yes")
    said = heard.decision
    return HeardRelease(Word(kind=WordKind.RELEASE, by=said.by, reason=said.reason, at=now, verified=True))


def check_release(say: ReleaseSay) -> None:
    """Refuse what is far too long, so that it leaves nothing in the history.

    Raises:
        ValueError: with what is accepted.
    """
    if say.signed:
        check_size(say.signed)
    check_said(say.by, say.reason)


def check_said(*words: str) -> None:
    """The same for plain words."""
    size = sum(map(len, words))
    if size > MOST_SAID:
        raise ValueError(f"a name and a reason of {size} characters; accepted: at most {MOST_SAID}")
