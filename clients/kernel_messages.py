"""The kernel's messages on this machine, as they come: from /dev/kmsg, or from a file that syslog writes.

/dev/kmsg is the better source: it tells what the kernel itself said (facility 0) from what a program wrote there
(Documentation/ABI/testing/dev-kmsg). A file is as trustworthy as those who can have lines put into it; rsyslog
takes lines of facility `kern` from any program, for one. Plain tuples, no pydantic: the node agent's memory is counted.

KernelMessagesError       they cannot be read now; the text says why. Trying again later may help
"""

import errno
import os
import re
import select
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

AT_ONCE = 256
"""Messages handed over at once."""
LONGEST = 8192
"""Bytes of a line that are looked at. A record of /dev/kmsg is no longer."""
BEHIND = 4 << 20
"""A file that is further ahead of us than this is followed from near its end, and that is told."""
_BLOCK = 256 << 10
_POLL = 0.2


class KernelMessagesError(Exception):
    """The kernel's messages cannot be read."""


class KernelMessage(NamedTuple):
    """One message, without what syslog put before it."""

    text: str
    at: datetime
    mark: str
    """Where it stands in its source: the same message read twice has the same mark."""


class Messages(NamedTuple):
    """What is new, and where to go on after it was dealt with."""

    messages: list[KernelMessage]
    position: Mapping[str, Any]
    lost: str = ""
    """What was missed on the way, in words."""


class KernelMessages(Protocol):
    """Messages in order; to be used by one thread."""

    def read(self, timeout_s: float) -> Messages:
        """Return what is new, at most `AT_ONCE` messages; wait up to `timeout_s` for the first.

        Raises:
            KernelMessagesError: they cannot be read now.
        """


