"""One attempt being followed, and what new lines change about it."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from relight.activities.follow_lines import Said
from relight.attribution.progress_count import CERTAIN, Counted, counted
from relight.attribution.progress_marks import Edge, Mark, Measured, PhaseMark, Scope, StepMark
from relight.domain.attempts import Attempt, Progress
from relight.domain.evidence import Detection, Evidence
from relight.domain.findings import Learnt, numerics_detection, slow_detection
from relight.domain.numerics import with_losses
from relight.domain.progress import FATAL_IN_FLIGHT, CpuSample, HangPolicy, Sign, silence_limit, stride, with_signs
from relight.domain.straggler import with_steps


@dataclass
class Following:
    """One attempt being followed; bounded in memory whatever its output."""

    attempt: Attempt
    progress: Progress
    stepping: bool
    """Whether this job is known to print steps, from this attempt or an earlier one."""
    arrival: datetime
    """The last sign of life: a step, or news of a phase."""
    learnt: Learnt = field(default_factory=Learnt)
    precise: str = ""
    """The progress file that the job names."""
    counted: dict[str, Counted] = field(default_factory=dict)
    """How each file counts its steps."""
    fatal: Evidence | None = None
    """A line that says that the attempt is lost, while no step has followed it."""
    found: list[Detection] = field(default_factory=list)
    """Not yet written down."""
    learnt_at: datetime | None = None
    """When what was learnt was last written down."""
    baseline: float | None = None
    baseline_from: CpuSample | None = None
    next_sample: datetime | None = None
    suspected: bool = False
    suspected_from: CpuSample | None = None
    blind: set[str] = field(default_factory=set)
    """Files that cannot be read now."""
    more: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The attempt's outputs, and the progress file that it names."""
        outputs = self.attempt.outputs
        return outputs if not self.precise or self.precise in outputs else (*outputs, self.precise)

    def limit(self, policy: HangPolicy) -> timedelta:
        """How long it may be silent now."""
        return silence_limit(self.learnt.rhythm, policy, stepped=self.progress.last_step is not None)

    def take(self, path: str, said: Said, now: datetime, policy: HangPolicy) -> None:
        """Take what lines of one of its files say that became visible now."""
        marks = self._counted(path, said.marks)
        steps = [mark for mark in marks if isinstance(mark, StepMark)]
        if steps and not self._counts(path, now, policy):
            marks = [mark for mark in marks if not isinstance(mark, StepMark)]
            steps = []
        signs = [sign for mark in marks if (sign := _sign(mark))]
        rhythm = with_signs(self.learnt.rhythm, (now - self.arrival).total_seconds(), signs)
        if rhythm is not self.learnt.rhythm:
            self.learnt = self.learnt.model_copy(update={"rhythm": rhythm})
            self.arrival, self.suspected = now, False
        # Losses may stand in another file than the steps (a bar on stderr), but not beside a progress file.
        if path == self.precise or self.learnt.source != self.precise:
            self._judge_numbers(marks, now)
        if steps:
            self._stepped(steps, now)
        if said.fatal and not self.fatal:
            self.fatal = said.fatal

    def _counted(self, path: str, marks: tuple[Mark, ...]) -> list[Mark]:
        counter = self.counted.get(path, Counted())
        kept: list[Mark] = []
        for mark in marks:
            # The everyday line first: a step of the run, in a file that is known to count those.
            sure = isinstance(mark, StepMark) and mark.scope is Scope.RUN and counter.certain >= CERTAIN
            if sure or not isinstance(mark, StepMark):
                kept.append(mark)
                continue
            counter, new = counted(counter, mark)
            if new is not None:
                kept.append(new)
        self.counted[path] = counter
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

    def _stepped(self, steps: list[StepMark], now: datetime) -> None:
        self.stepping = True
        old, last = self.progress.last_step, steps[-1].step
        numbers = [mark.step for mark in steps]
        update = {
            "last_step": last,
            "last_step_at": now,
            "step_seconds": self.learnt.rhythm.step_seconds,
            "stride": stride(numbers if old is None else [old, *numbers], self.progress.stride),
        }
        self.progress = self.progress.model_copy(update=update)
        seconds = timedelta(seconds=1.5 * (self.learnt.rhythm.step_seconds or 0.0))
        if self.fatal and self.fatal.at and now - self.fatal.at >= max(FATAL_IN_FLIGHT, seconds):
            self.fatal = None

    def _judge_numbers(self, marks: list[Mark], now: datetime) -> None:
        """Compare the attempt with itself: its pace, its losses."""
        newest = self.progress.last_step
        pace, losses = [], []
        for mark in marks:
            if not isinstance(mark, Measured):
                continue
            if isinstance(mark, StepMark):
                newest = mark.step
                pace.append((mark.step, mark.seconds, _work(mark)))
            if newest is not None and (mark.loss is not None or mark.grad_norm is not None):
                losses.append((newest, mark.loss, mark.grad_norm))
        if not pace and not losses:
            return
        old = self.learnt
        self.learnt = old.model_copy(
            update={"pace": with_steps(old.pace, pace), "numbers": with_losses(old.numbers, losses)}
        )
        self._tell(now)

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
            self.learnt_at = None


def _sign(mark: Mark) -> Sign | None:
    if isinstance(mark, StepMark):
        return Sign(step=mark.step, total=mark.total, seconds=mark.seconds, loss=mark.loss)
    if isinstance(mark, PhaseMark):
        return Sign(phase=mark.phase, begins=mark.edge is Edge.BEGINS)
    return None


def _work(mark: StepMark) -> float | None:
    """What the step did, in whatever unit its throughput has."""
    rate = mark.tokens_per_second or mark.samples_per_second
    return rate * mark.seconds if rate and mark.seconds else None
