"""Commands over a real sshd on loopback: what arrives, what comes back, and what every failure is called."""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relight.clients import ssh
from relight.clients.slurm_process import Done, NotFinishedError, NotStartedError, Runner
from relight.clients.ssh import SshConnection, SshRunner, slurm_environment
from relight.clients.ssh_hosts import Address, SshError
from relight.lab.processes import wait_until
from relight.lab.sshd import Sshd, new_key

PATIENCE = timedelta(seconds=20)


@pytest.fixture
def runner(connection: SshConnection) -> SshRunner:
    """The runner that Slurm's commands get."""
    return SshRunner(connection)


@pytest.fixture
def people(sshd: Sshd) -> Iterator[Sshd]:
    """An sshd for an ordinary account: sshd passes no signals on to root's commands."""
    if os.geteuid() != 0:
        yield sshd
        return
    people = Sshd(sshd.folder.parent / "people", "nobody", Path("/"))
    people.start()
    people.authorize()
    try:
        yield people
    finally:
        people.stop()


@asynccontextmanager
async def connected(sshd: Sshd, **other: Any) -> AsyncIterator[SshConnection]:
    """A connection of its own, with other settings."""
    connection = SshConnection(**(sshd.login | other))
    try:
        yield connection
    finally:
        await connection.close()


async def refused(sshd: Sshd, **other: Any) -> str:
    """What a connection that cannot be made says; the runner says the same, and that nothing was started."""
    async with connected(sshd, **other) as connection:
        with pytest.raises(SshError) as told:
            await connection.connected()
        with pytest.raises(NotStartedError) as said:
            await SshRunner(connection).run(("true",), PATIENCE)
        assert str(said.value) == str(told.value)
    return str(told.value)


async def until(ready: Callable[[], bool]) -> None:
    """Wait until `ready`."""
    await asyncio.to_thread(wait_until, ready, 20, "it")


def call(*command: object, **environment: str) -> str:
    """What one of OpenSSH's own programs prints."""
    words = [str(word) for word in command]
    own = os.environ | environment
    return subprocess.run(words, env=own, check=True, capture_output=True, text=True, timeout=20).stdout


# Commands


def test_it_keeps_the_contract(runner: SshRunner) -> None:
    """The class is a `Runner` for the type checker."""
    contract: Runner = runner
    assert contract


async def test_a_command_to_its_end(runner: SshRunner) -> None:
    """Output, error text, exit status and input are the command's own."""
    line = 'cat; echo "$0 $1" >&2; exit 3'
    assert await runner.run(("sh", "-c", line, "a", "b c"), PATIENCE, stdin="in\n") == Done(3, "in\n", "a b c\n")
    assert await runner.run(("cat",), PATIENCE) == Done(0, "", "")


async def test_the_environment_is_slurms(connection: SshConnection) -> None:
    """Locale and zone are fixed, slurm.conf and the folder of the commands are the settings'."""
    done = await SshRunner(connection, slurm_environment("/a b/slurm.conf", "/opt/x")).run(("env",), PATIENCE)
    found = dict(line.split("=", 1) for line in done.out.splitlines())
    assert (found["LC_ALL"], found["TZ"], found["SLURM_TIME_FORMAT"]) == ("C", "UTC", "standard")
    assert found["SLURM_CONF"] == "/a b/slurm.conf"
    assert found["PATH"].startswith("/opt/x:")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40), max_size=5)
)
async def test_words_arrive_as_they_are(runner: SshRunner, words: list[str]) -> None:
    """Quotes, newlines, leading dashes, globs, empty words: no shell makes anything of them."""
    done = await runner.run(("printf", r"%s\0", "--", *words), PATIENCE)
    assert done.out.split("\0")[:-1] == ["--", *words]


@pytest.mark.parametrize("word", ["$(id)", "a'b\"c", "-n", "*", "a\nb\r\n", "`id`", "\\", "!x", "~", "#", "ü\u2028"])
async def test_words_that_shells_like(runner: SshRunner, word: str) -> None:
    """The same for what is most often got wrong."""
    assert (await runner.run(("printf", "%s", word), PATIENCE)).out == word


