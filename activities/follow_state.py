"""One attempt being followed, and what new lines change about it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from relight.activities.follow_lines import Said
from relight.activities.follow_saves import Saves, Silent, lateness
from relight.attribution.progress_count import CERTAIN, Counted, counted_all
from relight.attribution.progress_marks import Edge, Mark, Measured, PhaseMark, StepMark
from relight.clients.logs import Chunk, Cursor
from relight.domain.attempts import Attempt, LogPosition, Progress
from relight.domain.evidence import Detection, Evidence
from relight.domain.findings import Learnt, numerics_detection, slow_detection
from relight.domain.laggards import Ranks, RankTime
from relight.domain.numerics import with_losses
from relight.domain.progress import (
    FATAL_IN_FLIGHT,
    FATAL_STEPS,
    CpuSample,
    HangPolicy,
    Sign,
    silence_limit,
    standstill_limit,
    stride,
)
from relight.domain.rhythm import caught_up, with_signs
from relight.domain.step_outputs import step_outputs
from relight.domain.straggler import skipped, with_steps

LATE = timedelta(seconds=5)
"""Lines found so long after the last look may have been there for as long: they tell nothing of how lines arrive."""
BEHIND = timedelta(seconds=10)
"""Who has been behind in a file for so long goes on near its end, if that is far."""
FAR = 16 << 10
"""Bytes: a hundred lines or more, which bring a follower up to date. What lies before them is over."""


@dataclass
class Standing:
    """How far one file of an attempt has been read."""

    cursor: Cursor | None = None
    start: int = 0
    """Where this attempt's output begins."""
    seen: datetime | None = None
    """When all that it held had been read; None: not yet by this follower."""
    unread: bool = False
    """More was there at the last look, or it was not come to."""

    def is_live(self, now: datetime) -> bool:
        """Whether what is new in it has become visible just now."""
        return self.seen is not None and now - self.seen <= LATE

    def far(self, now: datetime) -> int | None:
        """How much of it may still be read before what is new."""
        return None if self.seen is not None and now - self.seen <= BEHIND else FAR

    def take(self, chunk: Chunk, now: datetime) -> None:
        """Take where a read ended."""
        self.start = 0 if chunk.restarted or self.cursor is None else self.start
        self.cursor, self.unread = chunk.cursor, chunk.more
        if not chunk.more:
            self.seen = now


STEP_FILES = 8
"""Files of its steps that are followed; a diagnosis reads all of them."""


