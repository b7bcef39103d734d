"""Search attributes: what the Temporal web UI can filter and sort incidents by.

Registered at start-up by the worker: upserting one that is not registered blocks a workflow instead of failing
it (seen). The dev server on SQLite takes 10 keywords, 3 keyword lists and 3 integers.
"""

from collections.abc import Sequence

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from relight.domain.attempts import AttemptKey
from relight.domain.evidence import Interruption

CLUSTER = SearchAttributeKey.for_keyword("RelightCluster")
JOB_ID = SearchAttributeKey.for_keyword("RelightJobId")
USER = SearchAttributeKey.for_keyword("RelightUser")
KIND = SearchAttributeKey.for_keyword("RelightKind")
CAUSE = SearchAttributeKey.for_keyword("RelightCause")
CATEGORY = SearchAttributeKey.for_keyword("RelightCategory")
PHASE = SearchAttributeKey.for_keyword("RelightPhase")
MODE = SearchAttributeKey.for_keyword("RelightMode")
OUTCOME = SearchAttributeKey.for_keyword("RelightOutcome")
NODES = SearchAttributeKey.for_keyword_list("RelightNodes")
NODE_COUNT = SearchAttributeKey.for_int("RelightNodeCount")

ALL: tuple[SearchAttributeKey[str] | SearchAttributeKey[Sequence[str]] | SearchAttributeKey[int], ...] = (
    CLUSTER,
    JOB_ID,
    USER,
    KIND,
    CAUSE,
    CATEGORY,
    PHASE,
    MODE,
    OUTCOME,
    NODES,
    NODE_COUNT,
)


def at_start(attempt: AttemptKey, kind: Interruption) -> TypedSearchAttributes:
    """What is known when an incident's workflow is started."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(CLUSTER, attempt.cluster),
            SearchAttributePair(JOB_ID, str(attempt.job_id)),
            SearchAttributePair(KIND, str(kind)),
        ],
    )
