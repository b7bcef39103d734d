"""A plan: the exact actions proposed for one incident. It can be printed, approved, then carried out."""

import hashlib
from datetime import datetime, timedelta
from enum import StrEnum

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value, canonical_json, clip
from relight.domain.checkpoint_look import FallBack


class Mode(StrEnum):
    """How much Relight may do."""

    MONITOR = "monitor"
    """Decide and record, touch nothing."""
    APPROVE = "approve"
    """A person decides."""
    AUTO = "auto"


_POWER = (Mode.MONITOR, Mode.APPROVE, Mode.AUTO)


def lowest(*modes: Mode) -> Mode:
    """The mode with the least power among those given."""
    return min(modes, key=_POWER.index)


class Restart(StrEnum):
    """How training gets going again."""

    REQUEUE = "requeue"
    """`scontrol requeue`, by us."""
    ADOPT = "adopt"
    """Slurm has requeued the job itself (a lost node, a failed launch): exclusions, release and start time only."""
    SUBMIT = "submit"
    """A fresh job from the attempt's script, by us, where Slurm cannot queue the old one again."""
    NONE = "none"


class Plan(Value):
    """What is proposed, and why exactly this."""

    attempt: AttemptKey
    restart: Restart
    cancel: bool = False
    """End an attempt that still runs and that a retry would not help."""
    release: bool = False
    """Undo the hold that Slurm itself put on the job after a failed launch."""
    exclude: tuple[str, ...] = ()
    """Nodes kept out of this job's retry, added to the user's own list."""
    drain: tuple[str, ...] = ()
    """Nodes proposed to be drained for everybody; each also needs leave from the guard."""
    fall_back: FallBack | None = None
    """What is changed in the job's checkpoints, so that the next attempt goes on from an older one; None: nothing."""
    reason: str
    """Why this plan, one sentence for a person."""
    requeue_until: datetime | None = None
    """After this Slurm forgets the ended attempt (MinJobAge) and a requeue is impossible."""
    fresh: str = ""
    """What a person can do then: the command that submits the job anew from what was kept of it."""
    submission: str = ""
    """Stands for all that is submitted, where a fresh job is."""
    basis: str = ""
    """Stands for what the plan rests on: the policy's version, the cause and its evidence."""
    requested_by: str = ""
    """The person who asked for it by command, and may not approve it; empty: Relight proposes it by itself."""

    @property
    def digest(self) -> str:
        """SHA-256 over actions and basis; an approval is bound to it. The wording of the reason is not part."""
        body = self.model_dump(mode="json", include={"attempt", "restart", "cancel", "exclude", "drain"})
        # Not always: plans made before there were these keep their digests.
        if self.release:
            body["release"] = True
        if self.submission:
            body["submission"] = self.submission
        if self.basis:
            body["basis"] = self.basis
        if self.fall_back:
            body["fall_back"] = self.fall_back.model_dump(mode="json")
        return hashlib.sha256(canonical_json(body).encode()).hexdigest()

    @property
    def acts(self) -> bool:
        """True when carrying it out changes anything."""
        return self.restart is not Restart.NONE or self.cancel or bool(self.drain)

    def describe(self) -> str:
        """The actions in words, for example `requeue job 7 excluding n2; drain n2`."""
        parts = []
        job = f"job {self.attempt.job_id}"
        without = f" excluding {','.join(self.exclude)}" if self.exclude else ""
        if self.restart is Restart.REQUEUE:
            parts.append(f"requeue {job}{without}")
        elif self.restart is Restart.SUBMIT:
            parts.append(f"submit {job} anew{without}")
        elif self.restart is Restart.ADOPT:
            held = " and release it" if self.release else ""
            parts.append(f"adopt Slurm's own requeue of {job}{without}{held}")
        if self.fall_back:
            parts.append(self.fall_back.describe())
        if self.cancel:
            parts.append(f"cancel {job}")
        if self.drain:
            parts.append(f"drain {','.join(self.drain)}")
        return "; ".join(parts) or f"leave {job} as it is"


class Decision(Value):
    """A person's (or a policy's) word on a plan."""

    approved: bool
    digest: str
    """The plan's digest, or its first 8 or more digits."""
    by: str = ""
    """Who says so; a bare Temporal signal proves no identity, so it is recorded as unverified."""
    reason: str = ""
    verified: bool = False


MIN_DIGEST_PREFIX = 8


def digest_fits(said: str, digest: str) -> str | None:
    """Why a digest, or the first digits of one, does not name this plan; None when it does."""
    prefix = said.strip().lower()
    if len(prefix) < MIN_DIGEST_PREFIX:
        return f"digest {prefix!r} is shorter than {MIN_DIGEST_PREFIX} digits"
    if not digest.startswith(prefix):
        return f"digest {clip(prefix, 64)!r} is of another plan; this one is {digest[:12]}"
    return None


def decision_fits(decision: Decision, plan: Plan) -> str | None:
    """Why this decision does not count for this plan, or None when it does."""
    return digest_fits(decision.digest, plan.digest)


MIN_JOB_AGE_MARGIN = timedelta(seconds=60)
"""How long before Slurm may purge the record a requeue is no longer tried."""
