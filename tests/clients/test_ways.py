"""Which way a site's settings take to Slurm, and what goes along it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relight.clients.files import LocalFiles
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner
from relight.clients.slurm_pyslurm import DELEGATED, PySlurm
from relight.clients.ssh import SshRunner
from relight.clients.ssh_files import SftpFiles
from relight.clients.ways import FORCED, WayError, open_access
from relight.config.settings import Settings, Way

SSH = {"host": "slurmctl", "user": "relight"}
GREETS = """
import json, struct, sys
def send(line):
    body = json.dumps(line).encode()
    sys.stdout.buffer.write(struct.pack("!II", len(body), 1) + body)
    sys.stdout.buffer.flush()
send({hello})
while header := sys.stdin.buffer.read(8):
    sys.stdin.buffer.read(struct.unpack("!II", header)[0])
    send({{"error": {{"errno": 1800, "type": "RPCError", "text": "Unable to contact slurm controller"}}}})
"""
FITS = {"pyslurm": "25.11.2", "slurmctld": "26.05.5"}
MISFIT = {"error": {"errno": 1005, "type": "RPCError", "text": "Incompatible versions of client and server code"}}


def site(**slurm: object) -> Settings:
    """Settings of a site whose Slurm is reached like that."""
    return Settings(slurm=slurm)


@pytest.fixture
def python(tmp_path: Path) -> Callable[[object], str]:
    """Makes a Python that has pyslurm, as far as can be seen from outside, and greets like that."""

    def make(hello: object) -> str:
        (tmp_path / "server.py").write_text(GREETS.format(hello=hello))
        program = tmp_path / "python"
        # `-I -c` looks whether there is a pyslurm; anything else is the server.
        program.write_text(f'#!/bin/sh\n[ "$2" = -c ] && exit 0\nexec {sys.executable} -I {tmp_path}/server.py\n')
        program.chmod(0o755)
        return str(program)

    return make


async def test_without_anything_the_commands_do_the_work() -> None:
    """`auto` says why: this Python has no pyslurm."""
    async with open_access(site(pyslurm_python="/nonexistent/python")) as access:
        assert (access.way, access.why) == (
            Way.COMMANDS,
            "/nonexistent/python cannot be run: No such file or directory",
        )
        assert isinstance(access.slurm, SlurmCommands)
        assert isinstance(access.runner, LocalRunner)
        assert isinstance(access.files, LocalFiles)
        assert access.delegated == {}


async def test_pyslurm_is_taken_where_it_is(python: Callable[[object], str]) -> None:
    """Also while slurmctld gives no answer: then it is reached by the same way once it is up."""
    async with open_access(site(pyslurm_python=python(FITS))) as access:
        assert (access.way, access.why) == (Way.PYSLURM, "pyslurm is installed; Slurm gives no answer now")
        assert isinstance(access.slurm, PySlurm)
        assert access.delegated == DELEGATED


async def test_a_pyslurm_of_another_release_is_left_alone(python: Callable[[object], str]) -> None:
    """`auto` goes on with the commands, and says so; asked for by name it stays, and its reads say what is wrong."""
    misfit = python(MISFIT)
    async with open_access(site(pyslurm_python=misfit)) as access:
        assert access.way is Way.COMMANDS
        assert access.why.startswith("pyslurm does not fit this Slurm: ")
    async with open_access(site(pyslurm_python=misfit, way="pyslurm")) as access:
        assert access.way is Way.PYSLURM


async def test_pyslurm_asked_for_and_missing_is_an_error() -> None:
    """A way that was chosen is never replaced silently."""
    with pytest.raises(WayError, match=r"slurm.way is pyslurm, and /nonexistent/python cannot be run"):
        async with open_access(site(way="pyslurm", pyslurm_python="/nonexistent/python")):
            pass


async def test_a_host_means_ssh_and_nothing_is_asked_of_it_yet() -> None:
    """A host that is down now is reached later; relight-node goes along, or along an account of its own."""
    async with open_access(Settings(slurm={"ssh": SSH}, logs={"over_ssh": True})) as access:
        assert (access.way, access.why) == (Way.SSH, "slurm.ssh.host is set")
        assert isinstance(access.runner, SshRunner)
        assert access.node_runner is access.runner
        assert access.node_command[0] == "sudo"
        assert isinstance(access.files, SftpFiles)
    async with open_access(site(ssh=SSH, node_ssh=SSH | {"user": "root"})) as access:
        assert access.node_runner is not access.runner
        assert access.node_command == FORCED
        assert isinstance(access.files, LocalFiles)


async def test_commands_asked_for_stay_here_although_a_host_is_named() -> None:
    """The host may be there for the logs alone."""
    async with open_access(Settings(slurm={"way": "commands", "ssh": SSH}, logs={"over_ssh": True})) as access:
        assert access.way is Way.COMMANDS
        assert isinstance(access.runner, LocalRunner)
        assert isinstance(access.files, SftpFiles)


async def test_a_jump_host_that_is_none_is_said() -> None:
    """Which key, and what is accepted."""
    with pytest.raises(WayError, match=r"slurm\.ssh: not `user@host:port`: 'a b'"):
        async with open_access(site(ssh=SSH | {"jump": "a b"})):
            pass


async def test_without_asyncssh_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an optional package."""
    monkeypatch.setitem(sys.modules, "relight.clients.ssh", None)
    with pytest.raises(WayError, match=r"pip install 'relight\[ssh\]'"):
        async with open_access(site(ssh=SSH)):
            pass
