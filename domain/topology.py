"""Failure domains: groups of nodes that one broken switch, cable or power feed takes down together."""

from relight.domain.base import Value


class FailureDomain(Value):
    """A leaf switch of a tree, or a block: what Slurm's own topology calls the nodes next to each other."""

    name: str
    """As Slurm prints it, with its kind: `switch s1`, `block b1`."""
    nodes: tuple[str, ...]


class Topology(Value):
    """A cluster's failure domains; none where Slurm is told of no topology."""

    domains: tuple[FailureDomain, ...] = ()

    def of(self, node: str) -> tuple[str, ...]:
        """The names of the domains that the node is in, usually one."""
        return tuple(domain.name for domain in self.domains if node in domain.nodes)
