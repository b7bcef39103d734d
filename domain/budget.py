"""The retry budget of a job's lineage: what its restarts were for, what gave them back, how long the next one waits.

Two counters stop a job, whichever is reached first:

- *Overall*: restarts in a row that did not get past the failure (`attempts_without_progress`), whatever their causes.
- *By cause*: restarts for one category of cause since the last new durable checkpoint (`retries`). A job that gets past
  its failed step each time and dies before it saves anything repeats the same hours; only this counter sees that.

What the platform did or witnessed (a broken node, a fault in the kernel log, Slurm's own requeue after a lost node)
is charged to `platform`, not to the user's categories. A preemption is no incident at all, so it is charged to nobody.

**A durable checkpoint**, as far as it can be known without looking into the checkpoint: the job's own output says that
one was written (`Mark.saved`), at a step beyond any that an earlier attempt is known to have written. Not so: a save
that is only begun or scheduled; the first step of a later attempt (what is seen first may be in the middle of it); a
save that nobody saw. What is not known gives nothing back. Where none of a job's attempts was ever seen to save,
passing the failed step counts instead.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.allowances import PLATFORM, name_of
from relight.domain.attempts import AttemptKey, Progress
from relight.domain.base import Value
from relight.domain.diagnosis import Category, Hypothesis
from relight.domain.evidence import Trust
from relight.domain.human import spoken
from relight.domain.incidents import MOVED, USED_AN_ATTEMPT, Incident, Outcome
from relight.domain.permits import Policy
from relight.domain.plan import Restart

MACHINES = frozenset(
    {Category.GPU, Category.NODE, Category.NETWORK, Category.STORAGE, Category.SCHEDULER, Category.STRAGGLER},
)
"""Categories that a platform witness makes the platform's own. A kernel that kills for memory tells of the user's."""
_RESTARTED = MOVED | USED_AN_ATTEMPT | {Outcome.RESTARTED_UNVERIFIED}
_WROTE = frozenset({"requeued", "released", "start set", "submitted"})
"""Steps of an incident by which the job was on its way again."""
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


class Mark(Value):
    """How far one attempt is known to have saved its work."""

    attempt: AttemptKey
    read: bool = True
    """Whether its output was read at all: of one that was not, no save is known, and none is ruled out."""
    saved: int | None = None
    """The newest step at which its output says that a checkpoint was written."""
    saved_at: datetime | None = None


def mark_of(key: AttemptKey, progress: Progress) -> Mark:
    """What an attempt's progress says of its saves."""
    read = bool(progress.files) or progress.last_step is not None
    return Mark(attempt=key, read=read, saved=progress.saved_step, saved_at=progress.saved_at)


class Charge(NamedTuple):
    """One restart, and what it was for."""

    incident: str
    at: datetime
    name: str
    """Whose budget: a cause of `retries`."""
    fruitless: bool
    """Whether it is known not to have got past the failure."""


class Budget(NamedTuple):
    """What a job has used of its restarts."""

    charges: tuple[Charge, ...]
    """Restarts not given back, newest first."""
    fruitless: int
    """Restarts in a row that did not get past the failure."""
    most_fruitless: int
    retries: Mapping[str, int]
    backoff: tuple[timedelta, ...]
    by_saves: bool
    """Whether the job is known to save checkpoints: then only a new one gives restarts back."""
    since: str
    """What gave back what was used before, in words; empty: nothing yet."""

    def used(self, name: str) -> int:
        """Restarts for that cause that count."""
        return sum(charge.name == name for charge in self.charges)

    def left(self, name: str) -> int:
        """Restarts for that cause that may still be made, were there no other limit."""
        return max(0, self.retries.get(name, 0) - self.used(name))

    @property
    def wait(self) -> timedelta:
        """How long the next restart waits."""
        return self.backoff[min(self.fruitless, len(self.backoff) - 1)]

    @property
    def why_wait(self) -> str:
        """For example `starts again after 5m: third failure without progress`; empty where it starts at once."""
        if not self.wait:
            return ""
        number = self.fruitless + 1
        which = _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"{number}th"
        return f"starts again after {spoken(self.wait)}: {which} failure without progress"

    def spent(self, name: str) -> str:
        """Why a restart for that cause is one too many; empty where it is not."""
        if self.fruitless >= self.most_fruitless:
            return f"{self.fruitless} restarts brought no progress"
        if self.left(name):
            return ""
        allowed = self.retries.get(name, 0)
        if not allowed:
            return f"the policy allows no restart for {name}"
        counted = self.since or ("no new checkpoint since" if self.by_saves else "no progress since")
        return f"{self.used(name)} of {allowed} restarts for {name} are used ({counted})"


