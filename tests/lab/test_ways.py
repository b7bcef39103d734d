"""The ways to a lab cluster's Slurm, on real clusters."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relight.config.settings import Way
from relight.lab import packages
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.errors import WayMissingError
from relight.lab.users import USERS, current_user
from relight.lab.ways import WAYS, open_way


@contextmanager
def running(profile: Profile) -> Iterator[Cluster]:
    """A cluster of one node, ended afterwards."""
    production = profile is Profile.PRODUCTION
    if (production and os.geteuid() != 0) or packages.missing(accounting=production, production=production):
        pytest.skip("needs the Slurm packages (relight.lab.packages.ensure), and root for the production profile")
    folder = Path(tempfile.mkdtemp(prefix="relight-ways-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=1, profile=profile))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=list(Profile))
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of each profile."""
    with running(request.param) as cluster:
        yield cluster


@pytest.mark.system
@pytest.mark.parametrize("way", WAYS)
async def test_a_way_acts_as_the_service(way: Way, cluster: Cluster) -> None:
    """It reaches this cluster, as the service's own user where the cluster has one, else as the current user."""
    production = cluster.spec.profile is Profile.PRODUCTION
    user = USERS.service if production else None
    try:
        async with open_way(way, cluster) as slurm:
            assert [node.name for node in await slurm.nodes()] == ["n1"]
            job_id = await slurm.submit_batch("#!/bin/sh\nexit\n", str(cluster.work_folder(user)), held=True)
            assert (await slurm.job(job_id)).user == (user or current_user())
            await slurm.cancel(job_id)
    except WayMissingError as error:
        pytest.skip(f"{way}: {error}")


async def test_a_way_without_its_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an import error: the reason names the package."""
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    for module in ("relight.lab.way_ssh", "relight.lab.sshd", "relight.clients.ssh"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(WayMissingError, match="asyncssh"):
        async with open_way(Way.SSH, Cluster(ClusterSpec(folder=tmp_path))):
            pass
