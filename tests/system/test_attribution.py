"""Real PyTorch runs, broken in ways that are known, and what the diagnosis makes of what they leave.

Eight ranks on two nodes each, on one real Slurm cluster: what gloo, torchelastic, Slurm and the kernel print is theirs.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from relight.attribution.engine import diagnose
from relight.lab import packages
from relight.lab.bench_attribution import Naming, Scored, score
from relight.lab.bench_attribution_labels import read_corpus
from relight.lab.broken_runs import kinds
from relight.lab.broken_runs_break import Breaker, Left
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.engines import torch_is_installed

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes with host names of their own need root"),
    pytest.mark.skipif(not torch_is_installed(), reason="PyTorch is not installed (make test TORCH=cheap)"),
    pytest.mark.skipif(
        bool(packages.missing(accounting=False, production=False)),
        reason="needs the Slurm packages (relight.lab.packages.ensure)",
    ),
]

NODES = 8
"""Four runs at a time: more would only make each of them slower on two cores."""


class Broken(NamedTuple):
    """All runs, broken."""

    scored: Mapping[str, Scored]
    """By kind."""
    left: Left
    """Kinds that are not there, and why."""


@pytest.fixture(scope="module")
def broken() -> Iterator[Broken]:
    """One run of each kind, and its diagnosis."""
    folder = Path(tempfile.mkdtemp(prefix="relight-broken-", dir="/tmp"))
    cluster = Cluster(ClusterSpec(folder=folder / "lab", nodes=NODES, profile=Profile.FAST))
    try:
        cluster.start()
        left = Breaker(cluster, folder / "corpus", print).run(kinds())
        cases = {case.truth.file.removesuffix(".log").rstrip("/"): case for case in read_corpus(folder / "corpus")}
        yield Broken({name: score(case, diagnose(case.sources, case.context)) for name, case in cases.items()}, left)
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", kinds())
def test_the_cause_is_found(broken: Broken, name: str) -> None:
    """Category and action are right, the guilty rank or node is named and nobody else, no healthy node is taken."""
    if name in broken.left.refused:
        pytest.skip(broken.left.refused[name])
    assert name not in broken.left.unbroken, broken.left.unbroken[name]
    one = broken.scored[name]
    told = f"{one.truth.who}: {one.verdict.model_dump_json(indent=1)}"
    assert (one.verdict.category, one.verdict.action) == (one.truth.category, one.truth.action), told
    assert one.naming in {None, Naming.EXACT, Naming.PARTLY}, told
    assert not one.wronged, told
