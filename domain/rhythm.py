"""How a job's step lines arrive: the rhythm from which a hang is told.

Block-buffered output is normal (ten steps a second printed nothing for five seconds: seen), and a network
file system may show a change a minute late; so the limit comes from the arrival gaps of this very file, not
from the step time alone.

A checkpoint or an evaluation prints no steps either. Where a line announces it, its gaps are learnt apart; where none
does, the steps at which long gaps come back are learnt (`recurrence`). What cannot be told from silence: the first
long gap of a kind that neither a line, nor a round step, nor the end of an epoch explains.
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median_low
from typing import Any, NamedTuple

from relight.domain.base import Value
from relight.domain.recurrence import LongGaps, with_long_gap

MIN_GAPS = 8
"""Fewer gaps than this teach nothing about the file's rhythm."""
WARM_UP = 2
"""The first gaps of an attempt are of compilation and first collectives: they are not its rhythm."""
BLOCK = 100
"""Gaps of which the longest is kept: the 99th percentile of an ordinary file's gaps is about that."""
BLOCKS = 7
LONG_S = 15.0
"""A gap shorter than this is no long one: half of the least limit."""
POLLED_S = 2.0
"""Lines that arrive closer than this wait for the follower's next look, not in a buffer."""


class Phase(StrEnum):
    """What a job does when it does not train; it has a rhythm of its own."""

    STARTUP = "startup"
    """Building the model, loading a checkpoint, starting again inside the job."""
    DATA = "data"
    """Reading, indexing, downloading or converting data."""
    COMPILE = "compile"
    """Compiling, capturing graphs, warming up."""
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    """Saving one."""
    END = "end"
    """Training is over: what follows is saving and tidying up."""


class Sign(NamedTuple):
    """What one line says: a finished step, or a phase that begins or ends."""

    step: int | None = None
    total: int | None = None
    seconds: float | None = None
    """Seconds a step, as printed."""
    loss: float | None = None
    phase: Phase | None = None
    begins: bool = True


class PhaseGaps(NamedTuple):
    """How long a phase kept the steps waiting."""

    seen: int
    longest: float
    """Seconds; a longer one counts at once, shorter ones lower it slowly."""


class Rhythm(Value):
    """What is known of how a job's step lines arrive; about a kilobyte, and O(1) to bring up to date."""

    arrivals: int = 0
    """Gaps seen in this attempt."""
    step_seconds: float | None = None
    """Seconds a step, as printed or as counted from arrivals, smoothed."""
    peak: float = 0.0
    """Seconds of the longest ordinary gap of the current block."""
    in_block: int = 0
    peaks: tuple[float, ...] = ()
    """The same of the last `BLOCKS` full blocks."""
    stride: float = 1.0
    """Steps from one step line to the next."""
    reach: float = 1.0
    """Steps that may have been done after the newest visible one: the stride, or what a buffer holds."""
    since: int | None = None
    """The first step seen in this attempt."""
    step: int | None = None
    """The newest step seen."""
    total: int | None = None
    """How many steps the run or the epoch shall have."""
    opened: Phase | None = None
    """The phase that a line announced and that has not ended."""
    closed: Phase | None = None
    """The phase whose end was told after the newest step."""
    phases: dict[Phase, PhaseGaps] = {}
    long: tuple[LongGaps, ...] = ()
    """Long gaps that no line announced, one entry for each length."""

    @property
    def known(self) -> bool:
        """Whether enough ordinary gaps were seen to know the rhythm."""
        return bool(self.peaks) or self.in_block >= MIN_GAPS


def with_signs(rhythm: Rhythm, gap: float, signs: Sequence[Sign]) -> Rhythm:
    """The rhythm after lines that became visible together, in their order, `gap` seconds after the last sign of life.

    It is the very same object when they were no sign of life: neither a step nor news about a phase. Then the silence
    goes on, else it begins anew.
    """
    lines = [sign for sign in signs if sign.step is not None]
    if not lines:
        for sign in signs:
            new = _with_phase(rhythm, gap, sign)
            gap = gap if new is rhythm else 0.0
            rhythm = new
        return rhythm
    last = lines[-1]
    end = max(index for index, sign in enumerate(signs) if sign.step is not None)
    told = next((sign.phase for sign in signs[:end] if sign.phase), None)
    first = rhythm.step if rhythm.step is not None else lines[0].step
    steps = (last.step or 0) - (first or 0)
    rhythm = with_arrival(
        rhythm, gap, steps, last.seconds, lines=len(lines), step=last.step, total=last.total, phase=told
    )
    for sign in signs[end + 1 :]:
        rhythm = _with_phase(rhythm, 0.0, sign)
    return rhythm


def _with_phase(rhythm: Rhythm, gap: float, sign: Sign) -> Rhythm:
    """The rhythm after a line that says that a phase begins or ends."""
    phase = sign.phase
    if phase is None:
        return rhythm
    if rhythm.opened is phase if sign.begins else rhythm.opened is not phase and rhythm.closed is phase:
        return rhythm
    over = rhythm.opened or (None if sign.begins else phase)
    update = _phase_learnt(rhythm, gap, over) if over else {}
    if _is_long(rhythm, gap) and not _is_explained(rhythm, gap):
        update |= _long_learnt(rhythm, gap)
    update |= {"opened": phase if sign.begins else None, "closed": None if sign.begins else phase}
    return rhythm.model_copy(update=update)


