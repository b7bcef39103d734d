"""Lets a job go on from an older checkpoint: each change by a process (`checkpoint_mover`) that works as its user."""

import asyncio
import contextlib
import json
import os
import pwd
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from relight.clients.checkpoint_mover import Standing, Wish
from relight.clients.checkpoints import MovesUnavailableError
from relight.clients.isolated import isolated
from relight.domain.checkpoint_formats import ASIDE
from relight.domain.checkpoint_look import FallBack

_PROGRAM = "relight.clients.checkpoint_mover"
MOST_ANSWER = 1 << 16


class CheckpointMover:
    """Implements `CheckpointMoves` for this machine's file systems.

    Args:
        wrapper: a command that runs the mover as a user, `{user}` standing for that user; empty: where Relight runs as
            root it becomes the user, and otherwise changes only what belongs to its own.
        private: folders of Relight's own.
        timeout: how long a file system may take; the process is killed after that.
    """

    def __init__(
        self,
        *,
        wrapper: Sequence[str] = (),
        private: tuple[Path, ...] = (),
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        self._wrapper = tuple(wrapper)
        self._private = tuple(str(path.resolve()) for path in private)
        self._timeout = timeout.total_seconds()

    async def look(self, change: FallBack, user: str, incident: str) -> Standing:
        """Whether it is done, and where not, whether it could be; see `CheckpointMoves`."""
        return await self._asked(change, user, incident, write=False)

    async def make(self, change: FallBack, user: str, incident: str) -> Standing:
        """Make it; see `CheckpointMoves`."""
        return await self._asked(change, user, incident, write=True)

    async def _asked(self, change: FallBack, user: str, incident: str, *, write: bool) -> Standing:
        wish = await asyncio.to_thread(self._wish, change, user, incident, write=write)
        if wish is None:
            return Standing(done=False, problem=f"user {user} is not known here")
        command = tuple(word.replace("{user}", user) for word in self._wrapper)
        command = command or (sys.executable, *isolated(_PROGRAM))
        answer = await self._ran(command, json.dumps(wish._asdict()).encode())
        try:
            done, problem = json.loads(answer)
        except (ValueError, TypeError):
            raise MovesUnavailableError(f"{' '.join(command)[:80]}: no answer that can be read") from None
        return Standing(done=bool(done), problem=str(problem)[:300])

    def _wish(self, change: FallBack, user: str, incident: str, *, write: bool) -> Wish | None:
        try:
            known = pwd.getpwnam(user)
        except KeyError:
            return None
        return Wish(
            folder=change.folder,
            into=f"{ASIDE}{incident}",
            aside=change.aside,
            tracker=change.tracker,
            was=change.was,
            now=change.now,
            write=write,
            user=known.pw_uid,
            group=known.pw_gid,
            groups=tuple(os.getgrouplist(user, known.pw_gid)),
            private=self._private,
        )

    async def _ran(self, command: tuple[str, ...], wish: bytes) -> bytes:
        pipe: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        try:
            process = await asyncio.create_subprocess_exec(*command, **pipe, stderr=asyncio.subprocess.DEVNULL, cwd="/")
        except OSError as error:
            raise MovesUnavailableError(f"{command[0]}: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._timeout):
                out, _ = await process.communicate(wish)
        except TimeoutError:
            raise MovesUnavailableError(f"the file system did not answer within {self._timeout:g} s") from None
        finally:
            # Where the kernel does not let it go it stays behind, and is not waited for.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return out[:MOST_ANSWER]
