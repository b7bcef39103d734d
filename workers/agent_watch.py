"""The agent's watchers: one thread each, because each may be held up by what it watches.

They put what they see into the agent's inbox and decide nothing. A watcher that cannot see says why, as its `problem`:
silence of a watcher must not look like health.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from relight.clients.host_state import GIVEN_UP_AFTER, MAX_PATHS, PathWatch, fabric_ports, network_mounts
from relight.clients.kernel_messages import KernelMessages, KernelMessagesError
from relight.clients.nvml import GpuEvent, GpuReading, Nvml, NvmlError
from relight.workers.agent_faults import Condition, Sight
from relight.workers.agent_kernel import KernelFaults

log = logging.getLogger("relight.agent")

Post = Callable[[Any], None]

MISSING_PERIOD = 30.0
"""Seconds until a driver that is not there is looked for again."""
_WAIT = 2.0


class Readings(NamedTuple):
    """All GPUs, read just now."""

    gpus: list[GpuReading]
    at: datetime


class Event(NamedTuple):
    """An event of NVML."""

    event: GpuEvent
    at: datetime


class KernelNews(NamedTuple):
    """What the kernel's messages told, and where to go on once that is kept."""

    sights: list[Sight]
    position: dict[str, Any]
    lost: str


class HostNews(NamedTuple):
    """States of the host."""

    conditions: list[Condition]


class Watcher:
    """A thread that sees something."""

    def __init__(self, name: str, post: Post) -> None:
        """Not started."""
        self._post = post
        self._name = name
        self.problem = "not read yet"
        """Why it cannot see; empty when it can."""

    def start(self) -> None:
        """Begin; the thread ends with the process."""
        threading.Thread(target=self._for_ever, name=self._name, daemon=True).start()

    def _for_ever(self) -> None:
        while True:
            try:
                self.run()
            except Exception as error:  # a watcher that has died must not look like one that sees nothing wrong
                log.exception("a fault in the agent's watcher %s", self._name)
                self.problem = f"a fault in the agent: {type(error).__name__}: {error}"
            time.sleep(MISSING_PERIOD)

    def run(self) -> None:
        """Watch for ever."""
        raise NotImplementedError

    def blind(self) -> Iterator[str]:
        """What this watcher cannot see, and why."""
        if self.problem:
            yield f"{self._name}: {self.problem}"


class GpuWatcher(Watcher):
    """Reads the GPUs every `period` seconds, and when it is told that something happened."""

    def __init__(self, post: Post, period: float) -> None:
        """Not started."""
        super().__init__("nvml", post)
        self._period = period
        self._nvml = Nvml()
        self.look = threading.Event()
        """To be set for a reading at once."""

    def run(self) -> None:
        """Read for ever."""
        opened = False
        while True:
            self.look.clear()
            try:
                if not opened:
                    self._nvml.open()
                    opened = True
                self._post(Readings(self._nvml.read(), datetime.now(UTC)))
                self.problem = ""
            except NvmlError as error:
                self._nvml.close()
                opened, self.problem = False, str(error)
            self.look.wait(self._period if opened else MISSING_PERIOD)

    def blind(self) -> Iterator[str]:
        """Also a call that hangs."""
        if hung := self._nvml.hung:
            yield f"nvml: {hung}"
        else:
            yield from super().blind()


class EventWatcher(Watcher):
    """Waits for NVML's events."""

    def __init__(self, post: Post, gpus: GpuWatcher) -> None:
        """Not started."""
        super().__init__("nvml events", post)
        self._nvml = Nvml()
        self._gpus = gpus

    def run(self) -> None:
        """Wait for ever."""
        pause = 1.0
        while True:
            try:
                self._nvml.open()
                self._nvml.watch()
                self.problem = ""
                while True:
                    if event := self._nvml.wait(_WAIT):
                        self._post(Event(event, datetime.now(UTC)))
                        self._gpus.look.set()
                    pause = 1.0
            except NvmlError as error:
                # What happened until the next `watch` is lost to NVML; readings and the kernel's messages still tell.
                self.problem = str(error)
                self._nvml.close()
                self._gpus.look.set()
            time.sleep(pause)
            pause = min(2 * pause, MISSING_PERIOD)

    def blind(self) -> Iterator[str]:
        """Also GPUs that report no events; nothing where the GPUs cannot be seen at all, which is said already."""
        if any(self._gpus.blind()):
            return
        if hung := self._nvml.hung:
            yield f"nvml events: {hung}"
        elif self.problem:
            yield from super().blind()
        elif self._nvml.unwatched:
            yield f"nvml events: no Xid events of {', '.join(self._nvml.unwatched)}"


