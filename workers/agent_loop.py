"""The agent's loop: takes in what the watchers see, and has it told. All is decided in this one thread."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from relight.clients.nvml import GpuReading
from relight.workers.agent_checks import Asked, Checks
from relight.workers.agent_delivery import MAX_PROBES, Delivery
from relight.workers.agent_faults import Condition, Faults, Sight, printable
from relight.workers.agent_gpus import NEEDS_TEXT, GpuFaults, event, state
from relight.workers.agent_probe import Answer, Probe
from relight.workers.agent_send import Outcome
from relight.workers.agent_state import write_state
from relight.workers.agent_watch import Event, HostNews, KernelNews, KernelWatcher, Readings, Watcher

log = logging.getLogger("relight.agent")

TEXT_WITHIN = 0.5
"""Seconds that an Xid of NVML whose number says too little waits for the kernel's line."""
STALE_AFTER = 15.0
"""Seconds after which a reading no longer says how the GPUs are now."""
MAX_GPUS, MAX_BLIND = 32, 16
MAX_REACH = 4
_BURST = 1000

STOP = object()
"""Put into the inbox, it ends the loop."""


class Agent:
    """One node's agent.

    Args:
        faults: to be told.
        delivery: tells them.
        inbox: into which watchers, probe and sender put what they have.
        kernel: the watcher of the kernel's messages.
        others: other watchers.
        probe: answers questions about a job.
        checks: answers whether the node is fit for work.
        saved: the state file's content.
        state_file: what outlives this process.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        faults: Faults,
        delivery: Delivery,
        inbox: "SimpleQueue[Any]",
        kernel: KernelWatcher,
        others: list[Watcher],
        probe: Probe,
        checks: Checks,
        saved: dict[str, Any],
        state_file: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing has been seen yet."""
        self._faults = faults
        self._delivery = delivery
        self._inbox = inbox
        self._kernel = kernel
        self._watchers = [kernel, *others]
        self._probe = probe
        self._checks = checks
        self._saved = saved
        self._position = saved.get("position")
        self._state_file = state_file
        self._clock = clock
        self._gpu_faults = GpuFaults()
        self._readings: tuple[list[GpuReading], float] = ([], 0.0)
        self._waiting: list[tuple[float, Sight]] = []
        self._kernel_lost = ""
        self._takers: dict[type, Callable[[Any], None]] = {
            Readings: self._take_readings,
            Event: self._take_event,
            KernelNews: self._take_kernel_news,
            HostNews: lambda news: self._see(news.conditions),
            Answer: self._take_answer,
            Outcome: self._take_outcome,
        }

    def run(self) -> None:
        """Go on until `STOP` arrives."""
        while self._take():
            now = self._clock()
            for due, sight in [each for each in self._waiting if each[0] <= now]:
                self._waiting.remove((due, sight))
                self._faults.tell(sight)
            if now >= self._delivery.due:
                self._save()
                self._delivery.report(self._beat(now))
        self._save()

    def _take(self) -> bool:
        """Wait for news until something is due, and take in all there are; False at the end."""
        due = min([self._delivery.due, *(due for due, _ in self._waiting)])
        patience = max(0.0, due - self._clock())
        for _ in range(_BURST):
            try:
                news = self._inbox.get(timeout=patience)
            except Empty:
                break
            if news is STOP:
                return False
            try:
                self._takers[type(news)](news)
            except Exception:  # one thing that cannot be taken in must not keep all others from being told
                log.exception("a fault in the agent: %s is left out", printable(repr(news), 300))
            patience = 0.0
        return True

    def _take_readings(self, news: Readings) -> None:
        self._readings = (news.gpus, self._clock())
        self._see(self._gpu_faults.read(news.gpus, news.at))

    def _take_event(self, news: Event) -> None:
        sight = event(news.event, news.at)
        if sight and sight.xid in NEEDS_TEXT and not self._kernel.problem:
            self._waiting.append((self._clock() + TEXT_WITHIN, sight))
        elif sight:
            self._faults.tell(sight)

    def _take_kernel_news(self, news: KernelNews) -> None:
        self._see(self._with_gpu(sight) for sight in news.sights)
        self._position = news.position
        self._kernel_lost = news.lost or self._kernel_lost
        self._kernel.taken.release()

    def _take_answer(self, news: Answer) -> None:
        self._delivery.answers = [*self._delivery.answers, news][-MAX_PROBES:]

    def _take_outcome(self, news: Outcome) -> None:
        probes = self._delivery.ended(news)
        if probes is None:
            return
        self._kernel_lost = ""
        for probe in probes:
            self._ask(probe)

    def _ask(self, probe: Any) -> None:
        try:
            identity, kind, job_id = str(probe["id"])[:200], str(probe["kind"]), int(probe["job_id"])
            if kind == "check":
                reach = tuple(str(place)[:300] for place in probe.get("reach", ())[:MAX_REACH])
                self._checks.ask(Asked(identity, int(probe.get("gpus", 0)), reach))
                return
        except (KeyError, TypeError, ValueError):
            log.warning("the controller asks what this agent does not understand: %s", printable(str(probe), 200))
            return
        gpu_pids = frozenset(pid for reading in self._readings[0] for pid in reading.pids or ())
        self._probe.ask(identity, kind, job_id, gpu_pids)

    def _see(self, seen: Iterable[Sight | Condition]) -> None:
        for each in seen:
            if isinstance(each, Condition):
                self._faults.check(each)
            else:
                self._faults.tell(each)

    def _with_gpu(self, sight: Sight) -> Sight:
        """A PCIe address is a GPU's only where NVML knows a GPU there."""
        if sight.kind != "pcie" or sight.gpu in {reading.gpu for reading in self._readings[0]}:
            return sight
        return sight._replace(gpu="")

    def _beat(self, now: float) -> dict[str, Any]:
        readings, read_at = self._readings
        fresh = readings if now - read_at < STALE_AFTER else []
        return {
            "at": datetime.now(UTC).isoformat(),
            "gpus": [state(reading) for reading in fresh[:MAX_GPUS]],
            "blind": [printable(text, 300) for text in self._blind()][:MAX_BLIND],
        }

    def _blind(self) -> Iterator[str]:
        if self._faults.dropped:
            yield f"agent: {self._faults.dropped} faults were dropped before the controller had them"
        if self._kernel_lost:
            yield f"kernel log: {self._kernel_lost}"
        for watcher in self._watchers:
            yield from watcher.blind()

    def _save(self) -> None:
        """Write down what must outlive this process; before it is sent, so that what was read is not read again."""
        content = {"position": self._position, "faults": self._faults.save()}
        if content != self._saved and write_state(self._state_file, content):
            self._saved = content
