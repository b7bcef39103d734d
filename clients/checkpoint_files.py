"""Checkpoints over SFTP, or wherever else `Files` leads; on this machine `checkpoint_readers` is safer."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

from relight.clients.checkpoint_survey import Survey as Work
from relight.clients.checkpoint_survey import folder_of
from relight.clients.checkpoint_tree import Steps, Tree
from relight.clients.checkpoints import WITHIN, Gathered
from relight.clients.files import Files, LocalFiles
from relight.clients.log_files import Bounded
from relight.clients.logs import LogError
from relight.domain.checkpoints import Root, Survey

TURN = 1.0
"""Seconds of work after which it is looked whether time is up."""
MOST_METADATA = 16 << 20
"""Bytes: it is read within this process."""


class CheckpointFiles:
    """Implements `Checkpoints` in threads, which wait where a file system hangs.

    Args:
        timeout: how long one piece of work may take.
        files: where they are; None: on this machine.
    """

    def __init__(self, *, timeout: timedelta = timedelta(seconds=10), files: Files | None = None) -> None:
        self._bounded = Bounded(timeout)
        self._files = files or LocalFiles()

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
        until = asyncio.get_running_loop().time() + within.total_seconds()
        for root in gathered.roots:
            if gathered.skips(root):
                continue
            folder = folder_of(root.path)
            tree = Tree(self._files, most_metadata=MOST_METADATA, owner=owner)
            work = Work(tree, folder, every=every, deep=deep)
            try:
                steps = work.steps()
                while asyncio.get_running_loop().time() < until:
                    if await self._bounded.run(folder, lambda steps=steps: _turn(steps)):  # type: ignore[misc]
                        break
            except LogError as error:
                # Its thread may still be at work: what it has found must not be touched.
                gathered.problem(str(error))
                continue
            gathered.add(root, work.result())
        return gathered.survey()


def _turn(steps: Steps[None]) -> bool:
    """Work for a while; True when all is done."""
    until = time.monotonic() + TURN
    while time.monotonic() < until:
        try:
            next(steps)
        except StopIteration:
            return True
    return False
