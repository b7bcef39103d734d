"""Kernel messages from the real /dev/kmsg and from a followed file: what is news, what is not, and what was missed."""

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients import kernel_messages
from relight.clients.host_state import boot_id
from relight.clients.kernel_messages import (
    AT_ONCE,
    BEHIND,
    FollowedFile,
    KernelBuffer,
    KernelMessages,
    KernelMessagesError,
    parse_line,
    parse_record,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:43:00): 79, pid=77, name=python, GPU has fallen off the bus."


def read(source: KernelMessages) -> list[str]:
    """The texts that are there now."""
    return [message.text for message in source.read(0.0).messages]


def everything(source: KernelMessages) -> Iterator[str]:
    """The texts of all rounds until nothing is left."""
    while texts := read(source):
        yield from texts


# ---------------------------------------------------------------- /dev/kmsg


@pytest.fixture
def kmsg() -> str:
    """Its path, where it can be read."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read here: {error.strerror}")
    return "/dev/kmsg"


# The real kernel may say something between any two reads, and overwrite its oldest messages.


def numbers(source: KernelMessages) -> list[int]:
    """The kernel's own numbers of the messages that are there now."""
    rounds = iter(lambda: source.read(0.0).messages, [])
    return [int(message.mark.removeprefix("k")) for messages in rounds for message in messages]


def test_messages_of_this_boot_are_news_after_a_reboot(kmsg: str) -> None:
    """A reader that stood in an earlier boot gets all of this one's, in order."""
    found = numbers(KernelBuffer(boot_id(), {"boot": "an earlier one", "next": 1 << 40}, kmsg))
    assert len(found) > 10
    assert found == sorted(set(found))


def test_old_messages_are_no_news_to_a_first_reader(kmsg: str) -> None:
    """And it knows where to go on: another reader from there gets nothing old either."""
    old = numbers(KernelBuffer(boot_id(), {"boot": "", "next": 0}, kmsg))
    first = KernelBuffer(boot_id(), None, kmsg)
    assert min(numbers(first), default=old[-1] + 1) > old[-1]
    position = first.read(0.0).position
    assert position["next"] > old[-1]
    assert min(numbers(KernelBuffer(boot_id(), position, kmsg)), default=position["next"]) >= position["next"]


