"""What the lab writes for Slurm to read."""

import os
import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from relight.lab.database import accounts
from relight.lab.job import Engine, JobSpec, OpenMode, render
from relight.lab.runtime import Runtime
from relight.lab.slurm_conf import Plan, cgroup_conf, gres_conf, slurm_conf, slurmdbd_conf, topology_conf
from relight.lab.spec import ClusterSpec, Profile
from relight.lab.users import USERS

GOLDEN = Path(__file__).parent / "golden"
GPUS = tuple(f"/srv/lab/gpu/nvidia{number}" for number in range(8))


def expect_golden(name: str, text: str) -> None:
    """Compare with a committed file; RELIGHT_ACCEPT_GOLDEN=1 accepts a change."""
    file = GOLDEN / name
    if os.environ.get("RELIGHT_ACCEPT_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), f"{file} differs; if that is intended, run again with RELIGHT_ACCEPT_GOLDEN=1"


def plan(version: tuple[int, int], profile: Profile) -> Plan:
    """A plan with nothing of this machine in it."""
    spec = ClusterSpec(folder=Path("/srv/lab"), nodes=2, profile=profile)
    user = "slurm" if profile is Profile.PRODUCTION else "ada"
    return Plan(spec=spec, host="box", port=20000, slurm_version=version, slurm_user=user, gpu_files=GPUS)


@pytest.mark.parametrize("version", [(22, 5), (24, 11)], ids=["22.05", "24.11"])
@pytest.mark.parametrize("profile", list(Profile))
def test_configuration_of_each_version_and_profile(version: tuple[int, int], profile: Profile) -> None:
    """slurm.conf, gres.conf and cgroup.conf are as committed; only 24.11 has a cgroup.conf."""
    wanted = plan(version, profile)
    files = {"slurm.conf": slurm_conf(wanted), "gres.conf": gres_conf(wanted), "cgroup.conf": cgroup_conf(wanted)}
    text = "".join(f"# {name}\n{content}" for name, content in files.items() if content is not None)
    expect_golden(f"{profile}-{version[0]}.{version[1]:02}.conf", text)


def test_database_configuration() -> None:
    """slurmdbd's configuration and the accounts to load are as committed."""
    text = slurmdbd_conf(plan((22, 5), Profile.PRODUCTION)) + "# accounts.cfg\n" + accounts(USERS)
    expect_golden("slurmdbd.conf", text)


def test_production_keeps_slurms_own_credential_lifetime() -> None:
    """Only the fast profile shortens the wait of a requeued job."""
    assert "cred_expire" not in slurm_conf(plan((22, 5), Profile.PRODUCTION))
    assert "cred_expire=5" in slurm_conf(plan((22, 5), Profile.FAST))


def test_batch_script_with_every_option() -> None:
    """The script is as committed."""
    spec = JobSpec(
        run=Path("/srv/lab/work/ada/train-001"),
        name="train",
        nodes=3,
        tasks_per_node=2,
        engine=Engine.NUMPY,
        steps=500,
        step_time=timedelta(milliseconds=250),
        requeue=False,
        open_mode=OpenMode.APPEND,
        time_limit=timedelta(seconds=90),
        partition="scavenger",
        comment='{"team": "a b"}',
        progress_file=True,
        label=True,
        options=("--array=0-1",),
        runtime=Runtime(Path("/opt/python"), (Path("/opt/packages"), Path("/opt/code"))),
    )
    expect_golden("job.sh", render(spec))


def test_batch_script_runs_our_python_by_default() -> None:
    """Without a runtime the job starts the interpreter that runs us, by absolute path, and sets no PYTHONPATH."""
    script = render(JobSpec(run=Path("/srv/run")))
    command = shlex.split(script.splitlines()[-1])
    assert Path(command[3]).is_absolute()
    assert command[4:6] == ["-m", "relight.lab.trainer"]
    assert "PYTHONPATH" not in script


def test_a_comment_of_two_lines_is_refused() -> None:
    """A line break would end the #SBATCH option and start a command."""
    with pytest.raises(ValueError, match="line's end"):
        JobSpec(run=Path("/srv/run"), comment="one\ntwo")


@pytest.mark.parametrize("folder", ["/srv/" + "x" * 90, "/srv/my lab", "/srv/a,b"])
def test_a_folder_that_slurm_cannot_use_is_refused(folder: str) -> None:
    """Too long for Unix sockets, or with a sign that slurm.conf cannot hold."""
    with pytest.raises(ValueError, match="path"):
        ClusterSpec(folder=Path(folder))


def test_production_without_accounting_is_refused() -> None:
    """Admin levels are kept in the accounting database."""
    with pytest.raises(ValueError, match="accounting"):
        ClusterSpec(folder=Path("/srv/lab"), profile=Profile.PRODUCTION, accounting=False)


def test_switches_are_dealt_out() -> None:
    """topology.conf only where switches are wanted: the nodes in turn, one switch above the leaves."""
    given = plan((22, 5), Profile.FAST)
    assert topology_conf(given) is None
    assert "TopologyPlugin" not in slurm_conf(given)
    spec = ClusterSpec(folder=Path("/srv/lab"), nodes=5, switches=2)
    wanted = Plan(spec=spec, host="box", port=20000, slurm_version=(22, 5), gpu_files=GPUS)
    assert topology_conf(wanted) == (
        "SwitchName=s1 Nodes=n1,n3,n5\nSwitchName=s2 Nodes=n2,n4\nSwitchName=top Switches=s[1-2]\n"
    )
    assert "TopologyPlugin=topology/tree\n" in slurm_conf(wanted)
