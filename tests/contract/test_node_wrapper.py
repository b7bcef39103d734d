"""The second principal: `relight-node` by sudo changes nodes, and undoes nothing but its own marks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.clients.node_wrapper import NodeWrapper
from relight.clients.slurm import NodeNotFoundError, NotPermittedError, RefusedError, Slurm, SlurmUnavailableError
from relight.domain.slurm import NodeFlag, NodeState
from relight.lab.cluster import Cluster
from relight.lab.users import USERS
from relight.lab.ways import as_user

pytestmark = pytest.mark.system

MARK = "relight:recover/lab/7/20261130T092712Z:gpu_fault: Xid 79"
CAP = 2


@pytest.fixture
def program(cluster: Cluster) -> Iterator[Path]:
    """The installed program with a small cap and nothing counted yet."""
    conf = cluster.folder / "etc/relight-node.conf"
    kept = conf.read_text()
    conf.write_text(re.sub(r"drains_per_hour = \d+", f"drains_per_hour = {CAP}", kept))
    counted = [file for file in cluster.folder.glob("state-relight-node.json*") if file.is_file()]
    for file in counted:
        file.unlink()
    yield cluster.folder / "sbin/relight-node"
    conf.write_text(kept)


@pytest.fixture
def wrapper(program: Path) -> NodeWrapper:
    """The wrapper as Relight's service has it: by sudo."""
    return NodeWrapper((*as_user(USERS.service), "sudo", "-n", str(program)))


@pytest.mark.operation("relight-node drain", "relight-node undrain")
async def test_drain_and_undrain(site: Any, slurm: Slurm, wrapper: NodeWrapper) -> None:
    """Drain twice with one effect, hands off what is an administrator's, cap, and back into service."""
    await wrapper.drain("n1", MARK)
    await wrapper.drain("n1", MARK)
    node = await slurm.node("n1")
    assert (node.draining, node.reason, node.reason_user) == (True, MARK, "root")
    assert node.reason_time is not None
    site.cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=admin: mine")
    for call in (wrapper.drain("n2", MARK), wrapper.undrain("n2"), wrapper.down("n2", MARK)):
        with pytest.raises(RefusedError):
            await call
    assert (await slurm.node("n2")).reason == "admin: mine"
    with pytest.raises(RefusedError):
        await wrapper.down("n3", MARK)
    await wrapper.drain("n3", MARK)
    with pytest.raises(RefusedError, match="within the last hour"):
        await wrapper.drain("n4", MARK)
    with pytest.raises(NodeNotFoundError):
        await wrapper.drain("n77", MARK)
    for name in ("n1", "n3", "n1"):
        await wrapper.undrain(name)
    site.cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")

    async def all_back() -> bool:
        return all(node.eligible and not node.reason for node in await slurm.nodes())

    await site.until(all_back)


@pytest.mark.operation("relight-node down", "relight-node undrain")
async def test_down_of_a_node_that_cannot_end_its_job(site: Any, slurm: Slurm, wrapper: NodeWrapper) -> None:
    """A completing node may be set DOWN, which frees the requeued job at once; undrain brings it back."""
    job = await site.running("-w", "n3")
    await slurm.requeue(job.job_id)
    assert NodeFlag.COMPLETING in (await slurm.node("n3")).flags
    await wrapper.down("n3", MARK)
    node = await slurm.node("n3")
    assert (node.state, node.reason) == (NodeState.DOWN, MARK)
    await slurm.cancel(job.job_id)
    await wrapper.undrain("n3")

    async def back() -> bool:
        return (await slurm.node("n3")).eligible

    await site.until(back)


@pytest.mark.operation("relight-node drain", "relight-node action")
async def test_a_node_is_handed_to_its_platform(site: Any, slurm: Slurm, wrapper: NodeWrapper, program: Path) -> None:
    """Only where root allows it, and only a node of ours; then it is FAIL with the platform's word, and not ours."""
    await wrapper.drain("n2", MARK)
    with pytest.raises(RefusedError, match="no more are allowed"):
        await wrapper.action("n2", "Reboot")
    conf = program.parent.parent / "etc/relight-node.conf"
    conf.write_text(conf.read_text() + "actions_per_hour = 1\n")
    with pytest.raises(RefusedError, match="not drained by Relight"):
        await wrapper.action("n3", "Reboot")
    await wrapper.action("n2", "Reboot")
    node = await slurm.node("n2")
    assert (node.reason, NodeFlag.FAIL in node.flags, node.eligible) == ("Action:Reboot", True, False)
    with pytest.raises(RefusedError):
        await wrapper.undrain("n2")
    site.cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")

    async def back() -> bool:
        return (await slurm.node("n2")).eligible

    await site.until(back)


@pytest.mark.operation("relight-node drain", "relight-node undrain")
async def test_sudo_gives_nothing_else(slurm: Slurm, program: Path) -> None:
    """Another user may not use the wrapper, and the service's user may not use another program."""
    for user, command in ((USERS.other, str(program)), (USERS.service, "/usr/bin/scontrol")):
        with pytest.raises(NotPermittedError):
            await NodeWrapper((*as_user(user), "sudo", "-n", command)).undrain("n1")
    assert (await slurm.node("n1")).eligible


@pytest.mark.operation("relight-node drain")
async def test_a_slurmctld_that_does_not_answer(slurm: Slurm, cluster: Cluster, wrapper: NodeWrapper) -> None:
    """The wrapper reads before it writes: nothing was changed."""
    cluster.freeze_controller()
    try:
        with pytest.raises(SlurmUnavailableError):
            await wrapper.drain("n1", MARK)
    finally:
        cluster.thaw_controller()
    assert not (await slurm.node("n1")).draining