def test_a_reader_goes_on_where_another_stood(kmsg: str) -> None:
    """Nothing twice, nothing left out."""
    everyone = numbers(KernelBuffer(boot_id(), {"boot": "", "next": 0}, kmsg))
    rest = everyone[len(everyone) // 2 :]
    assert numbers(KernelBuffer(boot_id(), {"boot": boot_id(), "next": rest[0]}, kmsg))[: len(rest)] == rest


def test_what_a_program_writes_there_is_not_the_kernels(kmsg: str) -> None:
    """Facility 0 cannot be forged, not even by root."""
    source = KernelBuffer(boot_id(), None, kmsg)
    before = source.read(0.0).position["next"]
    try:
        Path(kmsg).write_text(f"<3>{XID}\n")
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be written here: {error.strerror}")
    news = source.read(5.0)
    assert XID not in [message.text for message in news.messages]
    assert news.position["next"] > before


def test_overwritten_messages_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """EPIPE, then a gap in the numbers: what was in it is unknown, and that is said."""
    records: list[Any] = [b"4,7,100,-;one\n", OSError(errno.EPIPE, ""), b"4,12,200,-;two\n", BlockingIOError()]

    def read_record(_file: int, _size: int) -> bytes:
        record = records.pop(0)
        if isinstance(record, OSError):
            raise record
        assert isinstance(record, bytes)
        return record

    monkeypatch.setattr(kernel_messages.os, "read", read_record)
    news = KernelBuffer("b", {"boot": "b", "next": 7}, str(tmp_path / "missing"))._drain(0)
    assert [message.text for message in news.messages] == ["one", "two"]
    assert news.lost == "4 messages were overwritten before they were read"
    assert news.position == {"boot": "b", "next": 13}


def test_a_record_is_read_as_the_kernel_documents_it() -> None:
    """Extra fields are skipped, lines of properties are no text, the time is since boot."""
    record = (
        b"3,339,5140900,-,caller=T1;NVRM: Xid (PCI:0000:43:00): 79, x\\x0a\n SUBSYSTEM=pci\n DEVICE=+pci:0000:43:00.0\n"
    )
    number, message = parse_record(record, NOW)
    assert message is not None
    assert (number, message.mark) == (339, "k339")
    assert message.text == "NVRM: Xid (PCI:0000:43:00): 79, x\\x0a"
    assert message.at == NOW + timedelta(seconds=5, microseconds=140900)


def test_a_missing_device_is_an_error(tmp_path: Path) -> None:
    """Not silence."""
    with pytest.raises(KernelMessagesError, match="No such file"):
        KernelBuffer("b", None, str(tmp_path / "kmsg")).read(0.0)


# ---------------------------------------------------------------- a file


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file with old lines."""
    path = tmp_path / "kern.log"
    path.write_text("old 1\nold 2\n")
    return path


def append(path: Path, text: str) -> None:
    """As syslog does."""
    with path.open("a") as file:
        file.write(text)


def test_only_new_lines_of_a_file_are_news(log: Path) -> None:
    """And each once; a line counts when it is complete."""
    source = FollowedFile(str(log), None)
    assert read(source) == []
    append(log, "new 1\nne")
    assert read(source) == ["new 1"]
    append(log, "w 2\n")
    assert read(source) == ["new 2"]
    assert read(source) == []


def test_lines_written_while_nobody_read_are_news(log: Path) -> None:
    """From where the last reader stood."""
    source = FollowedFile(str(log), None)
    position = source.read(0.0).position
    source.close()
    append(log, "meanwhile\n")
    assert read(FollowedFile(str(log), position)) == ["meanwhile"]


def test_a_file_that_appears_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Until then it is an error, not silence."""
    path = tmp_path / "later.log"
    source = FollowedFile(str(path), None)
    with pytest.raises(KernelMessagesError):
        source.read(0.0)
    path.write_text("first\n")
    assert read(source) == ["first"]


def test_rotation_loses_nothing(log: Path) -> None:
    """What was written just before is read, then the new file from its beginning."""
    source = FollowedFile(str(log), None)
    assert read(source) == []
    append(log, "last of the old\n")
    log.rename(log.with_name("kern.log.1"))
    assert read(source) == ["last of the old"]
    assert read(source) == []
    log.write_text("first of the new\n")
    assert source.read(1.0).messages[0].text == "first of the new"


def test_rotation_while_nobody_read_loses_nothing(log: Path) -> None:
    """The file that was rotated away is read to its end first."""
    source = FollowedFile(str(log), None)
    position = source.read(0.0).position
    source.close()
    append(log, "last of the old\n")
    log.rename(log.with_name("kern.log.1"))
    log.write_text("first of the new\n")
    source = FollowedFile(str(log), position)
    assert read(source) == ["last of the old"]
    assert source.read(1.0).messages[0].text == "first of the new"


def test_a_truncated_file_is_read_from_its_beginning(log: Path) -> None:
    """What stands there now was not there before."""
    source = FollowedFile(str(log), None)
    assert read(source) == []
    log.write_text("anew\n")
    assert read(source) == ["anew"]


def test_a_backlog_is_bounded_and_what_was_left_out_is_told(log: Path) -> None:
    """Days of lines are not caught up with; the newest are."""
    source = FollowedFile(str(log), None)
    position = source.read(0.0).position
    source.close()
    append(log, ("x" * 99 + "\n") * (BEHIND // 100 + 1000) + "newest\n")
    source = FollowedFile(str(log), position)
    news = source.read(0.0)
    assert "were left out" in news.lost
    assert 0 < len(news.messages) <= AT_ONCE
    assert list(everything(source))[-1] == "newest"


def test_what_has_no_end_of_line_is_not_waited_for(log: Path) -> None:
    """Rubbish in a log does not blind the reader, and what follows within it is no line of its own."""
    source = FollowedFile(str(log), None)
    assert read(source) == []
    append(log, "x" * (256 << 10) + XID + "\nafter\n")
    assert list(_rounds(source, 8)) == ["after"]


def test_a_truncated_file_is_news_after_a_restart_too(log: Path) -> None:
    """A position beyond its end is of what was there before."""
    source = FollowedFile(str(log), None)
    position = source.read(0.0).position
    source.close()
    log.write_text("anew\n")
    assert read(FollowedFile(str(log), position)) == ["anew"]


def test_an_error_on_the_way_makes_nothing_old_news(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on where it stood."""
    source = FollowedFile(str(log), None)
    assert read(source) == []
    append(log, "new\n")
    with monkeypatch.context() as patch:
        patch.setattr(kernel_messages.os, "pread", _fail)
        with pytest.raises(KernelMessagesError, match="Input/output error"):
            source.read(0.0)
    assert read(source) == ["new"]


def _fail(*_arguments: object) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _rounds(source: FollowedFile, count: int) -> Iterator[str]:
    for _ in range(count):
        yield from read(source)


def test_a_pipe_is_no_log(tmp_path: Path) -> None:
    """Reading one that nobody writes would block for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KernelMessagesError, match="no plain file"):
        FollowedFile(str(tmp_path / "pipe"), None).read(0.0)


@given(cuts=st.lists(st.integers(0, 400), max_size=6), lines=st.lists(st.text("ab é\t", max_size=30), max_size=12))
def test_however_it_is_written_the_lines_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], lines: list[str]
) -> None:
    """Buffers end anywhere, even within a character."""
    path = tmp_path_factory.mktemp("log") / "kern.log"
    path.write_bytes(b"")
    source, found = FollowedFile(str(path), None), []
    found += read(source)
    data = "".join(f"{line}\n" for line in lines).encode()
    edges = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    for start, end in pairwise(edges):
        with path.open("ab") as file:
            file.write(data[start:end])
        found += read(source)
    source.close()
    assert found == lines


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("2026-11-30T11:59:58.250000+00:00 n1 kernel: ", NOW - timedelta(seconds=1.75)),
        ("2026-11-30T12:59:58.25+01:00 n1 kernel: [ 1234.567890] ", NOW - timedelta(seconds=1.75)),
        ("2026-11-30T23:00:00Z n1 kernel: ", NOW),  # a clock that is ahead: nothing has happened in the future
        ("[98765.432109] ", NOW),
        ("", NOW),
    ],
)
def test_the_time_of_a_line_is_its_own_where_it_has_one(line: str, at: datetime) -> None:
    """And what syslog put before the message is taken off."""
    message = parse_line(line + XID, NOW, "f1-0")
    assert (message.text, message.at) == (XID, at)


def test_the_old_form_has_no_year() -> None:
    """A line of last December that is read in January is of last year."""
    now = datetime(2027, 1, 1, 0, 5).astimezone()
    message = parse_line(f"Dec 31 23:58:00 n1 kernel: [12.5] {XID}", now, "f1-0")
    assert (message.text, message.at) == (XID, datetime(2026, 12, 31, 23, 58).astimezone())


def test_another_programs_line_is_not_taken_for_the_kernels_prefix() -> None:
    """Only `kernel:` in its place is."""
    line = f"2026-11-30T11:59:58+00:00 n1 sshd[7]: kernel: {XID}"
    assert parse_line(line, NOW, "f1-0").text == line
