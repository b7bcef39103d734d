"""The ledger's head kept elsewhere: a file, a syslog receiver and a git repository, each a real one."""

import asyncio
import socket
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from relight.clients import anchors_places
from relight.clients.anchors import LINES, AnchorError, read_anchors
from relight.clients.anchors_places import FilePlace, GitPlace, SyslogPlace, open_anchors
from relight.config.audit import AnchorSettings
from relight.domain.audit import Anchor

AT = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)


def anchor(seq: int = 7) -> Anchor:
    return Anchor(cluster="main", ledger="f" * 64, seq=seq, hash=f"{seq:064x}", at=AT, mac="a" * 64)


async def test_a_file_grows_by_a_line_each_time(tmp_path):
    """What was there before stays; half a line, which a full disk has left, is not continued."""
    path = tmp_path / "anchors.jsonl"
    place = FilePlace(path)
    await place.keep(anchor(1).line)
    await place.keep(anchor(2).line)
    assert list(read_anchors(path)) == [anchor(1), anchor(2)]
    with path.open("a") as file:
        file.write(anchor(3).line[:40])
    await place.keep(anchor(4).line)
    assert path.read_text().endswith(f"{anchor(4).line}\n")
    assert list(read_anchors(path)) == [anchor(1), anchor(2), anchor(4)]


async def test_a_file_that_cannot_be_written_is_told(tmp_path):
    """By name, with the system's reason."""
    with pytest.raises(AnchorError, match=r"missing/a: No such file"):
        await FilePlace(tmp_path / "missing" / "a").keep("x")


async def test_a_mount_that_hangs_costs_a_thread_and_no_more(tmp_path, monkeypatch):
    """The try is given up; while it still hangs no other is begun; afterwards it works again."""
    monkeypatch.setattr(anchors_places, "WITHIN_S", 0.2)
    released = threading.Event()

    def hangs(*_: object) -> None:
        released.wait(30)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(anchors_places, "append", hangs)
    place = FilePlace(tmp_path / "hangs")
    with pytest.raises(AnchorError, match="no answer within"):
        await place.keep("x")
    with pytest.raises(AnchorError, match="still waits"):
        await place.keep("x")
    released.set()
    (thread,) = (each for each in threading.enumerate() if each.name == "anchor")
    thread.join(20)
    with pytest.raises(AnchorError, match="Input/output error"):
        await place.keep("x")


def _receiver(kind: str, folder: Path) -> tuple[socket.socket, str]:
    if kind == "unix":
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(f"{folder}/log")
        return receiver, f"{folder}/log"
    receiver = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    if kind == "tcp":
        receiver.listen()
    return receiver, f"{kind}://127.0.0.1:{receiver.getsockname()[1]}"


def _received(receiver: socket.socket, kind: str) -> bytes:
    if kind != "tcp":
        return receiver.recv(4096)
    connection, _ = receiver.accept()
    with connection, connection.makefile("rb") as stream:
        return stream.read()


@pytest.mark.parametrize("kind", ["unix", "udp", "tcp"])
async def test_syslog_receives_it(tmp_path, kind):
    """As a message of facility `auth`, level `info`; found again in a log with other lines around."""
    receiver, address = _receiver(kind, tmp_path)
    receiver.settimeout(20)
    with receiver:
        await SyslogPlace(address).keep(anchor().line)
        said = await asyncio.to_thread(_received, receiver, kind)
    assert said == f"<38>relight-anchor: {anchor().line}".encode() + (b"\n" if kind == "tcp" else b"")
    log = tmp_path / "auth.log"
    text = said.decode().removeprefix("<38>").rstrip()
    log.write_text(f"Nov 30 09:27:11 ctl sshd[1]: hello\nNov 30 09:27:12 ctl {text}\nNov 30 09:28:00 x: {{}}\n")
    assert list(read_anchors(log)) == [anchor()]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "/nowhere/log"])
async def test_a_syslog_that_is_not_there_is_told(address):
    """Nothing is printed, and the message is not lost in silence."""
    with pytest.raises(AnchorError, match=f"{address}: "):
        await SyslogPlace(address).keep("x")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True)
    return done.stdout


async def test_a_repository_gets_a_commit_each_time_and_pushes(tmp_path):
    """Only our file is committed; what somebody else has staged stays staged. The other repository has it as well."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs.git"
    _git(tmp_path, "init", "--quiet", "--bare", str(theirs))
    _git(tmp_path, "clone", "--quiet", str(theirs), str(ours))
    (ours / "other").write_text("x")
    _git(ours, "add", "other")
    place = GitPlace(ours, push=True)
    await place.keep(anchor(1).line)
    await place.keep(anchor(2).line)
    assert _git(ours, "log", "--format=%an %s").splitlines() == ["relight relight: head of the ledger"] * 2
    assert _git(ours, "status", "--porcelain").split() == ["A", "other"]
    assert _git(theirs, "show", f"HEAD:{LINES}") == f"{anchor(1).line}\n{anchor(2).line}\n"
    assert list(read_anchors(ours)) == [anchor(1), anchor(2)]


async def test_a_folder_that_is_no_repository_is_told(tmp_path):
    """With what git says."""
    with pytest.raises(AnchorError, match=r"git add in .*not a git repository"):
        await GitPlace(tmp_path, push=False).keep("x")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"file": "/mnt/a"}, "file:/mnt/a"),
        ({"syslog": "udp://loghost:514"}, "syslog:udp://loghost:514"),
        ({"git": "/srv/a", "push": True}, "git:/srv/a"),
    ],
)
def test_places_are_named_as_in_the_settings(given, name):
    """By kind and address."""
    assert [place.name for place in open_anchors([AnchorSettings(**given)])] == [name]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "exactly one of file, syslog and git"),
        ({"file": "/a", "git": "/b"}, "exactly one of"),
        ({"syslog": "loghost:514"}, "must be a socket's path"),
        ({"syslog": "tls://loghost"}, "must be a socket's path"),
        ({"file": "/a", "push": True}, "push belongs to git"),
        ({"fil": "/a"}, "Extra inputs"),
    ],
)
def test_settings_that_name_no_place_are_refused(given, says):
    """In a sentence."""
    with pytest.raises(ValueError, match=says):
        AnchorSettings(**given)
