"""`relight checkpoints`: what checkpoints there are, which are whole, and which one a restart would take."""

import pwd
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.console.context import opened
from relight.console.errors import NotFoundStop
from relight.console.lookup import JobName, attempts_of
from relight.console.output import words
from relight.console.text import clean, count, span
from relight.domain.checkpoint_roots import roots
from relight.domain.checkpoints import (
    Checkpoint,
    Choice,
    HowNamed,
    Root,
    Series,
    Space,
    Survey,
    age,
    choose,
    gaps,
    has_room,
)
from relight.domain.evidence import Answer

if TYPE_CHECKING:
    from relight.clients.checkpoints import Checkpoints
    from relight.clients.files import Files
    from relight.config.settings import Settings
    from relight.domain.attempts import Attempt

WITHIN, DEEP_WITHIN = timedelta(minutes=2), timedelta(days=7)
MOST_ROWS = 20
TAIL = 1 << 20
"""Bytes of each output in which lines that name checkpoints are looked for."""
_HOW = {
    HowNamed.COMMENT: "named by the job's comment",
    HowNamed.LOG: "named by the job's output",
    HowNamed.SCRIPT: "named by the job's script",
    HowNamed.WORK_DIR: "found in the job's work dir",
    HowNamed.PERSON: "",
}
_STYLES = {Answer.YES: "green", Answer.NO: "bold red", Answer.UNKNOWN: "yellow"}


async def of_folder(folder: Path, *, deep: bool) -> Survey:
    """What lies under a folder of this machine, an absolute path, with the rights of whoever asks."""
    from relight.clients.checkpoint_readers import CheckpointReaders

    root = Root(path=str(folder), how=HowNamed.PERSON)
    async with CheckpointReaders() as readers:
        return await _looked(readers, (root,), None, deep=deep)


async def of_job(settings: "Settings", job: JobName, *, deep: bool) -> Survey:
    """What the newest attempt of a job that Relight has seen left behind.

    Raises:
        NotFoundStop: it has seen none.
    """
    async with opened(settings) as ledger:
        states = await attempts_of(ledger, settings.cluster, job)
    if not states:
        raise NotFoundStop(f"no attempt of job {job} was ever seen\nA folder will do, too: relight checkpoints DIR")
    attempt = states[0].attempt
    if settings.logs.over_ssh:
        from relight.clients.checkpoint_files import CheckpointFiles
        from relight.clients.ways import open_access

        async with open_access(settings) as access:
            named = roots(attempt.record, attempt.script, await _lines(attempt, access.files))
            # Its users are not known here.
            return await _looked(CheckpointFiles(files=access.files), named, None, deep=deep)
    from relight.clients.checkpoint_readers import CheckpointReaders

    named = roots(attempt.record, attempt.script, await _lines(attempt, None))
    async with CheckpointReaders() as readers:
        return await _looked(readers, named, _user_id(attempt.record.user), deep=deep)


async def _looked(checkpoints: "Checkpoints", named: tuple[Root, ...], owner: int | None, *, deep: bool) -> Survey:
    within = DEEP_WITHIN if deep else WITHIN
    return await checkpoints.look(named, owner=owner, every=True, deep=deep, within=within)


async def _lines(attempt: "Attempt", files: "Files | None") -> list[str]:
    """The end of the job's outputs, as far as they are files that can be read."""
    from relight.clients.log_files import LogFiles
    from relight.clients.logs import LogError

    logs, lines = LogFiles(files=files), list[str]()
    for path in attempt.outputs:
        try:
            lines += (await logs.read_new(path, None, max_bytes=TAIL)).lines
        except LogError:
            continue
    return lines


def _user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def check_found(survey: Survey, target: str) -> None:
    """Make sure that there is something to show.

    Raises:
        NotFoundStop: no checkpoint was found; it says what could not be looked at.
    """
    if not survey.series:
        looked = [f"looked at {root.path}" for root in survey.roots if root.how is not HowNamed.PERSON]
        raise NotFoundStop("\n".join([f"no checkpoint found for {target}", *survey.problems, *looked]))


def as_json(survey: Survey) -> dict[str, Any]:
    """The survey, and what each series means for a restart."""
    told = survey.model_dump(mode="json")
    for series, each in zip(survey.series, told["series"], strict=True):
        each["choice"] = choose(series).model_dump(mode="json")
        each["room"] = has_room(series, survey.space.get(series.folder)).value
        each["gaps"] = gaps(c.step for c in series.checkpoints if c.step is not None)
    return told


def is_safe(survey: Survey) -> bool:
    """Whether nothing is known to be wrong with what a restart of the job would take."""
    return choose(survey.series[0]).safe is not Answer.NO


def tell(screen: Console, survey: Survey, now: datetime) -> None:
    """For people: a table for each folder, and a sentence below it."""
    for series in survey.series:
        choice = choose(series)
        screen.print(_head(series))
        screen.print(_table(series, choice, now))
        style = _STYLES[choice.safe]
        screen.print(words(choice.sentence[:1].upper() + choice.sentence[1:] + ".", style))
        for line in _more(series, survey.space.get(series.folder)):
            screen.print(words(line, "dim"))
        screen.print()
    for problem in survey.problems:
        screen.print(words(f"Not looked at: {problem}", "yellow"))


def _head(series: Series) -> Text:
    how = _HOW[series.how]
    return words(series.folder, "bold").append(clean(f"  {series.format}{', ' if how else ''}{how}"), style="dim")


def _table(series: Series, choice: Choice, now: datetime) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("step", justify="right", no_wrap=True)
    for name in ("age", "size", "files"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("whole", no_wrap=True)
    table.add_column("why", overflow="fold")
    for each in series.checkpoints[:MOST_ROWS]:
        table.add_row(
            "→" if each == choice.taken else "",
            words(each.name if each.step is None else f"{each.step}{' (last)' if each.last else ''}"),
            _age(each, now),
            size(each.size),
            str(each.files),
            Text(each.whole, style=_STYLES[each.whole]),
            words("; ".join(each.reasons)),
        )
    return table


def _age(checkpoint: Checkpoint, now: datetime) -> str:
    passed = age(checkpoint, now)
    return span(passed) if passed is not None else "in the future"


def _more(series: Series, space: Space | None) -> list[str]:
    lines = []
    if more := series.left_out + len(series.checkpoints[MOST_ROWS:]):
        lines.append(f"{count(more, 'older one')} not shown.")
    if missing := gaps(c.step for c in series.checkpoints if c.step is not None):
        lines.append("Gaps between steps: " + ", ".join(f"{a} to {b}" for a, b in missing[:5]) + ".")
    if space is None:
        lines.append("Room for the next one: not known.")
    else:
        fits = {Answer.YES: "enough", Answer.NO: "NOT enough", Answer.UNKNOWN: "not known"}[has_room(series, space)]
        told = f"{size(space.free)} free of {size(space.total)}"
        lines.append(f"Room for the next one: {fits}, {told}; whether a quota allows it is not known.")
    return lines


def size(number: float) -> str:
    """Bytes for a person: `1.2 TB`."""
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while number >= 1000 and len(units) > 1:  # noqa: PLR2004 - steps of the unit
        number /= 1000
        del units[0]
    unit = units[0]
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"  # noqa: PLR2004
