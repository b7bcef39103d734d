"""Why Slurm keeps a queued job waiting, in words. Pure.

Slurm's codes are those of squeue(1), JOB REASON CODES, and of `src/common/slurm_protocol_defs.c` (`job_reason_string`).
"""

from relight.domain.hands import held
from relight.domain.slurm import JobFlag, JobRecord, JobState

SAYS_NOTHING = frozenset({"", "None", "BeginTime"})
"""No reason yet, or the delay after a requeue."""
_DELETED = "ReservationDeleted"
_WORDS = {
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "it waits for another job, which failed",
    "JobArrayTaskLimit": "as many tasks of its array run as it allows at once",
    "Licenses": "it waits for a licence",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "Priority": "jobs of higher priority come first",
    "ReqNodeNotAvail": "nodes that it asks for are not available",
    "Reservation": "its reservation has ended, or has not begun",
    _DELETED: "its reservation has ended, and Slurm holds it",
    "Resources": "too few nodes are free",
}
_LIMITS = ("QOS", "Assoc", "Max")
"""How the codes of limits begin: `QOSMaxJobsPerUserLimit`, `AssocGrpGRES`, `MaxGRESPerAccount`."""


def code(record: JobRecord) -> str:
    """Slurm's reason for a pending job that has a begin time behind it; empty where there is nothing to say."""
    if record.state is not JobState.PENDING or record.completing:
        return ""
    if JobFlag.RESV_DEL_HOLD in record.flags:
        return _DELETED
    word = record.reason.split(",")[0].strip()
    return "" if word in SAYS_NOTHING else word


def why(record: JobRecord) -> str:
    """The same in words, Slurm's own beside them."""
    word = code(record)
    if not word:
        return ""
    if held(record) and word != _DELETED:
        return f"waits: it is held ({record.why}), and whoever held it releases it"
    limit = "a limit of its account or QOS is reached" if word.startswith(_LIMITS) else ""
    words = _WORDS.get(word) or limit
    return f"waits: {words} ({record.why})" if words else f"waits: {record.why}"