def charged_to(cause: Hypothesis | None, restart: Restart | None) -> str:
    """Whose budget a restart for that cause counts against."""
    if restart is Restart.ADOPT:
        return PLATFORM
    if cause is None or cause.category is Category.CONTROL:
        return name_of(Category.UNKNOWN)
    # Beside the lines of the cause the verdict's evidence holds what the watchers told, such as that the job is FAILED.
    seen = any(e.trust is Trust.PLATFORM and e.signature == cause.signature for e in cause.evidence)
    own = cause.category in MACHINES and (bool(cause.drain_nodes) or seen)
    return PLATFORM if own else name_of(cause.category)


def restarted(incident: Incident) -> bool:
    """Whether the incident put the job on its way again; one that a person took over is that person's."""
    wrote = any(step.name in _WROTE for step in incident.steps)
    return incident.outcome in _RESTARTED or (incident.outcome is Outcome.FAILED and wrote)


def budget(earlier: Sequence[Incident], marks: Sequence[Mark], policy: Policy) -> Budget:
    """What is used, from the job's closed incidents (newest first) and how far its attempts are known to have saved."""
    by_saves = any(mark.saved is not None for mark in marks)
    charges: list[Charge] = []
    fruitless, counting, since = 0, True, ""
    for incident in earlier:
        newer = newer_save(incident.attempt, marks)
        passed = incident.outcome in MOVED
        if newer is not None or (passed and not by_saves):
            since = f"since the checkpoint of step {newer}" if newer is not None else "since training last moved on"
            break
        counting = counting and not passed
        if restarted(incident):
            in_vain = not passed and incident.outcome is not Outcome.RESTARTED_UNVERIFIED
            fruitless += counting and in_vain
            charges.append(Charge(incident.id, incident.opened_at, _name(incident), in_vain))
    return Budget(
        charges=tuple(charges),
        fruitless=fruitless,
        most_fruitless=policy.attempts_without_progress,
        retries=policy.retries,
        backoff=policy.backoff,
        by_saves=by_saves,
        since=since,
    )


def newer_save(attempt: AttemptKey, marks: Sequence[Mark]) -> int | None:
    """The newest step saved after that attempt, where it is beyond all that was saved up to its end; None: not known.

    Where the output of an attempt up to then was not read, and no save is known, the first later save may repeat one
    of its: it only sets the mark that another must pass.
    """
    before = [mark for mark in marks if mark.attempt.submit_time <= attempt.submit_time]
    after = [m.saved for m in _in_order(marks) if m.attempt.submit_time > attempt.submit_time and m.saved is not None]
    known = [mark.saved for mark in before if mark.saved is not None]
    if not known and not (before and all(mark.read for mark in before)):
        known, after = after[:1], after[1:]
    newest = max(after, default=None)
    return newest if newest is not None and newest > max(known, default=-1) else None


def _in_order(marks: Sequence[Mark]) -> list[Mark]:
    return sorted(marks, key=lambda mark: mark.attempt.submit_time)


def _name(incident: Incident) -> str:
    restart = incident.plan.restart if incident.plan else None
    return charged_to(incident.diagnosis.verdict if incident.diagnosis else None, restart)
