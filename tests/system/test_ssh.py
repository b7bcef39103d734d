"""Slurm over SSH on a real cluster with separate people: through the gate, as Relight's own user, and what may fail."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from relight.clients.log_files import LogFiles
from relight.clients.logs import Cursor
from relight.clients.node_wrapper import NodeWrapper
from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmUnavailableError,
)
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import Done
from relight.clients.ssh import SshConnection, SshRunner, slurm_environment
from relight.clients.ssh_files import SftpFiles
from relight.domain.incidents import node_reason
from relight.domain.slurm import JobState, NodeState
from relight.lab import packages, state
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.node_wrapper import CPU_TIME_AS, install_wrapper, remove_wrapper
from relight.lab.processes import Process, wait_until
from relight.lab.sshd import Sshd, install_gate, new_key
from relight.lab.users import USERS
from relight.lab.way_ssh import start_gated

pytestmark = pytest.mark.system

COMMENT = '{"relight": {"mode": "auto"}}\nJobId=1 UserId=root(0) "quoted" \\ ü'
MARK = node_reason("recover/lab/7/20261130T092712Z", "gpu_fault", 'Xid 79; it\'s "off the bus" $(id)')
NAME = '-n \'a "b" $(id)'
PATIENCE = timedelta(seconds=20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A production-like cluster of two nodes, ended afterwards."""
    if os.geteuid() != 0 or packages.missing(accounting=True, production=True, ssh=True):
        pytest.skip("needs root, and the packages of Slurm and sshd (relight.lab.packages.ensure)")
    folder = Path(tempfile.mkdtemp(prefix="relight-ssh-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=2, profile=Profile.PRODUCTION))
    cluster.start()
    try:
        install_wrapper(cluster)
        yield cluster
    finally:
        remove_wrapper(cluster)
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def sshd(cluster: Cluster) -> Sshd:
    """The account of Relight's own user, which can do nothing but what the gate lets through; ends with the cluster."""
    return start_gated(cluster, settings={"submit": "yes"})


@pytest.fixture
async def connection(sshd: Sshd) -> AsyncIterator[SshConnection]:
    """A connection to it."""
    connection = SshConnection(**sshd.login)
    yield connection
    await connection.close()


@pytest.fixture
def runner(cluster: Cluster, connection: SshConnection) -> SshRunner:
    """Where the commands run."""
    return SshRunner(connection, slurm_environment(str(cluster.slurm_conf)))


@pytest.fixture
def slurm(runner: SshRunner) -> SlurmCommands:
    """The client as Relight's service has it."""
    return SlurmCommands(runner, cpu_time_as=CPU_TIME_AS)


@pytest.fixture
async def submit(cluster: Cluster, slurm: SlurmCommands) -> AsyncIterator[Callable[..., int]]:
    """Submits jobs of the owner, and removes them afterwards."""

    def run(script: str, *options: str) -> int:
        return cluster.submit(f"#!/bin/sh\n{script}\n", *options, user=USERS.owner)

    yield run

    async def settled() -> bool:
        live = (JobState.PENDING, JobState.RUNNING)
        return not [job for job in await slurm.jobs() if job.state in live or job.completing]

    for user in (USERS.owner, USERS.service):
        cluster.run("scancel", "--user", user, check=False)
    await until(settled, 60)


async def until(ready: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    """Wait until `ready`."""
    end = asyncio.get_running_loop().time() + seconds
    while not await ready():
        assert asyncio.get_running_loop().time() < end, "not in time"
        await asyncio.sleep(0.1)


async def reached(slurm: SlurmCommands, job_id: int, wanted: JobState) -> None:
    """Wait until the job is in that state and completes no longer."""

    async def ready() -> bool:
        job = await slurm.job(job_id)
        return job.state is wanted and not job.completing

    await until(ready)


async def seen(sshd: Sshd, program: str) -> None:
    """Wait until a login runs that program."""
    await asyncio.to_thread(wait_until, lambda: program in sshd.running(), 20, program)


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """Slurmctld does not answer meanwhile."""
    process: Process = state.read(cluster.folder).processes["slurmctld"]
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


# Everything that Relight does


async def test_all_reads(cluster: Cluster, slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """Each read of the contract, of a job whose name and comment are hostile to every shell on the way."""
    job_id = submit("srun sh -c 'while :; do :; done'", "-J", NAME, "-N2", "--comment", COMMENT, "-t", "10")
    await reached(slurm, job_id, JobState.RUNNING)
    job = await slurm.job(job_id)
    assert (job.name, job.comment, job.user) == (NAME, COMMENT, USERS.owner)
    assert job in await slurm.jobs()
    assert {node.name for node in await slurm.nodes()} == {"n1", "n2"}
    assert (await slurm.node("n1")).name == "n1"
    assert (await slurm.facts()).slurm_user == "slurm"
    assert "while :; do :; done" in await slurm.batch_script(job_id)

    async def stepping() -> bool:
        return {step.step_id for step in await slurm.steps(job_id)} >= {f"{job_id}.0", f"{job_id}.batch"}

    async def accounted() -> bool:
        return [row.state for row in await slurm.executions(job_id)] == [JobState.RUNNING]

    async def counted() -> bool:
        return (await slurm.cpu_time(job_id) or timedelta(0)) > timedelta(0)

    for found in (stepping, accounted, counted):
        await until(found)
    with pytest.raises(JobNotFoundError):
        await slurm.job(999_999)


async def test_all_writes(cluster: Cluster, slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """Each write of the contract has its effect; Slurm's own refusals are told as such."""
    job_id = submit("sleep 600")
    await reached(slurm, job_id, JobState.RUNNING)
    with pytest.raises(RefusedError):
        await slurm.exclude(job_id, ("n1",))
    await slurm.requeue(job_id)
    await reached(slurm, job_id, JobState.PENDING)
    await slurm.exclude(job_id, ("n1", "n2"))
    assert set((await slurm.job(job_id)).excluded_nodes) == {"n1", "n2"}
    await slurm.hold(job_id)
    assert (await slurm.job(job_id)).reason == "JobHeldAdmin"
    await slurm.release(job_id)
    await slurm.exclude(job_id, ())
    assert (await slurm.job(job_id)).excluded_nodes == ()

    async def started() -> bool:
        await slurm.start_now(job_id)
        return True

    await until(started)
    await slurm.cancel(job_id)
    await reached(slurm, job_id, JobState.CANCELLED)
    own = await slurm.submit_batch(
        "#!/bin/sh\n#SBATCH -J 'by ssh'\nsleep 600\n", str(cluster.work_folder(USERS.service))
    )
    assert (await slurm.job(own)).user == USERS.service


async def test_nodes_by_sudo_through_the_gate(cluster: Cluster, runner: SshRunner, slurm: SlurmCommands) -> None:
    """relight-node is called with sudo at the other end; the mark arrives with its quotes."""
    nodes = NodeWrapper(("sudo", "-n", str(cluster.folder / "sbin/relight-node")), runner=runner)
    await nodes.drain("n1", MARK)
    node = await slurm.node("n1")
    assert node.draining
    assert node.reason == MARK
    await nodes.down("n1", MARK)
    assert (await slurm.node("n1")).state is NodeState.DOWN
    await nodes.undrain("n1")

    async def back() -> bool:
        return (await slurm.node("n1")).eligible

    await until(back)


async def test_nodes_by_a_connection_of_their_own(cluster: Cluster, slurm: SlurmCommands) -> None:
    """To root's account, whose forced command is relight-node: it can do that and nothing else."""
    root = Sshd(cluster.folder / "ssh/root", "root", Path("/root"), cluster.folder)
    root.start()
    try:
        root.authorize(None, str(cluster.folder / "sbin/relight-node"))
        connection = SshConnection(**root.login)
        runner = SshRunner(connection, {})
        nodes = NodeWrapper(("relight-node",), runner=runner)
        await nodes.drain("n2", MARK)
        assert (await slurm.node("n2")).reason == MARK
        await nodes.undrain("n2")
        assert not (await slurm.node("n2")).draining
        with pytest.raises(RefusedError):
            await nodes.drain("n2", "admin: mine")
        assert (await runner.run(("id", "-un"), PATIENCE)).code == 2
        await connection.close()
    finally:
        root.stop()


# What the gate is for


@pytest.mark.parametrize(
    "words",
    [
        ("sh", "-c", "id"),
        ("scancel", "--user", USERS.owner),
        ("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=x"),
        ("scontrol", "write", "batch_script", "1", "/tmp/x"),
        ("squeue", "--all", "--states=all", "--json", ";", "id"),
        ("cat", "/etc/passwd"),
    ],
)
async def test_the_gate_refuses_all_else(runner: SshRunner, words: tuple[str, ...]) -> None:
    """Status 126, and nothing on the output."""
    done = await runner.run(words, PATIENCE)
    assert (done.code, done.out) == (126, "")
    assert done.err.startswith("relight-gate: permission denied")


async def test_neither_tunnel_nor_terminal(connection: SshConnection) -> None:
    """`restrict` takes what the gate does not see."""
    live = await connection.connected()
    for opening in (live.open_connection("127.0.0.1", 22), live.create_process("id -un", term_type="xterm")):
        with pytest.raises(Exception, match=r"(?i)open|pty|prohibited"):
            await opening


async def test_a_site_that_only_monitors(cluster: Cluster, submit: Callable[..., int]) -> None:
    """With `write = no` Slurm is read, and every change is refused as not permitted."""
    job_id = submit("sleep 600", "-H")
    sshd = start_gated(cluster, "monitor", {"write": "no", "sftp": "no"})
    try:
        connection = SshConnection(**sshd.login)
        slurm = SlurmCommands(SshRunner(connection))
        assert (await slurm.job(job_id)).job_id == job_id
        for call in (slurm.cancel(job_id), slurm.hold(job_id), slurm.submit_batch("#!/bin/sh\n", "/tmp")):
            with pytest.raises(NotPermittedError):
                await call
        assert (await slurm.job(job_id)).state is JobState.PENDING
        await connection.close()
    finally:
        sshd.stop()


# Connections that fail


async def test_a_write_whose_connection_is_lost(
    cluster: Cluster, sshd: Sshd, slurm: SlurmCommands, submit: Callable[..., int]
) -> None:
    """It is ambiguous; after a reconnect the effect is looked up, and found."""
    job_id = submit("sleep 600")
    await reached(slurm, job_id, JobState.RUNNING)
    address = await slurm._address(job_id)
    with frozen(cluster):
        task = asyncio.create_task(slurm._write("scontrol", "requeue", address))
        await seen(sshd, "scontrol")
        await asyncio.to_thread(sshd.drop_connections)
        with pytest.raises(AmbiguousWriteError):
            await task

    async def requeued() -> bool:
        return (await slurm.job(job_id)).restarts == 1

    await until(requeued)


async def test_a_write_before_which_the_connection_was_lost(
    sshd: Sshd, connection: SshConnection, slurm: SlurmCommands, submit: Callable[..., int]
) -> None:
    """It certainly did nothing while sshd is down: unavailable, not ambiguous; and the next one goes through."""
    job_id = submit("sleep 600", "-H")
    await slurm.job(job_id)
    await asyncio.to_thread(sshd.stop)
    try:
        live = await connection.connected()
        await live.wait_closed()
    except Exception:  # noqa: BLE001, S110 - it may be found closed already
        pass
    try:
        with pytest.raises(SlurmUnavailableError, match="refuses connections"):
            await slurm._write("scancel", str(job_id))
    finally:
        await asyncio.to_thread(sshd.start)
    assert (await slurm.job(job_id)).state is JobState.PENDING
    await slurm.cancel(job_id)
    await reached(slurm, job_id, JobState.CANCELLED)


async def test_a_read_whose_connection_is_lost(cluster: Cluster, sshd: Sshd, slurm: SlurmCommands) -> None:
    """Nothing is known; the next read has a new connection."""
    await slurm.jobs()
    with frozen(cluster):
        task = asyncio.create_task(slurm.jobs())
        await seen(sshd, "squeue")
        await asyncio.to_thread(sshd.drop_connections)
        with pytest.raises(SlurmUnavailableError):
            await task
    assert await slurm.facts()


async def test_a_late_write(cluster: Cluster, sshd: Sshd, runner: SshRunner, submit: Callable[..., int]) -> None:
    """With slurmctld frozen a write is ambiguous after its time, and what it has left behind ends by itself."""
    job_id = submit("sleep 600", "-H")
    hasty = SlurmCommands(runner, timeout=timedelta(seconds=1))
    with frozen(cluster):
        with pytest.raises(AmbiguousWriteError, match="within 1 s"):
            await hasty._write("scontrol", "release", str(job_id))
        assert "scontrol" in sshd.running()
    await asyncio.to_thread(wait_until, lambda: "scontrol" not in sshd.running(), 20, "scontrol to end")


async def test_keys_that_are_not_good_any_more(
    cluster: Cluster, sshd: Sshd, slurm: SlurmCommands, connection: SshConnection, tmp_path: Path
) -> None:
    """An expired key, another key, a changed host key: unavailable, each in its own words."""
    gate = install_gate(cluster, "relight-gate-sshd", {"submit": "yes"})
    await slurm.jobs()
    try:
        sshd.authorize(None, gate, 'expiry-time="20200101"')
        await slurm.jobs()  # a login outlives its key
        await connection.close()
        with pytest.raises(SlurmUnavailableError, match="expiry-time"):
            await slurm.jobs()
        with pytest.raises(SlurmUnavailableError):
            await slurm._write("scancel", "1")
        sshd.authorize(new_key(tmp_path / "other"), gate)
        with pytest.raises(SlurmUnavailableError, match="refuses the key"):
            await slurm.jobs()
        sshd.authorize(None, gate)
        known = sshd.known_hosts.read_text()
        other = (tmp_path / "other.pub").read_text().split()[1]
        sshd.known_hosts.write_text(f"{known.rsplit(' ', 1)[0]} {other}\n")
        with pytest.raises(SlurmUnavailableError, match="has changed"):
            await slurm.jobs()
        sshd.known_hosts.write_text("")
        with pytest.raises(SlurmUnavailableError, match="has no key of this host"):
            await slurm.jobs()
        sshd.known_hosts.write_text(known)
    finally:
        sshd.authorize(None, gate)
    assert await slurm.facts()


async def test_a_jump_host(cluster: Cluster, sshd: Sshd, tmp_path: Path) -> None:
    """The cluster's login node behind another one, whose account may go there and nowhere else."""
    jump = Sshd.of(cluster, "jump")
    await asyncio.to_thread(jump.start)
    try:
        jump.authorize(sshd.key, "/usr/sbin/nologin", "port-forwarding", f'permitopen="127.0.0.1:{sshd.port}"')
        known = tmp_path / "known_hosts"
        known.write_text(sshd.known_hosts.read_text() + jump.known_hosts.read_text())
        login = sshd.login | {"known_hosts": known, "jump": f"{jump.user}@127.0.0.1:{jump.port}"}
        connection = SshConnection(**login)
        assert await SlurmCommands(SshRunner(connection)).facts()
        await connection.close()
    finally:
        await asyncio.to_thread(jump.stop)


# Logs over the same connection


async def test_a_job_log_is_followed_and_kept(
    cluster: Cluster, slurm: SlurmCommands, connection: SshConnection, submit: Callable[..., int], tmp_path: Path
) -> None:
    """Lines come once while the job writes; a copy is kept here; a requeue, which empties the file, begins anew."""
    job_id = submit("echo run $SLURM_RESTART_COUNT; echo 'step 1 ü'; while ! [ -e go ]; do sleep 0.1; done; sleep 600")
    await reached(slurm, job_id, JobState.RUNNING)
    logs = LogFiles(files=SftpFiles(connection))
    path = (await slurm.job(job_id)).stdout
    lines: list[str] = []
    cursor = Cursor()

    async def written() -> bool:
        nonlocal cursor
        chunk = await logs.read_new(path, cursor)
        lines.extend(chunk.lines)
        cursor = chunk.cursor
        return len(lines) >= 2

    await until(written)
    assert lines == ["run", "step 1 ü"]
    await logs.keep(path, str(tmp_path / "kept"))
    assert [file.read_text() for file in (tmp_path / "kept").iterdir()] == ["run\nstep 1 ü\n"]
    await slurm.requeue(job_id)
    await reached(slurm, job_id, JobState.PENDING)

    async def started() -> bool:
        with suppress(RefusedError):
            await slurm.start_now(job_id)
        return (await slurm.job(job_id)).running

    await until(started)

    async def anew() -> bool:
        chunk = await logs.read_new(path, cursor)
        return chunk.restarted and chunk.lines == ("run 1", "step 1 ü")

    await until(anew)


async def test_sftp_only_reads(cluster: Cluster, connection: SshConnection) -> None:
    """Neither our own files can be written, made, removed or renamed, nor others' read without leave."""
    own = cluster.work_folder(USERS.service) / "mine"
    own.write_text("mine\n")
    shutil.chown(own, USERS.service)
    sftp = await (await connection.connected()).start_sftp_client()
    assert await sftp.exists(str(own))
    calls = [
        sftp.open(str(own), "wb"), sftp.open(str(own), "ab"), sftp.remove(str(own)), sftp.rename(str(own), f"{own}2"),
        sftp.mkdir(f"{own}3"), sftp.chmod(str(own), 0o777), sftp.symlink("/etc", f"{own}4"), sftp.truncate(str(own), 0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Exception, match=r"(?i)permission denied|failure|unsupported|request"):
            await call
    assert own.read_text() == "mine\n"
    assert sorted(path.name for path in own.parent.iterdir() if path.name.startswith("mine")) == ["mine"]
    with pytest.raises(Exception, match=r"(?i)permission denied"):
        await sftp.open(str(cluster.folder / "etc/munge.key"), "rb")


async def test_what_the_account_is(runner: SshRunner) -> None:
    """`relight doctor`'s own questions pass."""
    assert await runner.run(("id", "-un"), PATIENCE) == Done(0, f"{USERS.service}\n", "")
    asked = ("sacctmgr", "-nP", "show", "user", f"name={USERS.service}", "format=adminlevel")
    assert (await runner.run(asked, PATIENCE)).out.strip() == "Operator"
