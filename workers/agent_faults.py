"""What the node agent has to tell: each fault once, kept until the controller has it, however long that takes.

The agent's memory and start-up time count, so it does without pydantic: `Fault` is what `domain/reports.py` calls a
`NodeFault`, and tests hold the two together.
"""

import logging
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

log = logging.getLogger("relight.agent")

Kind = Literal[
    "xid",
    "sxid",
    "gpu_lost",
    "recovery_action",
    "ecc",
    "row_remap",
    "nvlink",
    "pcie",
    "fabric",
    "oom_kill",
    "disk_full",
    "stale_mount",
    "throttled",
]
"""The values of `FaultKind`."""
Source = Literal["nvml", "kernel_log", "host"]

MAX_SENT = 64
"""Faults in one report (`MAX_FAULTS`)."""
MAX_KEPT = 256
"""Faults kept while the controller cannot be reached; beyond that the oldest are dropped, counted, and that is told."""
MAX_TEXT = 600
SAME = timedelta(seconds=10)
"""What is seen again within this time of the first sight is the same fault: the other source's view of it, or the next
of a storm of equal lines. After it, it is told again."""
_MAX_SEEN = 1024


class Fault(NamedTuple):
    """One fault, as it is sent."""

    id: str
    kind: Kind
    at: datetime
    text: str
    source: Source
    gpu: str = ""
    xid: int | None = None
    pid: int | None = None
    cleared: bool = False

    def as_json(self) -> dict[str, Any]:
        """What travels."""
        return {**self._asdict(), "at": self.at.isoformat()}


class Sight(NamedTuple):
    """A fault as one source has seen it: what happened, and what makes it this fault and no other."""

    kind: Kind
    at: datetime
    text: str
    source: Source
    gpu: str = ""
    xid: int | None = None
    pid: int | None = None
    about: str = ""
    """What it concerns, where `gpu` and `xid` do not say: a path, a process, a port."""
    mark: str = ""
    """Where it stands in its source; empty: its time tells it from others."""

    @property
    def key(self) -> str:
        """Equal for all sights of one fault. The process is no part of it: NVML does not name one."""
        what = f"{self.xid}" if self.xid is not None else _short(self.about)
        return f"{self.kind}/{self.gpu}/{what}"


class Condition(NamedTuple):
    """A state of the node that begins and ends: told when it does."""

    sight: Sight
    holds: bool | None
    """None: not known now, so nothing changes."""


class Faults:
    """Faults to be told, and what is needed to tell each once.

    Args:
        origin: what makes ids unique: the node's name and the kernel's boot id.
        saved: `save()` of an earlier life.
    """

    def __init__(self, origin: str, saved: Mapping[str, Any] | None = None) -> None:
        """Go on where an earlier life ended."""
        saved = saved or {}
        self._origin = origin
        self.dropped = int(saved.get("dropped", 0))
        """How many were dropped untold since a report last said so."""
        self._seen = {str(key): datetime.fromisoformat(at) for key, at in saved.get("seen", {}).items()}
        self._holding: dict[str, str] = {str(key): str(told) for key, told in saved.get("holding", {}).items()}
        """Conditions that hold, by key: the id under which their beginning was told."""
        faults = [fault | {"at": datetime.fromisoformat(fault["at"])} for fault in saved.get("pending", [])]
        self._pending: deque[Fault] = deque(Fault(**fault) for fault in faults[-MAX_KEPT:])

    @classmethod
    def restored(cls, origin: str, saved: Any) -> "Faults":
        """As saved; anew where that cannot be used, which is said."""
        try:
            return cls(origin, saved)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("what an earlier life has saved cannot be used, and is begun anew: %s", error)
            return cls(origin)

    def save(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "dropped": self.dropped,
            "seen": {key: at.isoformat() for key, at in self._seen.items()},
            "holding": self._holding,
            "pending": [fault.as_json() for fault in self._pending],
        }

    def __len__(self) -> int:
        """How many wait to be told."""
        return len(self._pending)

    def first(self, count: int) -> list[Fault]:
        """The oldest ones."""
        return [self._pending[index] for index in range(min(count, len(self._pending)))]

    def acknowledged(self, sent: Iterable[Fault]) -> None:
        """Forget what the controller has. By id: the oldest may have been dropped meanwhile."""
        had = {fault.id for fault in sent}
        self._pending = deque(fault for fault in self._pending if fault.id not in had)

    def tell(self, sight: Sight) -> bool:
        """Take in what was seen; False when it is a fault that is known already."""
        before = self._seen.get(sight.key)
        if before is not None and abs(sight.at - before) < SAME:
            return False
        self._remember(sight)
        self._add(self._fault(sight, self._id(sight)))
        return True

    def check(self, condition: Condition) -> None:
        """Take in whether a state holds, and tell when it began or is over."""
        key = condition.sight.key
        told = self._holding.get(key)
        if condition.holds and told is None:
            self._holding[key] = self._id(condition.sight)
            self.tell(condition.sight)
        elif condition.holds is False and told is not None:
            del self._holding[key]
            self._seen.pop(key, None)  # should it begin again, that is news
            self._add(self._fault(condition.sight, f"{told}/over")._replace(cleared=True))

    def _id(self, sight: Sight) -> str:
        return f"{self._origin}/{sight.key}/{sight.mark or int(sight.at.timestamp() * 1000)}"

    def _fault(self, sight: Sight, identity: str) -> Fault:
        text = printable(sight.text)
        return Fault(identity, sight.kind, sight.at, text, sight.source, sight.gpu, sight.xid, sight.pid)

    def _remember(self, sight: Sight) -> None:
        if len(self._seen) >= _MAX_SEEN:
            newest = sorted(self._seen, key=lambda key: self._seen[key])[_MAX_SEEN // 2 :]
            self._seen = {key: self._seen[key] for key in newest}
        self._seen[sight.key] = sight.at

    def _add(self, fault: Fault) -> None:
        self._pending.append(fault)
        if len(self._pending) > MAX_KEPT:
            self._pending.popleft()
            self.dropped += 1


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """One printable line; of a long one, beginning and end, for the kernel names the process last."""
    line = "".join(sign if sign.isprintable() else " " for sign in text).strip()
    return line if len(line) <= limit else f"{line[: limit // 2]} … {line[3 - limit // 2 :]}"[:limit]


def _short(text: str) -> str:
    """A few signs that stand for the text: ids are short, paths may be long."""
    return f"{zlib.crc32(text.encode(errors='replace')):08x}" if text else ""
