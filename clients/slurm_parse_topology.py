"""The text of `scontrol show topology`: leaf switches and blocks.

There is no JSON of it: 22.05 does not know `--json` there, and on 24.11 and 26.05 it changes nothing (seen).

    SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1,3]
    SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[1-2]
    BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2

A cluster without topology prints nothing (24.11, 26.05), or `No topology information available` (22.05). Where
slurmctld does not answer nothing is printed either, and the exit status is 0: only the error's text tells (seen on
all). A topology.yaml with several topologies shows the cluster's default one.
"""

import re

from relight.clients.slurm_parse import GarbledError, expand_hosts
from relight.domain.topology import FailureDomain, Topology

NO_TOPOLOGY = "No topology information available"
_FIELD = re.compile(r"(\w+)=(\S*)")


def parse_topology(text: str) -> Topology:
    """The failure domains: switches of level 0, and blocks.

    Raises:
        GarbledError: when a line is of none of the known kinds.
    """
    lines = (line.strip() for line in text.splitlines())
    found = (_domain(line) for line in lines if line)
    return Topology(domains=tuple(domain for domain in found if domain is not None))


def _domain(line: str) -> FailureDomain | None:
    """The domain of one line; None for what stands above others: upper switches, blocks of blocks."""
    fields = dict(_FIELD.findall(line))
    nodes = fields.get("Nodes")
    if "AggregatedBlock" in fields:
        return None
    if fields.get("SwitchName") and nodes is not None and fields.get("Level", "").isdecimal():
        lowest = int(fields["Level"]) == 0
        return FailureDomain(name=f"switch {fields['SwitchName']}", nodes=expand_hosts(nodes)) if lowest else None
    if fields.get("BlockName") and nodes is not None:
        return FailureDomain(name=f"block {fields['BlockName']}", nodes=expand_hosts(nodes))
    raise GarbledError(f"not a line of a topology: {line[:200]!r}")