@dataclass(eq=False)
class Following:
    """One attempt being followed; bounded in memory whatever its output."""

    attempt: Attempt
    progress: Progress
    """Without the positions, which stand in it as they were last written down."""
    stepping: bool
    """Whether this job is known to print steps, from this attempt or an earlier one."""
    arrival: datetime
    """The last sign of life: a step, or news of a phase."""
    learnt: Learnt = field(default_factory=Learnt)
    precise: str = ""
    """The progress file that the job names."""
    ranks: Ranks = field(default_factory=Ranks)
    """What its ranks say in it of themselves."""
    standing: dict[str, Standing] = field(default_factory=dict)
    counted: dict[str, Counted] = field(default_factory=dict)
    """How each file counts its steps."""
    saves: Saves = field(default_factory=Saves)
    steps_after_fatal: int = 0
    """In lines that were caught up with."""
    found: list[Detection] = field(default_factory=list)
    """Not yet written down."""
    moved: bool = False
    """Whether there is anything to be written down."""
    urgent: bool = False
    """Whether that cannot wait for its turn."""
    written_at: datetime | None = None
    learnt_at: datetime | None = None
    """When what was learnt was last written down."""
    baseline: float | None = None
    baseline_from: CpuSample | None = None
    next_sample: datetime | None = None
    suspected: bool = False
    suspected_from: CpuSample | None = None
    blind: set[str] = field(default_factory=set)
    """Files that cannot be read now."""
    running: bool = True
    """Whether its end has not been seen yet."""

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The attempt's outputs, the progress file that it names, and the first of its steps' own files."""
        named = (self.precise,) if self.precise else ()
        return tuple(dict.fromkeys((*self.attempt.outputs, *named, *step_outputs(self.attempt)[:STEP_FILES])))

    @property
    def more(self) -> bool:
        """Whether something is there that has not been read."""
        return any(standing.unread for standing in self.standing.values())

    @property
    def found_any(self) -> bool:
        """Whether any of its files has been there."""
        return any(self.standing[path].cursor for path in self.files if path in self.standing)

    @property
    def fatal(self) -> Evidence | None:
        """A line that says that the attempt is lost, while no step has followed it."""
        return self.learnt.fatal

    def limit(self, policy: HangPolicy) -> timedelta:
        """How long it may be silent now."""
        return silence_limit(self.learnt.rhythm, policy, stepped=self.progress.last_step is not None)

    def limit_if_still(self, policy: HangPolicy) -> timedelta:
        """The same where it is seen to do nothing."""
        return standstill_limit(self.learnt.rhythm, policy, stepped=self.progress.last_step is not None)

    def positions(self) -> dict[str, LogPosition]:
        """How far its files have been read, as it is written down."""
        found = {}
        for path, standing in self.standing.items():
            if at := standing.cursor:
                known = self.counted[path].model_dump(exclude_defaults=True) if path in self.counted else {}
                found[path] = LogPosition(
                    inode=at.inode, offset=at.offset, mark=at.mark, start=standing.start, counted=known
                )
        return {**self.progress.files, **found}

    def take(self, path: str, said: Said, now: datetime, policy: HangPolicy, *, live: bool = True) -> None:
        """Take what lines of one of its files say.

        Args:
            path: which.
            said: what they say.
            now: when they were read.
            policy: how long it may be silent.
            live: whether they have become visible just now. Others tell where the job stands, not how it got there.
        """
        if path == self.precise:
            self.ranks = self.ranks.with_times(_rank_times(said.marks))
        marks = self._counted(path, said.marks)
        steps = [mark for mark in marks if isinstance(mark, StepMark)]
        if steps and not self._counts(path, now, policy):
            marks = [mark for mark in marks if not isinstance(mark, StepMark)]
            steps = []
        silence = Silent(now - self.arrival, self.limit(policy))
        self._saved(marks, now)
        waited_for = self._count_saves(marks)
        signs = [sign for mark in marks if (sign := _sign(mark))]
        if live:
            rhythm = with_signs(self.learnt.rhythm, (now - self.arrival).total_seconds(), signs)
            if rhythm is not self.learnt.rhythm:
                self.lives(now)
        else:
            rhythm = caught_up(self.learnt.rhythm, signs)
        learnt: dict[str, Any] = {"rhythm": rhythm} if rhythm is not self.learnt.rhythm else {}
        # Losses may stand in another file than the steps (a bar on stderr), but not beside a progress file.
        if path == self.precise or self.learnt.source != self.precise:
            learnt |= self._numbers(marks)
        if learnt:
            self.learnt = self.learnt.model_copy(update=learnt)
        if steps:
            self._stepped(steps, now, live=live, silence=silence, saves=waited_for)
        if said.fatal and not self.fatal:
            self._doomed(said.fatal)
        # What began and ended in lines that are caught up with is over.
        if not self.more:
            self._tell(now)

    def lives(self, now: datetime) -> None:
        """Its silence begins anew."""
        self.urgent = self.urgent or self.suspected
        self.arrival, self.suspected = now, False

    def skip(self) -> None:
        """Lines of one of its files are left out: what was told before them is over."""
        self.learnt = self.learnt.model_copy(update={"pace": skipped(self.learnt.pace)})
        self._doomed(None)

    def _doomed(self, fatal: Evidence | None) -> None:
        if fatal is not self.fatal:
            self.learnt = self.learnt.model_copy(update={"fatal": fatal})
            self.steps_after_fatal, self.learnt_at, self.urgent = 0, None, True

    def _counted(self, path: str, marks: tuple[Mark, ...]) -> list[Mark]:
        self.counted[path], kept = counted_all(self.counted.get(path, Counted()), marks)
        return kept

    def _counts(self, path: str, now: datetime, policy: HangPolicy) -> bool:
        """Whether this file's steps are the attempt's: two files may count differently, so one alone does."""
        old = self.learnt.source
        if old not in ("", path):
            surer = self.counted[path].certain >= CERTAIN > self.counted.get(old, Counted()).certain
            stopped = now - self.arrival > self.limit(policy) / 2
            if old == self.precise or not (path == self.precise or surer or stopped):
                return False
        if path != old:
            self.learnt = self.learnt.model_copy(update={"source": path})
        return True

    def _stepped(self, steps: list[StepMark], now: datetime, *, live: bool, silence: Silent, saves: int) -> None:
        self.stepping = True
        usual = self.learnt.rhythm.step_seconds
        late = lateness(self.progress, steps[-1].step, usual, now, saves=saves, silence=silence) if live else {}
        old, last = self.progress.last_step, steps[-1].step
        self.urgent = self.urgent or old is None
        numbers = [mark.step for mark in steps]
        update = {
            "last_step": last,
            "last_step_at": now,
            "step_seconds": usual,
            "stride": stride(numbers if old is None else [old, *numbers], self.progress.stride),
            **late,
        }
        if old is None:
            # A progress file says when also of what was there already.
            update |= {"first_step": steps[0].step, "first_step_at": now if live else steps[0].at}
        self.progress = self.progress.model_copy(update=update)
        self.moved = True
        if not self.fatal or not self.fatal.at:
            return
        # A step on its way when the line was printed comes within seconds; lines that are caught up with have no time.
        self.steps_after_fatal += 0 if live else len(steps)
        seconds = timedelta(seconds=1.5 * (self.learnt.rhythm.step_seconds or 0.0))
        if self.steps_after_fatal >= FATAL_STEPS or now - self.fatal.at >= max(FATAL_IN_FLIGHT, seconds):
            self._doomed(None)

    def _count_saves(self, marks: list[Mark]) -> int:
        """Note saves that lines tell of; returns how many of them the newest step has waited for."""
        told = self.saves.count(marks)
        if told.saves:
            self.progress = self.progress.model_copy(update={"saves": self.progress.saves + told.saves})
            self.moved = True
        return told.waited_for

    def _saved(self, marks: list[Mark], now: datetime) -> None:
        """Note the newest step at which a line says that a checkpoint was written, all of it."""
        step, saved = self.progress.last_step, None
        for mark in marks:
            if isinstance(mark, StepMark):
                step = mark.step
            elif isinstance(mark, PhaseMark) and mark.saved:
                saved = step
        if saved is not None and saved > (self.progress.saved_step if self.progress.saved_step is not None else -1):
            self.progress = self.progress.model_copy(update={"saved_step": saved, "saved_at": now})
            self.moved = True

    def _numbers(self, marks: list[Mark]) -> dict[str, Any]:
        """What is learnt from comparing the attempt with itself: its pace, its losses."""
        newest = self.progress.last_step
        pace, losses = [], []
        for mark in marks:
            if not isinstance(mark, Measured):
                continue
            if isinstance(mark, StepMark):
                newest = mark.step
                if mark.seconds is not None:
                    pace.append((mark.step, mark.seconds, _work(mark)))
            if newest is not None and (mark.loss is not None or mark.grad_norm is not None):
                losses.append((newest, mark.loss, mark.grad_norm))
        learnt: dict[str, Any] = {"pace": with_steps(self.learnt.pace, pace)} if pace else {}
        return {**learnt, "numbers": with_losses(self.learnt.numbers, losses)} if losses else learnt

    def _tell(self, now: datetime) -> None:
        """Note what has begun or ended to be wrong; what is wrong is told once."""
        slow, wrong = self.learnt.pace.slowdown, self.learnt.numbers.finding
        progress = self.progress
        if slow and progress.slow_since is None:
            self.found.append(slow_detection(self.attempt, slow, now))
        if wrong and progress.wrong_since is None:
            self.found.append(numerics_detection(self.attempt, wrong, now))
        since = {"slow_since": slow.since_step if slow else None, "wrong_since": wrong.step if wrong else None}
        if (progress.slow_since, progress.wrong_since) != (since["slow_since"], since["wrong_since"]):
            self.progress = progress.model_copy(update=since)
            self.learnt_at, self.moved, self.urgent = None, True, True


def _sign(mark: Mark) -> Sign | None:
    if isinstance(mark, StepMark):
        return Sign(mark.step, mark.total, mark.seconds, mark.loss)
    if isinstance(mark, PhaseMark):
        return Sign(phase=mark.phase, begins=mark.edge is Edge.BEGINS)
    return None


def _rank_times(marks: tuple[Mark, ...]) -> Iterator[RankTime]:
    for mark in marks:
        if isinstance(mark, StepMark) and mark.rank is not None and mark.compute_seconds:
            yield RankTime(mark.step, mark.rank, mark.compute_seconds, mark.node)


def _work(mark: StepMark) -> float | None:
    """What the step did, in whatever unit its throughput has."""
    rate = mark.tokens_per_second or mark.samples_per_second
    return rate * mark.seconds if rate and mark.seconds else None