class KernelWatcher(Watcher):
    """Reads the kernel's messages."""

    def __init__(self, post: Post, messages: KernelMessages, faults: KernelFaults) -> None:
        """Not started."""
        super().__init__("kernel log", post)
        self._messages = messages
        self._faults = faults
        self.taken = threading.Semaphore(0)
        """To be released when the last news were dealt with: a storm of messages waits in the kernel, not here."""

    def run(self) -> None:
        """Read for ever."""
        begun = False
        while True:
            try:
                news = self._messages.read(MISSING_PERIOD if begun else 0.0)
                self.problem = ""
            except KernelMessagesError as error:
                self.problem = str(error)
                time.sleep(_WAIT)
                continue
            # The first time also without any: where to go on after a restart is worth knowing.
            if news.messages or news.lost or not begun:
                begun = True
                sights = [sight for sight in map(self._faults.read, news.messages) if sight]
                self._post(KernelNews(sights, dict(news.position), news.lost))
                self.taken.acquire()


class HostWatcher(Watcher):
    """Looks at file systems and fabric ports.

    Args:
        paths: that must have space and answer.
        mounts: whether all network mounts are looked at, too.
        period: seconds between looks.
    """

    def __init__(self, post: Post, paths: Sequence[str], period: float, *, mounts: bool) -> None:
        """Not started."""
        super().__init__("host", post)
        self._paths = paths
        self._period = period
        self._mounts = mounts
        self._watched: dict[str, PathWatch] = {}
        self._active: set[str] = set()
        """Ports that have been active: others may have no cable."""
        self._round = time.monotonic()

    def run(self) -> None:
        """Look for ever."""
        while True:
            self._round = time.monotonic()
            self._post(HostNews([*self._spaces(), *self._ports()]))
            time.sleep(self._period)

    def blind(self) -> Iterator[str]:
        """Also a round that does not end: a broken driver may hold up even sysfs."""
        yield from super().blind()
        if (late := time.monotonic() - self._round) > 2 * self._period + 2 * GIVEN_UP_AFTER.total_seconds():
            yield f"host: not looked at for {late:.0f} s"

    def _spaces(self) -> Iterator[Condition]:
        wanted = [*self._paths, *(network_mounts() if self._mounts else ())]
        for path in dict.fromkeys(wanted):
            if path not in self._watched and len(self._watched) < MAX_PATHS:
                self._watched[path] = PathWatch(path)
        # A mount that was taken away is over, whatever it was; its thread stays, for it may come again.
        asked = [watch for path, watch in self._watched.items() if path in wanted]
        for watch in asked:
            watch.ask()
        problems = []
        for space in [watch.answer() for watch in asked]:
            at = datetime.now(UTC)
            if space.stale is None:
                problems.append(space.problem)
            text = space.problem or f"{space.path} answers"
            yield Condition(Sight("stale_mount", at, text, "host", about=space.path), space.stale)
            text = f"{space.path}: {space.free} of {space.size} bytes and {space.files_free} files left"
            yield Condition(Sight("disk_full", at, text, "host", about=space.path), space.full)
        for path in self._watched.keys() - set(wanted):
            sight = Sight("stale_mount", datetime.now(UTC), f"{path} is no longer mounted", "host", about=path)
            yield Condition(sight, holds=False)
        self.problem = "; ".join(problems)

    def _ports(self) -> Iterator[Condition]:
        ports = fabric_ports()
        self._active |= {port for port, active in ports.items() if active}
        for port in sorted(self._active):
            active = ports.get(port, False)
            text = f"port {port} is {'active' if active else 'down' if port in ports else 'gone'}"
            yield Condition(Sight("fabric", datetime.now(UTC), text, "host", about=f"port {port}"), not active)
