"""What it means when nothing is heard of a node's agent: pure, by our own clock.

An agent may be silent for many reasons, most of them its own. So silence is only one witness: with a second one the
node counts as lost, and then nothing is done before Slurm has declared it down, for only that ends its job.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.attempts import Attempt
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.watching import node_lost_id

LATE = timedelta(seconds=2)
LATE_SHARE = 0.4
"""A beat may be so much later than its period, whichever is more: by the way, and by what keeps the agent or us busy.

With a beat each 5 s that makes 7 s of silence; with a look each second and 2 s for the second witness, 10 s are kept.
"""
SILENT, BOOTED = "NODE_SILENT", "NODE_BOOTED"
"""Signatures of the evidence on a node that Slurm has not declared down."""
_WORDS = {SILENT: "is silent", BOOTED: "has been booted anew"}


def silent_after(beat: timedelta) -> timedelta:
    """How long nothing must have been heard of an agent that beats so often, before its node is looked at."""
    return beat + max(LATE, LATE_SHARE * beat)


def common_cause(silent: int, beating: int) -> bool:
    """True when more agents fell silent than are left: that is our network or ourselves, not their nodes."""
    return silent > beating


class Lost(NamedTuple):
    """A node that is lost before Slurm has said so."""

    node: str
    last_beat: datetime
    """When its agent was last heard of; for a node that was booted, before that."""
    decides_within: timedelta
    """How long Slurm may take to declare it down; 0: it never does."""
    now: datetime


def node_silent(attempt: Attempt, lost: Lost, beat: timedelta, witness: Evidence) -> Detection:
    """A running attempt's node of which nothing is heard, with the second witness that it is gone."""
    told = f"its agent, which beats every {beat.total_seconds():g} s, was last heard of"
    text = f"{lost.node} {_WORDS[SILENT]}: {told} {(lost.now - lost.last_beat).total_seconds():.0f} s ago"
    silence = Evidence(source=Source.AGENT, text=text, signature=SILENT, node=lost.node, at=lost.last_beat)
    return _detection(attempt, lost, silence, witness)


def node_booted(attempt: Attempt, lost: Lost) -> Detection | None:
    """A running attempt's node whose kernel was started anew; None where the attempt may have begun after that."""
    if attempt.seen_at > lost.last_beat:
        return None
    text = f"{lost.node} {_WORDS[BOOTED]}: its agent tells of another boot than at {lost.last_beat:%H:%M:%S} UTC"
    seen = Evidence(source=Source.AGENT, text=text, signature=BOOTED, node=lost.node, at=lost.now)
    return _detection(attempt, lost, seen)


def _detection(attempt: Attempt, lost: Lost, *evidence: Evidence) -> Detection:
    return Detection(
        id=node_lost_id(attempt, lost.node),
        attempt=attempt.key,
        kind=Interruption.NODE_LOST,
        detected_at=lost.now,
        occurred_at=lost.last_beat,
        evidence=evidence,
        slurm_decides_within=lost.decides_within,
    )


def shows_loss(evidence: Evidence) -> bool:
    """True for the word of a node's agent, or its silence, that the node is lost."""
    return evidence.signature in _WORDS


def lost_before_slurm(detection: Detection) -> str:
    """The node that is lost before Slurm has said so; empty for all other findings."""
    return next((e.node for e in detection.evidence if e.node and shows_loss(e)), "")


def waits_for_slurm(detection: Detection) -> str:
    """What an incident that rests on this waits for, in words; empty where Slurm has decided already."""
    within = detection.slurm_decides_within
    seen = next((e for e in detection.evidence if shows_loss(e)), None)
    if within is None or seen is None:
        return ""
    what = f"{seen.node} {_WORDS[str(seen.signature)]}"
    if not within:
        return f"{what}; Slurm never declares a node down by itself here (SlurmdTimeout=0)"
    return f"{what}; waiting for Slurm to declare it down (up to {within.total_seconds():.0f} s)"
