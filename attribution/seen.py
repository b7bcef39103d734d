"""Whom the watchers' evidence names: the rank that stands elsewhere, the GPU that is held down."""

from collections.abc import Collection

from relight.attribution.facts import Facts
from relight.domain.clocks import SLOW_CLOCK
from relight.domain.diagnosis import Implicated
from relight.domain.evidence import Evidence
from relight.domain.laggards import SLOW_RANK
from relight.domain.power import ODD_GPU
from relight.domain.reports import FaultKind
from relight.domain.stacks import ODD_RANK

ODD = (ODD_RANK, ODD_GPU)
"""What names the culprit of a hang; the surer first."""
SLOW = (SLOW_RANK, *(kind.upper() for kind in FaultKind), SLOW_CLOCK)
"""What names the culprit of a slow-down, or says what its node suffers from."""


def named(facts: Facts, signatures: Collection[str]) -> tuple[Evidence, ...]:
    """The evidence of these kinds, in their order; not what names a node that is none of the job's."""
    ours = frozenset(facts.context.nodes)
    fits = [e for e in facts.context.seen if not (ours and e.node) or e.node in ours]
    return tuple(each for signature in signatures for each in fits if each.signature == signature)


def implicated(evidence: Collection[Evidence]) -> Implicated:
    """Whom it names."""
    return Implicated(
        ranks=tuple(sorted({each.rank for each in evidence if each.rank is not None})),
        nodes=tuple(dict.fromkeys(each.node for each in evidence if each.node)),
        gpus=tuple(dict.fromkeys(each.gpu for each in evidence if each.gpu)),
    )
