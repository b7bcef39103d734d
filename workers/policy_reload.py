"""Takes over a changed policy without a restart: looks at the settings file every few seconds.

Only the policy is taken over; other settings count after a restart. A policy that cannot be used is refused as a whole,
loudly, and the one in force stays. Both are written to the ledger: rows of kind `note` with `what: policy`.
"""

import asyncio
import contextlib
import logging
import os
import pwd
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from relight.activities.site import Site
from relight.clients.ledger import LedgerError
from relight.config.settings import ConfigError, Settings, load
from relight.domain.base import clip
from relight.domain.ledger import Change, RowKind

logger = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks at the file."""
LONGEST_PROBLEM = 500
MOST_UNWRITTEN = 100
"""Changes kept while the ledger does not answer."""


class Stamp(NamedTuple):
    """By what a changed file is known."""

    inode: int
    size: int
    changed_ns: int
    owner: int

    @classmethod
    def of(cls, file: Path) -> Self | None:
        """The file's, or None where it cannot be looked at."""
        try:
            found = file.expanduser().stat()
        except OSError:
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_uid)

    def told(self) -> dict[str, str]:
        """Who owns the file, and when it was changed."""
        try:
            owner = pwd.getpwuid(self.owner).pw_name
        except KeyError:
            owner = f"uid {self.owner}"
        return {"owner": owner, "changed": datetime.fromtimestamp(self.changed_ns / 1e9, UTC).isoformat()}


NEVER = Stamp(0, 0, 0, 0)


class PolicyFile:
    """The settings file of one worker.

    Args:
        site: whose policy it sets.
        file: the settings file.
        settings: as read from it at the start.
        worker: names this process among the cluster's workers.
    """

    def __init__(self, site: Site, file: Path, settings: Settings, worker: str) -> None:
        self._site = site
        self._file = file
        self._worker = worker
        self._others = _others(settings)
        self._seen = Stamp.of(file)
        self._read: Stamp | None = NEVER  # it may have changed since the settings were read
        self._unwritten: list[Change] = []

    async def began(self) -> None:
        """Write down with which policy this worker begins, where the ledger's last is another."""
        known = await self._site.ledger.cursor(self._cursor)
        before = str(known["version"]) if known else ""
        if before != self._site.policy_version:
            self._tell("changed", before, self._seen, "a worker has started with it")
        await self._write()

    async def look(self) -> None:
        """Take the file's policy over where the file has changed, and has stood still since the last look.

        An editor that is writing just now would leave half a policy, which may well be valid.
        """
        stamp = await asyncio.to_thread(Stamp.of, self._file)
        still, self._seen = stamp == self._seen, stamp
        if still and stamp != self._read:
            self._read = stamp
            await self._take(stamp)
        await self._write()

    async def _take(self, stamp: Stamp | None) -> None:
        before, refused = self._site.policy_version, self._site.policy_problem
        try:
            settings = await asyncio.to_thread(load, self._file)
        except ConfigError as error:
            problem = clip(str(error), LONGEST_PROBLEM)
            self._site.refuse(problem)
            logger.error("the changed settings are refused, policy %s stays in force: %s", before, problem)  # noqa: TRY400
            self._tell("refused", before, stamp, f"{problem} (policy {before} stays in force)")
            return
        self._site.enforce(settings.policy)
        after = self._site.policy_version
        if after != before:
            logger.warning("policy %s is in force, before it %s", after, before)
            self._tell("changed", before, stamp, "the settings file has changed")
        elif refused:
            logger.warning("the settings file is right again: policy %s stays in force", after)
            self._tell("unchanged", before, stamp, "the settings file is right again")
        if self._others != _others(settings):
            logger.warning("settings beside the policy have changed too: they count after a restart")

    def _tell(self, change: str, before: str, stamp: Stamp | None, text: str) -> None:
        """Keep a row to be written; one with the whole policy, unless there is none that can be used."""
        site, version = self._site, self._site.policy_version
        body: dict[str, Any] = {
            "what": "policy",
            "text": f"policy {change}: {text}",
            "change": change,
            "old": before,
            "new": version,
            "file": str(self._file),
            "worker": self._worker,
            **(stamp.told() if stamp else {}),
        }
        if change != "refused":
            body["policy"] = site.policy.model_dump(mode="json")
        row = site.entry(f"policy/{site.cluster}/{self._worker}/{site.clock().isoformat()}", RowKind.NOTE, body)
        self._unwritten.append(Change(entries=(row,), cursors={self._cursor: {"version": version}}))
        del self._unwritten[:-MOST_UNWRITTEN]

    async def _write(self) -> None:
        """Write down what is kept; where the ledger does not answer, with the next look."""
        while self._unwritten:
            await self._site.ledger.commit(self._unwritten[0])
            self._unwritten.pop(0)

    @property
    def _cursor(self) -> str:
        return f"policy/{self._site.cluster}"


def _others(settings: Settings) -> dict[str, Any]:
    return settings.model_dump(exclude={"policy"})


@contextlib.asynccontextmanager
async def following_policy(site: Site, file: Path | None, settings: Settings) -> AsyncIterator[None]:
    """Meanwhile, take over what the settings file says of policy; nothing to do without a file."""
    if file is None:
        yield
        return
    task = asyncio.create_task(_follow(PolicyFile(site, file, settings, f"{socket.gethostname()}/{os.getpid()}")))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _follow(policy: PolicyFile) -> None:
    step = policy.began
    while True:
        try:
            await step()
            step = policy.look
        except LedgerError as error:
            logger.warning("a change of policy is not written down yet: %s", error)
        except Exception:
            # Whatever it is, the policy in force stays, and the next look may do better.
            logger.exception("the settings file could not be looked at")
        await asyncio.sleep(EVERY)
