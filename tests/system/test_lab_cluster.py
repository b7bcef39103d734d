"""The lab's cluster against the real Slurm of this machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relight.lab import machine
from relight.lab.cluster import Cluster, ClusterError, ClusterSpec, NodeNotFoundError, Profile, SlurmCommandError
from relight.lab.processes import Process, environ, pids, wait_until
from relight.lab.users import USERS, create_users

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="separate users, and mount namespaces, need root"),
]

TIMEOUT_S = 90
SLEEPER = "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=2 --output=/dev/null\nsrun sleep 600\n"


@contextmanager
def lab_folder() -> Iterator[Path]:
    """A folder that all users reach and whose path is short: pytest's own is neither."""
    folder = Path(tempfile.mkdtemp(prefix="lab-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for one test."""
    with lab_folder() as path:
        yield path


@pytest.fixture
def fast(folder: Path) -> Iterator[Cluster]:
    """A fast cluster of three nodes."""
    cluster = Cluster(ClusterSpec(folder=folder, nodes=3))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def production() -> Iterator[Cluster]:
    """A production-like cluster of three nodes, for several tests."""
    with lab_folder() as path:
        cluster = Cluster(ClusterSpec(folder=path, nodes=3, profile=Profile.PRODUCTION, epilog_s=1))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait with this file's patience."""
    wait_until(condition, TIMEOUT_S, what)


def running(cluster: Cluster, script: str = SLEEPER, user: str | None = None, *options: str) -> int:
    """Submit a job and return its id once it runs."""
    job = cluster.submit(script, *options, user=user)
    until(lambda: cluster.job_field(job, "JobState") == "RUNNING", f"job {job} to run")
    return job


def tasks(cluster: Cluster, job: int, node: str) -> list[int]:
    """The processes of a job's step on a node, seen from outside."""
    wanted = {f"SLURM_JOB_ID={job}", f"SLURM_CONF={cluster.slurm_conf}", f"SLURMD_NODENAME={node}", "SLURM_STEP_ID=0"}
    return [pid for pid in pids() if {entry.encode() for entry in wanted} <= set(environ(pid))]


def handles(pid: int) -> list[bytes]:
    """What a process has open."""
    try:
        return [os.fsencode(handle.readlink()) for handle in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def traces(folder: Path) -> list[str]:
    """Processes and mounts that have to do with a folder."""
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for pid in pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        # A step daemon of Slurm 24.11 shows by its open log alone.
        known = b"\0".join([command, *environ(pid), *handles(pid)])
        if str(folder).encode() in known and pid != os.getpid() and Process.of(pid):
            found.append(command.decode(errors="replace").replace("\0", " "))
    return found


def test_all_nodes_are_idle_and_whole(fast: Cluster) -> None:
    """After start every node is idle, with its pretended CPUs, memory and GPUs, and an empty kernel log."""
    status = fast.status()
    assert status.running
    assert status.nodes == {"n1": "idle", "n2": "idle", "n3": "idle"}
    assert all(status.processes.values())
    node = fast.run("scontrol", "-o", "show", "node", "n2").stdout
    assert "CPUTot=16" in node
    assert "RealMemory=64000" in node
    assert "Gres=gpu:8" in node
    assert fast.kernel_log("n2").read_text() == ""


def test_gpus_are_handed_out(fast: Cluster) -> None:
    """A job sees the GPUs it was given in CUDA_VISIBLE_DEVICES."""
    job = fast.submit("#!/bin/sh\n#SBATCH --gres=gpu:3 --output=gpus\necho $CUDA_VISIBLE_DEVICES\n")
    output = fast.work_folder() / "gpus"
    until(lambda: output.exists() and output.read_text() == "0,1,2\n", f"job {job} to tell its GPUs")


def test_a_killed_node_takes_its_tasks_along(fast: Cluster) -> None:
    """slurmd and the tasks of that node are gone at once; Slurm then finds it DOWN, and it can come back."""
    job = running(fast)
    until(lambda: len(tasks(fast, job, "n1")) == 2 and len(tasks(fast, job, "n2")) == 2, "the tasks")
    fast.kill_node("n2")
    assert tasks(fast, job, "n2") == []
    assert fast.status().processes["n2"] is False
    assert fast.status().processes["n1"] is True
    until(lambda: (fast.node_states() or {})["n2"] == "down*", "n2 to be down")
    fast.start_node("n2")
    until(lambda: (fast.node_states() or {})["n2"] == "idle", "n2 to be back")


def test_without_namespaces_a_killed_node_takes_its_tasks_along_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a container refuses namespaces, tasks are found below their step daemons; nothing is left either."""
    monkeypatch.setattr(machine, "namespaces_work", lambda: False)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=2))
    try:
        cluster.start()
        job = running(cluster)
        until(lambda: len(tasks(cluster, job, "n1")) == len(tasks(cluster, job, "n2")) == 2, "the tasks")
        cluster.kill_node("n2")
        assert tasks(cluster, job, "n2") == []
        assert len(tasks(cluster, job, "n1")) == 2
    finally:
        cluster.stop()
    assert traces(folder) == []


def test_a_frozen_node_stops_answering(fast: Cluster) -> None:
    """Its tasks go on; once thawed it is back."""
    fast.freeze_node("n3")
    until(lambda: (fast.node_states() or {})["n3"] == "down*", "n3 to be down")
    fast.thaw_node("n3")
    until(lambda: (fast.node_states() or {})["n3"] == "idle", "n3 to be back")


def test_an_unknown_node_is_told(fast: Cluster) -> None:
    """The error lists the nodes there are."""
    with pytest.raises(NodeNotFoundError, match="n1, n2, n3"):
        fast.kill_node("n4")


def test_a_second_start_is_refused(fast: Cluster) -> None:
    """And does the running cluster no harm."""
    with pytest.raises(ClusterError, match="stop it first"):
        Cluster(fast.spec).start()
    assert fast.status().running


def test_stop_leaves_nothing_and_can_be_repeated(fast: Cluster) -> None:
    """No process and no mount is left, also of a running job; another process may stop it, given the folder."""
    job = running(fast)
    until(lambda: bool(tasks(fast, job, "n1")), "the tasks")
    Cluster.load(fast.folder).stop()
    assert traces(fast.folder) == []
    fast.stop()
    assert fast.status().nodes is None


def test_a_stopped_cluster_can_be_started_again(fast: Cluster) -> None:
    """It remembers its jobs' numbers."""
    first = fast.submit(SLEEPER)
    fast.stop()
    fast.start()
    assert fast.submit(SLEEPER) > first


START = "from relight.lab.cluster import *; Cluster(ClusterSpec(folder={!r}, nodes=2)).start()"


def start_elsewhere(folder: Path) -> subprocess.Popen[bytes]:
    """Start a cluster from another process."""
    return subprocess.Popen([sys.executable, "-c", START.format(str(folder))])


def test_clusters_side_by_side_do_not_see_each_other() -> None:
    """Started at the same time by two processes, each counts its own jobs from 1 and outlives its starter."""
    with lab_folder() as one, lab_folder() as two:
        try:
            assert [starter.wait(TIMEOUT_S) for starter in (start_elsewhere(one), start_elsewhere(two))] == [0, 0]
            first, second = Cluster.load(one), Cluster.load(two)
            assert running(first) == running(second) == 1
            until(lambda: bool(tasks(first, 1, "n1")) and bool(tasks(second, 1, "n1")), "both jobs' tasks")
            first.kill_node("n1")
            assert tasks(first, 1, "n1") == []
            assert len(tasks(second, 1, "n1")) == 2
            first.stop()
            assert second.status().nodes == {"n1": "mixed", "n2": "mixed"}
        finally:
            Cluster(ClusterSpec(folder=one)).stop()
            Cluster(ClusterSpec(folder=two)).stop()


def test_a_start_that_was_killed_can_be_stopped(folder: Path) -> None:
    """Whatever had been started by then is found and ended."""
    starter = start_elsewhere(folder)
    until((folder / "run/munge.socket").exists, "the first daemon")
    starter.send_signal(signal.SIGKILL)
    starter.wait(TIMEOUT_S)
    Cluster.load(folder).stop()
    assert traces(folder) == []


def test_the_backup_takes_over_and_hands_back(folder: Path) -> None:
    """slurmctld dies: its backup answers, with the same jobs; started again it is in charge once more."""
    cluster = Cluster(ClusterSpec(folder=folder, nodes=1, backup=True))
    try:
        cluster.start()
        job = cluster.submit("#!/bin/sh\ntrue\n", "--hold")
        # Slurm writes its state aside: killed at once, it would lose the job.
        until((folder / "state/job_state").exists, "the job to be saved")
        cluster.kill_controller()
        until(lambda: cluster.job_field(job, "JobState") == "PENDING", "the backup to take over")
        assert re.search(r"primary.* is DOWN\n.*backup.* is UP", cluster.run("scontrol", "ping", check=False).stdout)
        cluster.start_controller()
        assert re.search(r"primary.* is UP\n.*backup.* is UP", cluster.run("scontrol", "ping").stdout)
        until(lambda: cluster.job_field(job, "JobState") == "PENDING", "the job to be known again")
    finally:
        cluster.stop()
    assert traces(folder) == []


def test_without_a_backup_a_killed_controller_stays_away_until_it_is_started(fast: Cluster) -> None:
    """What it knew is not lost."""
    job = fast.submit("#!/bin/sh\ntrue\n", "--hold")
    until((fast.folder / "state/job_state").exists, "the job to be saved")
    fast.kill_controller()
    assert fast.node_states() is None
    with pytest.raises(ClusterError, match="slurmctld is not running"):
        fast.freeze_controller()
    fast.start_controller()
    until(lambda: fast.job_field(job, "JobState") == "PENDING", "the job to be known again")


def test_a_frozen_controller_takes_connections_and_says_nothing(fast: Cluster) -> None:
    """A command waits its time-out; once thawed it is answered; a frozen one can be stopped."""
    fast.freeze_controller()
    assert "timed out" in fast.run("squeue", check=False).stderr
    fast.thaw_controller()
    assert fast.run("squeue", check=False).returncode == 0
    fast.freeze_controller()
    fast.stop()
    assert traces(fast.folder) == []


def test_without_munged_nobody_can_say_who_he_is(fast: Cluster) -> None:
    """Started again, commands work. They themselves would try for 49 s (seen on 22.05, 24.11, 26.05)."""
    probe = ("munge", "-S", str(fast.folder / "run/munge.socket"), "-n")
    fast.kill_munge()
    assert fast.run(*probe, check=False).returncode != 0
    fast.start_munge()
    assert fast.run(*probe).returncode == 0
    assert fast.run("squeue").returncode == 0


def test_defined_nodes_are_there_and_hold_nothing_up(folder: Path) -> None:
    """A thousand nodes that nothing runs for, DOWN in a partition of their own; the real ones work."""
    cluster = Cluster(ClusterSpec(folder=folder, nodes=1, defined_nodes=1000, slurmctld_parameters=("rl_enable",)))
    try:
        cluster.start()
        states = cluster.node_states() or {}
        assert len(states) == 1001
        assert {state.strip("*") for node, state in states.items() if node != "n1"} == {"down"}
        done = cluster.submit("#!/bin/sh\ntrue\n", "--output=/dev/null")
        until(lambda: cluster.job_field(done, "JobState") == "COMPLETED", "a job on the real node")
        waits = cluster.submit("#!/bin/sh\ntrue\n", "--partition=defined")
        assert cluster.job_field(waits, "JobState") == "PENDING"
        assert "rl_enable" in cluster.run("scontrol", "show", "config").stdout
    finally:
        cluster.stop()


AS_OWNER = """
import os, pwd, sys, tempfile
from pathlib import Path
from relight.lab.cluster import *
entry = pwd.getpwnam(sys.argv[1])
os.setgroups([]); os.setgid(entry.pw_gid); os.setuid(entry.pw_uid)
cluster = Cluster(ClusterSpec(folder=Path(sys.argv[2]), nodes=2))
cluster.start()
try:
    print(cluster.status().nodes, cluster.submit("#!/bin/sh\\ntrue"))
finally:
    cluster.stop()
"""


def test_an_ordinary_user_can_run_a_fast_cluster(folder: Path) -> None:
    """Without root: own SlurmUser, a user namespace for the nodes, devices of /dev for GPUs; nothing is left."""
    create_users()
    shutil.chown(folder, USERS.owner)
    command = [sys.executable, "-c", AS_OWNER, USERS.owner, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S, cwd="/")
    assert done.stdout == "{'n1': 'idle', 'n2': 'idle'} 1\n"
    assert traces(folder) == []


def test_people_have_the_rights_of_their_level(production: Cluster) -> None:
    """The service may requeue anyone's job but not drain a node; a researcher neither; an administrator both."""
    users = production.users
    job = str(running(production, user=users.owner))
    with pytest.raises(SlurmCommandError, match="denied"):
        production.run("scontrol", "requeue", job, user=users.other)
    production.run("scontrol", "requeue", job, user=users.service)
    until(lambda: production.job_field(job, "JobState") == "PENDING", "the job to pend")
    production.run("scontrol", "update", f"JobId={job}", "ExcNodeList=n3", user=users.service)
    drain = ("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
    for user in (users.other, users.service):
        with pytest.raises(SlurmCommandError, match="Invalid user id"):
            production.run(*drain, user=user)
    production.run(*drain, user=users.admin)
    until(lambda: (production.node_states() or {})["n3"] == "drained", "n3 to be drained")
    production.run("scontrol", "update", "NodeName=n3", "State=RESUME", user=users.admin)
    production.run("scancel", job, user=users.owner)


def test_jobs_are_seen_completing(production: Cluster) -> None:
    """The epilog takes its time on each node, as in production."""
    job = running(production, user=production.users.owner)
    production.run("scancel", "--signal=KILL", "--full", str(job), user=production.users.owner)
    until(lambda: production.job_field(job, "JobState") == "COMPLETING", "the job to be completing")
    until(lambda: production.job_field(job, "JobState") in {"FAILED", "CANCELLED"}, "the epilog to end")


@pytest.mark.parametrize(("partition", "state"), [("scavenger", "PREEMPTED"), ("scavenger-requeue", "PENDING")])
def test_main_preempts_the_scavengers(production: Cluster, partition: str, state: str) -> None:
    """A job in main takes the nodes: the other job ends as PREEMPTED, or is requeued."""
    whole = ("--nodes=3", "--exclusive")
    user = production.users.other
    victim = running(production, SLEEPER, user, f"--partition={partition}", *whole)
    job = running(production, SLEEPER, production.users.owner, *whole)
    until(lambda: production.job_field(victim, "JobState") == state, f"the job in {partition} to be {state}")
    production.run("scancel", str(victim), str(job))
    until(lambda: set((production.node_states() or {}).values()) == {"idle"}, "the nodes to be free")


def test_accounting_keeps_comment_and_script(production: Cluster) -> None:
    """sacct has them after the job's end, for its owner and for the service."""
    user = production.users.owner
    job = production.submit("#!/bin/sh\n#marker\ntrue\n", "--comment=hello", "--output=/dev/null", user=user)

    def comment() -> str:
        listed = ("sacct", "-X", "-n", "-P", "-j", str(job), "-o", "state,comment")
        return production.run(*listed, user=production.users.service).stdout

    until(lambda: comment() == "COMPLETED|hello\n", "sacct to know")
    script = ("sacct", "-j", str(job), "--batch-script")
    until(lambda: "#marker" in production.run(*script, user=user).stdout, "sacct to know the script")