async def test_much_output_and_bytes_that_are_no_text(runner: SshRunner) -> None:
    """Megabytes come whole, error text is cut, and what is no UTF-8 is replaced."""
    line = r"head -c 20000000 /dev/zero | tr '\0' x; head -c 200000 /dev/zero | tr '\0' y >&2; printf '\377'"
    done = await runner.run(("sh", "-c", line), timedelta(seconds=60))
    assert done.out == "x" * 20_000_000 + "\ufffd"
    assert done.err == "y" * 64 * 1024


async def test_too_much_output_is_no_answer(runner: SshRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that never stops is ended."""
    monkeypatch.setattr(ssh, "MAX_OUTPUT", 1_000_000)
    with pytest.raises(NotFinishedError, match="more than 1000000 bytes"):
        await runner.run(("yes",), PATIENCE)


async def test_a_late_command_is_ended(people: Sshd) -> None:
    """It may have done something; it is gone afterwards, and the connection serves the next one."""
    async with connected(people) as connection:
        runner = SshRunner(connection)
        with pytest.raises(NotFinishedError, match=r"`sleep` gave no answer within 1 s"):
            await runner.run(("sleep", "60"), timedelta(seconds=1))
        await until(lambda: "sleep" not in people.running())
        assert (await runner.run(("echo", "on"), PATIENCE)).out == "on\n"


async def test_a_cancelled_command_is_ended(people: Sshd) -> None:
    """So is one whose caller was cancelled."""
    async with connected(people) as connection:
        task = asyncio.create_task(SshRunner(connection).run(("sleep", "60"), PATIENCE))
        await until(lambda: "sleep" in people.running())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: "sleep" not in people.running())


async def test_a_signal_is_a_negative_status(runner: SshRunner) -> None:
    """As of a process of our own."""
    assert (await runner.run(("sh", "-c", "kill -TERM $$"), PATIENCE)).code == -signal.SIGTERM


async def test_what_cannot_be_sent_did_nothing(connection: SshConnection, runner: SshRunner) -> None:
    """A NUL, half a character, a line beyond reason: refused before anything is sent, and the connection stays."""
    before = await connection.connected()
    for word in ("a\0b", "\udc80", "x" * 200_000):
        with pytest.raises(NotStartedError, match="could not be started"):
            await runner.run(("echo", word), PATIENCE)
    assert await connection.connected() is before


async def test_a_program_that_is_not_there_did_nothing(runner: SshRunner) -> None:
    """As here."""
    with pytest.raises(NotStartedError, match="no-such-program"):
        await runner.run(("no-such-program", "x"), PATIENCE)


async def test_many_at_once_share_a_connection(connection: SshConnection, runner: SshRunner) -> None:
    """More than sshd allows at a time all get their answers."""
    before = await connection.connected()
    answers = await asyncio.gather(*(runner.run(("echo", str(n)), PATIENCE) for n in range(40)))
    assert [done.out for done in answers] == [f"{n}\n" for n in range(40)]
    assert await connection.connected() is before


async def test_waiting_for_a_turn_is_not_having_started(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that is up before the command was sent is no doubt about what it did."""
    monkeypatch.setattr(ssh, "MAX_COMMANDS", 1)
    async with connected(sshd) as connection:
        runner = SshRunner(connection)
        long = asyncio.create_task(runner.run(("sleep", "2"), PATIENCE))
        await until(lambda: "sleep" in sshd.running())
        with pytest.raises(NotStartedError, match=r"within 0\.5 s"):
            await runner.run(("echo", "x"), timedelta(seconds=0.5))
        assert (await long).code == 0


# Losing the connection


async def test_a_connection_lost_in_a_command(sshd: Sshd) -> None:
    """The command may have done something; the next one gets a new connection."""
    async with connected(sshd) as connection:
        runner = SshRunner(connection)
        task = asyncio.create_task(runner.run(("sleep", "30"), PATIENCE))
        await until(lambda: "sleep" in sshd.running())
        sshd.drop_connections()
        with pytest.raises(NotFinishedError):
            await task
        assert (await runner.run(("echo", "again"), PATIENCE)).out == "again\n"


async def test_a_connection_lost_between_commands(sshd: Sshd) -> None:
    """It is made again without a word."""
    async with connected(sshd) as connection:
        before = await connection.connected()
        sshd.drop_connections()
        await before.wait_closed()
        assert (await SshRunner(connection).run(("echo", "again"), PATIENCE)).out == "again\n"


async def test_all_who_wait_share_one_attempt(sshd: Sshd) -> None:
    """One login for many callers, also when some of them give up; a failed one is everybody's answer."""
    async with connected(sshd) as connection:
        callers = [asyncio.create_task(connection.connected()) for _ in range(10)]
        await asyncio.sleep(0)
        callers.pop().cancel()
        assert len(set(await asyncio.gather(*callers))) == 1
    async with connected(sshd, port=free_port()) as connection:
        callers = [asyncio.create_task(connection.connected()) for _ in range(10)]
        errors = await asyncio.gather(*callers, return_exceptions=True)
        assert len({id(error) for error in errors}) == 1


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Who answers


async def test_a_host_that_is_not_known(sshd: Sshd, tmp_path: Path) -> None:
    """Refused with host, fingerprint, file, and the command that adds it; nothing is written."""
    text = await refused(sshd, known_hosts=tmp_path / "none")
    fingerprint = call("ssh-keygen", "-lf", sshd.folder / "host_key.pub").split()[1]
    for part in (f"127.0.0.1:{sshd.port}", fingerprint, str(tmp_path / "none"), "ssh-keyscan"):
        assert part in text
    assert not (tmp_path / "none").exists()


async def test_trust_on_first_use_is_for_the_first_time_only(sshd: Sshd, tmp_path: Path) -> None:
    """The key is kept beside what was there, in OpenSSH's own format; then it counts, and another is refused."""
    file = tmp_path / "new/known_hosts"
    async with connected(sshd, known_hosts=file, trust_on_first_use=True) as connection:
        await connection.connected()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == sshd.known_hosts.read_text()
    async with connected(sshd, known_hosts=file) as connection:
        await connection.connected()
    file.write_text("other.example ssh-ed25519 " + public_key(sshd.key))  # no newline at its end
    async with connected(sshd, known_hosts=file, trust_on_first_use=True) as connection:
        await connection.connected()
    assert file.read_text().splitlines()[1:] == sshd.known_hosts.read_text().splitlines()


def public_key(file: Path) -> str:
    """The key itself."""
    return Path(f"{file}.pub").read_text().split()[1]


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("hashed", [False, True])
async def test_a_changed_host_key(sshd: Sshd, tmp_path: Path, trust: bool, hashed: bool) -> None:
    """Never accepted, however the file names the host, and said what to do."""
    file = tmp_path / "known_hosts"
    file.write_text(f"[127.0.0.1]:{sshd.port} ssh-ed25519 {public_key(sshd.key)}\n")
    if hashed:
        call("ssh-keygen", "-q", "-H", "-f", file)
    before = file.read_text()
    text = await refused(sshd, known_hosts=file, trust_on_first_use=trust)
    assert "has changed" in text
    assert f"-R '[127.0.0.1]:{sshd.port}'" in text
    assert file.read_text() == before


async def test_a_host_vouched_for_by_an_authority_is_not_new(sshd: Sshd, tmp_path: Path) -> None:
    """With an authority for that host a bare key is an impostor's, on first use too; a revoked key always is."""
    file = tmp_path / "known_hosts"
    file.write_text(f"@cert-authority * ssh-ed25519 {public_key(sshd.key)}\n")
    before = file.read_text()
    assert "hung up before the login" in await refused(sshd, known_hosts=file, trust_on_first_use=True)
    assert file.read_text() == before
    file.write_text(f"@revoked * ssh-ed25519 {public_key(sshd.folder / 'host_key')}\n")
    assert "revoked" in await refused(sshd, known_hosts=file, trust_on_first_use=True)


# As whom


async def test_keys_that_cannot_be_used(sshd: Sshd, tmp_path: Path) -> None:
    """Missing, open to others, with a passphrase, no key at all: each said with its file and what to do."""
    key = new_key(tmp_path / "key")
    assert "cannot be read: No such file" in await refused(sshd, key=tmp_path / "none")
    key.chmod(0o640)
    assert f"chmod 600 {key}" in await refused(sshd, key=key)
    key.chmod(0o600)
    call("ssh-keygen", "-q", "-p", "-N", "secret", "-f", key)
    assert "ssh-add" in await refused(sshd, key=key)
    key.write_text("no key")
    assert f"{key}: no private key" in await refused(sshd, key=key)


async def test_a_key_that_is_not_let_in(sshd: Sshd, tmp_path: Path) -> None:
    """A stranger's key: which host, which account, which key, and where to look."""
    key = new_key(tmp_path / "key")
    text = await refused(sshd, key=key)
    for part in (f"{sshd.user}@127.0.0.1:{sshd.port}", str(key), "SHA256:", "authorized_keys"):
        assert part in text


async def test_an_expired_key(sshd: Sshd) -> None:
    """`expiry-time` in authorized_keys looks like any refusal from here; the text names it."""
    try:
        sshd.authorize(None, "", 'expiry-time="20200101"')
        assert "expiry-time" in await refused(sshd)
    finally:
        sshd.authorize()


async def test_certificates(sshd: Sshd, tmp_path: Path) -> None:
    """A certificate beside the key is used; one that has expired is named in the refusal."""
    key, authority = new_key(tmp_path / "key"), new_key(tmp_path / "authority")
    signing = ["ssh-keygen", "-q", "-s", str(authority), "-I", "relight", "-n", sshd.user]
    try:
        call(*signing, "-V", "-5m:+1d", f"{key}.pub")
        sshd.authorize(authority, "", "cert-authority")
        async with connected(sshd, key=key) as connection:
            await connection.connected()
        call(*signing, "-V", "20200101:20200102", f"{key}.pub")
        assert f"{key}-cert.pub: certificate expired" in await refused(sshd, key=key)
    finally:
        sshd.authorize()


@contextmanager
def agent() -> Iterator[Path]:
    """A real ssh-agent; its socket."""
    with tempfile.TemporaryDirectory(prefix="relight-agent-", dir="/tmp") as folder:
        path = Path(folder) / "agent"
        process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
        try:
            wait_until(path.is_socket, 10, "the agent")
            yield path
        finally:
            process.terminate()
            process.wait()


async def test_an_agent(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys serve where no key file is set, by its socket or by SSH_AUTH_SOCK; what it lacks is said."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert "SSH_AUTH_SOCK is empty" in await refused(sshd, key="")
    assert "does not answer" in await refused(sshd, key="", agent="/tmp/none")
    with agent() as path:
        assert "holds no key" in await refused(sshd, key="", agent=str(path))
        call("ssh-add", "-q", sshd.key, SSH_AUTH_SOCK=str(path))
        async with connected(sshd, key="", agent=str(path)) as connection:
            assert (await SshRunner(connection).run(("echo", "in"), PATIENCE)).out == "in\n"
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        async with connected(sshd, key="") as connection:
            await connection.connected()


# On the way


async def test_hosts_that_are_not_there(sshd: Sshd) -> None:
    """Nobody listens, no such name, nobody answers: each has its own words and the host's name."""
    port = free_port()
    assert f"127.0.0.1:{port}: refuses connections" in await refused(sshd, port=port)
    assert "no such host name" in await refused(sshd, host="no-such-host.invalid")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silence = {"port": silent.getsockname()[1], "connect_timeout": timedelta(seconds=0.5)}
        assert "no login within 0.5 s" in await refused(sshd, **silence)


async def test_something_else_than_sshd(sshd: Sshd) -> None:
    """A server that is no SSH server."""

    async def web(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    async with server:
        assert "hung up before the login" in await refused(sshd, port=server.sockets[0].getsockname()[1])


async def test_sshd_is_started_again(sshd: Sshd) -> None:
    """While it is down each try says so at once; when it is back the next one goes through."""
    async with connected(sshd) as connection:
        runner = SshRunner(connection)
        await runner.run(("true",), PATIENCE)
        sshd.stop()
        try:
            with pytest.raises((NotStartedError, NotFinishedError)):
                await runner.run(("true",), PATIENCE)
            with pytest.raises(NotStartedError, match="refuses connections"):
                await runner.run(("true",), PATIENCE)
        finally:
            sshd.start()
        assert (await runner.run(("echo", "back"), PATIENCE)).out == "back\n"


@pytest.fixture
def jump(sshd: Sshd) -> Iterator[Sshd]:
    """A second sshd, from which one may go on to the first and nowhere else, with the same key."""
    jump = Sshd(sshd.folder.parent / "jump", sshd.user, Path.home())
    jump.start()
    jump.authorize(sshd.key, "", "port-forwarding", f'permitopen="127.0.0.1:{sshd.port}"')
    try:
        yield jump
    finally:
        jump.stop()


def both(sshd: Sshd, jump: Sshd, tmp_path: Path) -> dict[str, Any]:
    """The settings that lead to `sshd` by way of `jump`."""
    file = tmp_path / "known_hosts"
    file.write_text(sshd.known_hosts.read_text() + jump.known_hosts.read_text())
    return {"known_hosts": file, "jump": f"{jump.user}@127.0.0.1:{jump.port}"}


async def test_a_jump_host(sshd: Sshd, jump: Sshd, tmp_path: Path) -> None:
    """Commands run at the far end, and losing the near one loses the connection."""
    async with connected(sshd, **both(sshd, jump, tmp_path)) as connection:
        runner = SshRunner(connection)
        done = await runner.run(("sh", "-c", 'echo "$SSH_CONNECTION"'), PATIENCE)
        assert done.out.split()[3] == str(sshd.port)
        task = asyncio.create_task(runner.run(("sleep", "30"), PATIENCE))
        await until(lambda: "sleep" in sshd.running())
        jump.drop_connections()
        with pytest.raises(NotFinishedError):
            await task
        assert (await runner.run(("echo", "again"), PATIENCE)).out == "again\n"


async def test_a_jump_host_that_fails(sshd: Sshd, jump: Sshd, tmp_path: Path) -> None:
    """The text names the host that failed: the jump host, or the one behind it."""
    how = both(sshd, jump, tmp_path)
    near, far = f"127.0.0.1:{jump.port}", f"127.0.0.1:{sshd.port}"
    assert f"{near}: 127" not in await refused(sshd, **how, port=free_port())
    assert "the jump host does not connect to it" in await refused(sshd, **how, port=free_port())
    how["known_hosts"].write_text(sshd.known_hosts.read_text())
    assert f"{near}: {how['known_hosts']} has no key of this host" in await refused(sshd, **how)
    how["known_hosts"].write_text(jump.known_hosts.read_text())
    assert f"{far}: {how['known_hosts']} has no key of this host" in await refused(sshd, **how)
    jump.stop()
    assert f"{near}: refuses connections" in await refused(sshd, **how)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("login.example", ("", "login.example", 22)),
        ("me@10.0.0.1:2222", ("me", "10.0.0.1", 2222)),
        ("me@[fe80::1%eth0]:23", ("me", "fe80::1%eth0", 23)),
        ("[::1]", ("", "::1", 22)),
    ],
)
def test_addresses(text: str, address: tuple[str, str, int]) -> None:
    """`user@host:port`, with an IPv6 address in brackets; printed as it was read."""
    assert Address.parse(text) == address
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["", "a b", "host:", "host:99999", "a@b@c", "::1", "host:22:22", "-oProxy=x y"])
def test_what_is_no_address(text: str) -> None:
    """Said when the settings are read, not at the first connection."""
    with pytest.raises(ValueError, match="not `user@host:port`"):
        SshConnection("host", jump=text or " ")


def test_quoting_is_the_standard_librarys() -> None:
    """The line that is sent is what a person can paste."""
    line = shlex.join(("env", "LC_ALL=C", "scontrol", "requeue", "7"))
    assert line == "env LC_ALL=C scontrol requeue 7"
