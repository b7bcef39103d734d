"""Checkpoints on this machine's file systems, each looked at by a process of its own, as logs are (`log_readers`).

A file system that hangs costs its process, which is killed, and a few seconds; it blinds only who keeps files there.
"""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from relight.clients.checkpoint_reader import MOST_LINKS, Wish
from relight.clients.checkpoint_survey import folder_of
from relight.clients.checkpoints import WITHIN, Gathered
from relight.clients.isolated import isolated
from relight.clients.log_reader_process import MountReader
from relight.clients.log_readers import MOST_PROCESSES, Mount, mount_of, parse_mounts
from relight.clients.logs import LogUnreadableError
from relight.domain.checkpoints import Root, Survey

MOST_ELSEWHERE = 16
"""Links into other file systems that are followed in one look."""


class CheckpointReaders:
    """Implements `Checkpoints` for this machine. To be entered; at its exit the processes are ended.

    Args:
        timeout: how long a file system may take to answer; its process is killed after that.
        private: folders that are never looked into.
        mountinfo: what tells the mounts.
    """

    def __init__(
        self,
        *,
        timeout: timedelta = timedelta(seconds=5),
        private: tuple[Path, ...] = (),
        mountinfo: Path = Path("/proc/self/mountinfo"),
    ) -> None:
        self._timeout = timeout.total_seconds()
        self._private = [str(path.resolve()) for path in private]
        self._mountinfo = mountinfo
        self._readers: dict[tuple[str, bool], tuple[MountReader, asyncio.Lock]] = {}
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        readers, self._readers = self._readers, {}
        await asyncio.gather(*(reader.close() for reader, _ in readers.values()))

    async def look(
        self,
        roots: Sequence[Root],
        *,
        owner: int | None = None,
        every: bool = False,
        deep: bool = False,
        within: timedelta = WITHIN,
    ) -> Survey:
        """What lies under these roots; see `Checkpoints`."""
        gathered = Gathered(roots)
        # It tells of mounts and asks none of them.
        mounts = parse_mounts(self._mountinfo.read_text(errors="surrogateescape"))
        until = _now() + within.total_seconds()
        for root in gathered.roots:
            if gathered.skips(root):
                continue
            # Links into other file systems are looked at by the processes of those.
            waiting, links = [(root.path, folder_of(root.path))], 0
            while waiting:
                named, path = waiting.pop()
                answer = await self._asked(Wish(path, 0, "", {}, owner, every, deep), mounts, until)
                if answer[0] == "led" and links < MOST_LINKS:
                    waiting.append((named, answer[1]))
                    links += 1
                elif answer[0] == "done":
                    result = answer[2] if named == path else _renamed(answer[2], answer[1], folder_of(named))
                    gathered.add(root, result)
                    waiting += [(target, target) for _, target in result["elsewhere"][: MOST_ELSEWHERE - links]]
                    links += len(result["elsewhere"])
                else:
                    gathered.problem(f"{named}: {answer[1] if answer[0] != 'led' else 'too many links'}")
        return gathered.survey()

    async def _asked(self, wish: Wish, mounts: dict[str, Mount], until: float) -> list[Any]:
        """The answer about one root in one file system: what the process says at last, or why there is none."""
        place = mount_of(wish.path, mounts)
        places = {mount.point: mount.place for mount in mounts.values()}
        wish = wish._replace(number=next(self._numbers), place=place.place, mounts=places)
        reader, turn = self._reader(place, deep=wish.deep)
        try:
            async with asyncio.timeout_at(until):
                await turn.acquire()
        except TimeoutError:
            return ["unreadable", f"time was up before {place.place} could be asked"]
        try:
            while True:
                (answer,) = await reader.ask([wish._replace(stop=_now() >= until)])
                if answer[0] != "more":
                    return answer
        except LogUnreadableError as error:
            return ["unreadable", str(error)]
        finally:
            turn.release()

    def _reader(self, mount: Mount, *, deep: bool) -> tuple[MountReader, asyncio.Lock]:
        """The process of a file system; a deep check, which takes long, has one of its own."""
        key = mount.place, deep
        if key not in self._readers:
            idle = [each for each, (reader, turn) in self._readers.items() if reader.idle and not turn.locked()]
            for each in idle if len(self._readers) >= MOST_PROCESSES else []:
                self._readers.pop(each)[0].end()
            reader = MountReader(
                mount.place, mount.point, self._private, self._timeout, isolated("relight.clients.checkpoint_reader")
            )
            self._readers[key] = reader, asyncio.Lock()
        return self._readers[key]


def _renamed(value: Any, real: str, named: str) -> Any:
    """A result with the path by which a person named the root, in place of the one without links."""
    if isinstance(value, str):
        return named + value[len(real) :] if value == real or value.startswith(real.rstrip("/") + "/") else value
    if isinstance(value, list):
        return [_renamed(each, real, named) for each in value]
    if isinstance(value, dict):
        return {_renamed(key, real, named): _renamed(each, real, named) for key, each in value.items()}
    return value


def _now() -> float:
    return asyncio.get_running_loop().time()