def with_arrival(
    rhythm: Rhythm,
    gap: float,
    steps: int,
    printed: float | None,
    *,
    lines: int = 1,
    step: int | None = None,
    total: int | None = None,
    phase: Phase | None = None,
) -> Rhythm:
    """The rhythm after step lines that arrived together, `gap` seconds after the last sign of life.

    They brought `steps` more steps, up to `step` of `total`; `printed` are the seconds that the newest names.
    `phase` is one that was told among them, after the gap: a line of its begin or end that became visible no earlier.
    """
    settled = rhythm.arrivals >= WARM_UP and steps >= 0
    busy = rhythm.opened or phase
    # Before the rhythm is known, an ordinary gap looks long; one in which a phase was told is.
    long = bool(rhythm.known or busy) and _is_long(rhythm, gap)
    update: dict[str, Any] = {
        "arrivals": rhythm.arrivals + 1 if steps >= 0 else 1,
        "step_seconds": _step_seconds(rhythm, printed, None if busy or long or steps <= 0 else gap / steps, settled),
        "opened": None,
        "closed": None,
        "step": step,
        "total": total,
        "since": step if rhythm.since is None or steps < 0 else rhythm.since,
    }
    if steps > 0:
        stride = max(1.0, steps / lines)
        update["stride"] = stride
        hidden = steps if gap > POLLED_S else stride
        update["reach"] = max(stride, hidden, rhythm.reach * 0.98 if lines > 1 else 0.0)
    if not settled:
        # A single first line says nothing of a buffer; the start-up before it is no gap between lines.
        if rhythm.arrivals or lines > 1:
            update |= _phase_learnt(rhythm, gap, Phase.STARTUP)
    elif busy:
        update |= _phase_learnt(rhythm, gap, busy)
    if settled and long and not _is_explained(rhythm, gap):
        update |= _long_learnt(rhythm, gap)
    elif settled and not busy:
        update |= _ordinary_learnt(rhythm, gap)
    return rhythm.model_copy(update=update)


def caught_up(rhythm: Rhythm, signs: Sequence[Sign]) -> Rhythm:
    """The rhythm after lines of which nobody knows when they came: where the job stands, and no gap learnt."""
    steps = [sign for sign in signs if sign.step is not None]
    update: dict[str, Any] = {}
    if steps:
        first, last = steps[0].step or 0, steps[-1].step or 0
        back = rhythm.step is not None and last < rhythm.step
        # What follows the warm-up is the job's rhythm, whoever saw the warm-up.
        warm = max(0 if back else rhythm.arrivals, min(WARM_UP, len(steps) - 1))
        update = {
            "arrivals": warm,
            "step_seconds": _step_seconds(rhythm, steps[-1].seconds, None, warm >= WARM_UP),
            "opened": None,
            "closed": None,
            "step": last,
            "total": steps[-1].total,
            "since": first if rhythm.since is None or back else rhythm.since,
        }
        if len(steps) > 1 and last > first:
            update["stride"] = max(1.0, (last - first) / (len(steps) - 1))
    end = max((index for index, sign in enumerate(signs) if sign.step is not None), default=-1)
    for sign in signs[end + 1 :]:
        if sign.phase:
            update |= {"opened": sign.phase if sign.begins else None, "closed": None if sign.begins else sign.phase}
    return rhythm.model_copy(update=update) if update else rhythm


def again(rhythm: Rhythm) -> Rhythm:
    """What an attempt's rhythm teaches about the job's next attempt."""
    update = {"arrivals": 0, "since": None, "step": None, "total": None, "opened": None, "closed": None}
    return rhythm.model_copy(update=update)


def _step_seconds(rhythm: Rhythm, printed: float | None, counted: float | None, settled: bool) -> float | None:
    newest = printed if printed is not None else counted
    old = rhythm.step_seconds
    if old is None or newest is None or not settled:
        return newest if newest is not None else old
    # One step that took very long (an evaluation within it) is not the step time.
    return old + (min(newest, 1.5 * old) - old) * 0.2


def _is_long(rhythm: Rhythm, gap: float) -> bool:
    """Half of what would be a hang: such gaps are learnt apart, before one of them is longer than the limit."""
    return gap > max(LONG_S, 2.5 * (rhythm.step_seconds or 0.0), 1.5 * p99(rhythm))


def _is_explained(rhythm: Rhythm, gap: float) -> bool:
    """Whether the phase that was announced before the gap took about as long as it does; its first time explains all.

    Else something that nothing announced came before or after it.
    """
    if rhythm.opened is None:
        return False
    known = rhythm.phases.get(rhythm.opened)
    return known is None or gap <= 2 * known.longest


def _long_learnt(rhythm: Rhythm, gap: float) -> dict[str, Any]:
    long = with_long_gap(rhythm.long, gap, rhythm.step, since=rhythm.since, reach=hidden_steps(rhythm))
    return {"long": long}


def _phase_learnt(rhythm: Rhythm, gap: float, phase: Phase) -> dict[str, Any]:
    old = rhythm.phases.get(phase, PhaseGaps(0, 0.0))
    longest = max(gap, old.longest + (gap - old.longest) * 0.05)
    return {"phases": {**rhythm.phases, phase: PhaseGaps(old.seen + 1, longest)}}


def _ordinary_learnt(rhythm: Rhythm, gap: float) -> dict[str, Any]:
    peak, in_block = max(rhythm.peak, gap), rhythm.in_block + 1
    if in_block < BLOCK:
        return {"peak": peak, "in_block": in_block}
    return {"peak": 0.0, "in_block": 0, "peaks": (*rhythm.peaks, peak)[-BLOCKS:]}


def hidden_steps(rhythm: Rhythm) -> int:
    """How many steps may have been done after the newest visible one."""
    return int(max(rhythm.stride, rhythm.reach) + 0.999)


def p99(rhythm: Rhythm) -> float:
    """About the 99th percentile of the file's ordinary gaps, in seconds: the median of the blocks' longest."""
    return median_low(rhythm.peaks) if rhythm.peaks else rhythm.peak
