"""The contract with checkpoint storage, and what its implementations share."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from relight.clients.checkpoint_mover import Standing
from relight.domain.checkpoint_look import FallBack
from relight.domain.checkpoints import HowNamed, Root, Series, Space, Survey

MOST_ROOTS = 16
WITHIN = timedelta(seconds=20)
"""How long a look may take: a restart is not held up for longer."""


class Checkpoints(Protocol):
    """Finds a job's checkpoints, and judges whether each is whole."""

    async def look(
        self,
        roots: Sequence[Root],
        *,
        owner: int | None = None,
        every: bool = False,
        deep: bool = False,
        within: timedelta = WITHIN,
    ) -> Survey:
        """What lies under these roots, the most trusted first; it never raises, and never takes much longer.

        What is missing, unreadable, hangs or was not come to in time stands in the survey's problems: then a
        checkpoint that was not found may be there all the same. A work dir is looked through only where the roots
        before it hold none.

        Args:
            roots: where to look; the path of a checkpoint stands for the folder it lies in.
            owner: user id whose files are looked at, and nobody else's; None: whoever's.
            every: whether to judge all checkpoints; False: of each folder, only until three are known to be whole, and
                older ones stay unknown.
            deep: whether to read every byte of the newest checkpoint of each series, too, and of the one before it
                where that is damaged.
            within: how long it may take.
        """


class MovesUnavailableError(Exception):
    """Whether the change was made is not known: the file system does not answer. Trying again looks first."""


class CheckpointMoves(Protocol):
    """Makes the change by which a job goes on from an older checkpoint, with the rights of the job's own user.

    Nothing is deleted, and a change that was made is found made. What must not or cannot be changed is told, not
    raised.

    Raises:
        MovesUnavailableError: nobody knows how it stands.
    """

    async def look(self, change: FallBack, user: str, incident: str) -> Standing:
        """Whether it is made, and where not, why it cannot be; nothing is touched."""

    async def make(self, change: FallBack, user: str, incident: str) -> Standing:
        """Make it, or what is left of it."""


class Gathered:
    """What looks at several roots found, put together."""

    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = tuple(roots)[:MOST_ROOTS]
        self._series: dict[tuple[str, str], Series] = {}
        self._space: dict[str, Space] = {}
        self._problems = [f"{len(roots) - MOST_ROOTS} roots more were left out"] if len(roots) > MOST_ROOTS else []

    def skips(self, root: Root) -> bool:
        """Whether this root need not be looked at any more."""
        return root.how is HowNamed.WORK_DIR and bool(self._series)

    def problem(self, text: str) -> None:
        """Note what could not be looked at."""
        if text not in self._problems:
            self._problems.append(text)

    def add(self, root: Root, result: dict[str, Any]) -> None:
        """Take the result of `checkpoint_survey.Survey`."""
        found = [_series(each, root.how) for each in result["series"]]
        for each in sorted(found, key=_written, reverse=True):
            self._series.setdefault((each.folder, each.format), each)
        for folder, (free, total, free_files) in result["space"].items():
            self._space[folder] = Space(free=free, total=total, free_files=free_files)
        for text in result["problems"]:
            self.problem(text)

    def survey(self) -> Survey:
        """All of it."""
        return Survey(
            roots=self.roots,
            series=tuple(self._series.values()),
            space=self._space,
            problems=tuple(self._problems),
            read_at=datetime.now(UTC),
        )


def _series(told: dict[str, Any], how: HowNamed) -> Series:
    checkpoints = [
        each | {"modified_at": _time(each["modified_at"]), "format": told["format"]} for each in told["checkpoints"]
    ]
    return Series.model_validate(told | {"how": how, "checkpoints": checkpoints})


def _time(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # anybody may set a file's times to anything
        return datetime.fromtimestamp(0, UTC)


def _written(series: Series) -> datetime:
    return max(each.modified_at for each in series.checkpoints)