class KernelBuffer:
    """/dev/kmsg.

    Args:
        boot: the kernel's boot id: message numbers begin anew with each boot.
        position: where an earlier reader stood; None: only what comes from now on is news. A position of an earlier
            boot means that all of this boot is.
        path: of the device.
    """

    def __init__(self, boot: str, position: Mapping[str, Any] | None, path: str = "/dev/kmsg") -> None:
        """Open nothing yet."""
        self._boot = boot
        self._path = path
        self._from_now = position is None
        self._next = int(position.get("next", 0)) if position and position.get("boot") == boot else 0
        self._file: int | None = None

    def read(self, timeout_s: float) -> Messages:
        """Return what is new."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                if self._from_now:
                    # Read, not sought over: only so is the number of the last one known.
                    while self._drain(self._file).messages:
                        pass
                    self._from_now = False
            poll = select.poll()
            poll.register(self._file, select.POLLIN)
            poll.poll(timeout_s * 1000)
            return self._drain(self._file)
        except OSError as error:
            raise KernelMessagesError(f"{self._path}: {error.strerror}{_advice(error)}") from error

    def _drain(self, file: int) -> Messages:
        messages: list[KernelMessage] = []
        before, lost = self._next, 0
        # The kernel's own clock, as wall-clock time: what both say now.
        zero = datetime.now(UTC) - timedelta(seconds=time.clock_gettime(time.CLOCK_MONOTONIC))
        while len(messages) < AT_ONCE:
            try:
                record = os.read(file, LONGEST + 1)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before we came; the next read goes on after the gap
                    continue
                raise
            number, message = parse_record(record, zero)
            if number < before:
                continue  # known from an earlier life
            lost += number - self._next if self._next else 0
            self._next = number + 1
            if message:
                messages.append(message)
        position = {"boot": self._boot, "next": self._next}
        return Messages(messages, position, f"{lost} messages were overwritten before they were read" if lost else "")


def parse_record(record: bytes, zero: datetime) -> tuple[int, KernelMessage | None]:
    """One record of /dev/kmsg: its number, and the message where the kernel itself wrote it.

    `priority,number,microseconds,flags[,...];text`, then lines ` KEY=value` that are no part of the text. Facility
    (`priority >> 3`) 0 is the kernel; programs cannot use it.
    """
    head, _, body = record.partition(b";")
    fields = head.split(b",")
    number = int(fields[1])
    if int(fields[0]) >> 3:
        return number, None
    text = body.partition(b"\n")[0].decode(errors="replace")
    return number, KernelMessage(text, zero + timedelta(microseconds=int(fields[2])), f"k{number}")


class FollowedFile:
    """A file into which syslog writes the kernel's messages; rotation and truncation are followed.

    Args:
        path: of the file.
        position: where an earlier reader stood; None: only what comes from now on is news. A file that does not exist
            yet is news from its beginning.
        sleep: waits between looks.
    """

    def __init__(
        self, path: str, position: Mapping[str, Any] | None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Open nothing yet."""
        self._path = path
        self._sleep = sleep
        self._position = position
        self._from_now = position is None and os.path.lexists(path)
        self._file: int | None = None
        self._inode = self._offset = 0
        self._within = False
        """Within a line whose beginning was not read. What is left of it is no line: a program may have written it."""

    def read(self, timeout_s: float) -> Messages:
        """Return what is new."""
        end = time.monotonic() + timeout_s
        try:
            lost = self._open() if self._file is None else ""
            while True:
                found = self._lines()
                if found or lost or time.monotonic() >= end:
                    return Messages(found, {"inode": self._inode, "offset": self._offset}, lost)
                if not self._turn():
                    self._sleep(_POLL)
        except OSError as error:
            if self._file is not None:
                self._position = {"inode": self._inode, "offset": self._offset}
            self.close()
            raise KernelMessagesError(f"{self._path}: {error.strerror}{_advice(error)}") from error

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _open(self) -> str:
        """Open where an earlier reader stood, be it in the file that was rotated away; say what was left out."""
        wanted, self._position = self._position or {}, None
        self._use(self._path)
        if wanted and self._inode != wanted.get("inode"):
            with suppress(FileNotFoundError):
                self._use(f"{self._path}.1")
            if self._inode != wanted.get("inode"):
                self._use(self._path)
        size = self._about().st_size
        if self._inode == wanted.get("inode") and int(wanted.get("offset", 0)) <= size:
            self._offset = int(wanted["offset"])
        if self._from_now:
            self._offset, self._from_now = size, False
        left_out = size - BEHIND - self._offset
        if left_out <= 0:
            return ""
        self._offset, self._within = self._offset + left_out, True
        return f"{left_out} bytes of {self._path} were left out: too many to catch up with"

    def _use(self, path: str) -> None:
        self.close()
        self._file = _open_plain(path)
        self._inode, self._offset, self._within = self._about().st_ino, 0, False

    def _about(self) -> os.stat_result:
        return os.fstat(-1 if self._file is None else self._file)

    def _lines(self) -> list[KernelMessage]:
        if self._file is None:
            return []
        if self._about().st_size < self._offset:
            self._offset, self._within = 0, False  # truncated: what stands there now is new
        data = os.pread(self._file, _BLOCK, self._offset)
        now = datetime.now(UTC)
        found: list[KernelMessage] = []
        for line in data.split(b"\n")[:-1][:AT_ONCE]:
            if not self._within:
                text = line[:LONGEST].decode(errors="replace")
                found.append(parse_line(text, now, f"f{self._inode}-{self._offset}"))
            self._offset, self._within = self._offset + len(line) + 1, False
        if len(data) == _BLOCK and b"\n" not in data:
            self._offset, self._within = self._offset + _BLOCK, True  # no log line: not waited for
        return found

    def _turn(self) -> bool:
        """Go on with the new file once the old one was read to its end; True when there is one."""
        try:
            if os.stat(self._path).st_ino == self._inode:  # noqa: PTH116 - the same module as everywhere here
                return False
            self._use(self._path)
        except FileNotFoundError:
            return False  # between the two steps of a rotation
        return True


def _open_plain(path: str) -> int:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is no plain file")
    return file


def _advice(error: OSError) -> str:
    return (
        " (reading the kernel's messages needs root or CAP_SYSLOG)"
        if error.errno in (errno.EPERM, errno.EACCES)
        else ""
    )


_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_OLD = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
_HEAD = re.compile(rf"(?:(?P<iso>{_ISO})|(?P<old>{_OLD})) \S+ kernel: (?:\[ *\d+\.\d+\] ?)?|\[ *\d+\.\d+\] ")
"""Before the kernel's own text: `<time> <host> kernel: [uptime] `, or as `dmesg` prints, `[uptime] `."""


def parse_line(line: str, now: datetime, mark: str) -> KernelMessage:
    """One line of a syslog file. The time is the line's own where it has one that is not in the future, else `now`."""
    head = _HEAD.match(line)
    if head is None:
        return KernelMessage(line, now, mark)
    return KernelMessage(line[head.end() :], min(_time(head, now) or now, now), mark)


def _time(head: re.Match[str], now: datetime) -> datetime | None:
    try:
        if head["iso"]:
            return datetime.fromisoformat(head["iso"])
        if head["old"]:
            # Syslog's traditional form: local time, and no year.
            at = datetime.strptime(f"{now.astimezone().year} {head['old']}", "%Y %b %d %H:%M:%S").astimezone()
            return at if at <= now + timedelta(days=1) else at.replace(year=at.year - 1)
    except ValueError:
        pass
    return None
