"""Slurm's words for states are read by one total table; what is not in it is unknown, never a guess."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.slurm import (
    ENDED,
    ENDED_BADLY,
    JobFlag,
    JobRecord,
    JobState,
    NodeFlag,
    NodeState,
    parse_job_state,
    parse_node_state,
)

# squeue(1), "JOB STATE CODES": compact and extended form of each base state.
BASE_STATES = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}
# The same section: what is added to a base state.
ADDED = {
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "LF": "LAUNCH_FAILED",
    "PO": "POWER_UP_NODE",
    "RC": "RECONFIG_FAIL",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
}
QUEUED_AGAIN = {"REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
KNOWN_JOB_WORDS = {*BASE_STATES, *BASE_STATES.values(), *ADDED, *ADDED.values(), "UPDATE_DB", "UNKNOWN"}


@pytest.mark.parametrize(("compact", "extended"), BASE_STATES.items())
def test_every_base_state_is_read_in_both_forms(compact, extended):
    """The manual's compact and extended words, in either case, are the same state with nothing added."""
    expected = (JobState(extended), frozenset())
    assert parse_job_state(compact) == expected
    assert parse_job_state(extended) == expected
    assert parse_job_state([extended.lower()]) == expected


@pytest.mark.parametrize(("compact", "extended"), ADDED.items())
def test_every_added_word_is_read_in_both_forms(compact, extended):
    """Alone it hides the base state, which is unknown unless the word itself says that the job is queued again."""
    state = JobState.PENDING if extended in QUEUED_AGAIN else JobState.UNKNOWN
    assert parse_job_state(extended) == (state, {JobFlag(extended)})
    assert parse_job_state(compact) == (state, {JobFlag(extended)})


@pytest.mark.parametrize("extended", [*ADDED.values(), "UPDATE_DB"])
def test_added_words_leave_the_base_state_alone(extended):
    """In a list, joined by `+` or by `,`, in any order, base state and flag are both read."""
    expected = (JobState.FAILED, {JobFlag(extended)})
    for words in (["FAILED", extended], [extended, "FAILED"], f"FAILED+{extended}", f"FAILED,{extended}"):
        assert parse_job_state(words) == expected


def test_accounting_says_who_cancelled():
    """`CANCELLED by 1000` is CANCELLED."""
    assert parse_job_state("CANCELLED by 1000").state is JobState.CANCELLED


@given(st.text(max_size=30) | st.lists(st.text(max_size=12), max_size=4))
def test_unknown_job_words_are_unknown(words):
    """Whatever is printed, no word outside the table yields a state or a flag."""
    parts = words.replace("+", ",").split(",") if isinstance(words, str) else words
    parsed = parse_job_state(words)
    if not any(part.strip().split(" ")[0].upper() in KNOWN_JOB_WORDS for part in parts):
        assert parsed == (JobState.UNKNOWN, frozenset())


def test_no_words_are_unknown():
    """An empty state is unknown."""
    assert parse_job_state("") == parse_job_state([]) == (JobState.UNKNOWN, frozenset())


def test_ends_are_disjoint_from_what_still_goes_on():
    """Every state is an end, goes on, or is unknown; a time limit, cancelling and preemption are not bad ends."""
    going_on = {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN}
    assert going_on.isdisjoint(ENDED)
    assert going_on | ENDED == set(JobState)
    assert {JobState.TIMEOUT, JobState.CANCELLED, JobState.PREEMPTED, JobState.COMPLETED}.isdisjoint(ENDED_BADLY)


@pytest.mark.parametrize("flag", ["COMPLETING", "CONFIGURING", "REQUEUED", "STAGE_OUT"])
def test_running_means_running_only(record, flag):
    """A record that is completing or still being set up does not run."""
    assert record(state=JobState.RUNNING).running
    assert not record(state=JobState.RUNNING, flags={JobFlag(flag)}).running


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "7"),
        ({"array_job_id": 6, "array_task_id": 2}, "6_2"),
        ({"array_job_id": 6, "array_task_id": 0}, "6_0"),
        ({"array_job_id": 6}, "7"),
        ({"het_job_id": 5, "het_offset": 1}, "5+1"),
    ],
)
def test_display_ids_are_slurms(record, fields, shown):
    """Array tasks and components are shown as Slurm's commands show them."""
    assert record(**fields).display_id == shown


# sinfo(1), "NODE STATE CODES", and what `scontrol` and the JSON of 22.05 to 26.05 print for the same.
NODE_WORDS = {
    "IDLE": ("IDLE", None),
    "ALLOC": ("ALLOCATED", None),
    "ALLOCATED": ("ALLOCATED", None),
    "MIX": ("MIXED", None),
    "MIXED": ("MIXED", None),
    "DOWN": ("DOWN", None),
    "ERROR": ("ERROR", None),
    "FUTR": ("FUTURE", None),
    "FUTURE": ("FUTURE", None),
    "UNK": ("UNKNOWN", None),
    "UNKNOWN": ("UNKNOWN", None),
    "BLOCKED": (None, "BLOCKED"),
    "CLOUD": (None, "CLOUD"),
    "COMP": (None, "COMPLETING"),
    "COMPLETING": (None, "COMPLETING"),
    "DRAIN": (None, "DRAIN"),
    "DRAINED": (None, "DRAIN"),
    "DRAINING": (None, "DRAIN"),
    "DRNG": (None, "DRAIN"),
    "FAIL": (None, "FAIL"),
    "FAILG": (None, "FAIL"),
    "FAILING": (None, "FAIL"),
    "INVAL": (None, "INVALID_REG"),
    "INVALID_REG": (None, "INVALID_REG"),
    "MAINT": (None, "MAINTENANCE"),
    "MAINTENANCE": (None, "MAINTENANCE"),
    "NOT_RESPONDING": (None, "NOT_RESPONDING"),
    "NO_RESPOND": (None, "NOT_RESPONDING"),
    "PLANNED": (None, "PLANNED"),
    "PLND": (None, "PLANNED"),
    "POWERED_DOWN": (None, "POWERED_DOWN"),
    "POWERING_DOWN": (None, "POWERING_DOWN"),
    "POWERING_UP": (None, "POWERING_UP"),
    "POWER_DOWN": (None, "POWER_DOWN"),
    "POWER_UP": (None, "POWER_UP"),
    "POW_DN": (None, "POWER_DOWN"),
    "POW_UP": (None, "POWER_UP"),
    "REBOOT_ISSUED": (None, "REBOOT_ISSUED"),
    "REBOOT_REQUESTED": (None, "REBOOT_REQUESTED"),
    "RESERVED": (None, "RESERVED"),
    "RESV": (None, "RESERVED"),
}


@pytest.mark.parametrize(("word", "meaning"), NODE_WORDS.items())
def test_every_node_word_is_read(word, meaning):
    """The manual's words, alone (base state unknown where the word has none) and beside IDLE."""
    base, flag = meaning
    flags = {NodeFlag(flag)} if flag else frozenset()
    assert parse_node_state(word) == (NodeState(base) if base else NodeState.UNKNOWN, flags)
    assert parse_node_state(word.lower()) == parse_node_state(word)
    if base is None:
        assert parse_node_state(f"IDLE+{word}") == parse_node_state([word, "IDLE"]) == (NodeState.IDLE, flags)


def test_a_star_is_not_responding():
    """`DOWN*`, `idle*` and `MIXED+DRAIN*` say that the node does not answer."""
    assert parse_node_state("DOWN*") == (NodeState.DOWN, {NodeFlag.NOT_RESPONDING})
    assert parse_node_state("idle*") == (NodeState.IDLE, {NodeFlag.NOT_RESPONDING})
    assert parse_node_state("MIXED+DRAIN*") == (NodeState.MIXED, {NodeFlag.DRAIN, NodeFlag.NOT_RESPONDING})


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="*"), max_size=20))
def test_unknown_node_words_are_unknown(text):
    """No word outside the table yields a state or a flag."""
    words = [w.strip().upper().rstrip("~#!%$@^-") for w in text.replace("+", ",").split(",")]
    known = {*NODE_WORDS, *NodeFlag, *NodeState, "NOT_RESP", "RES"}
    if known.isdisjoint(words):
        assert parse_node_state(text) == (NodeState.UNKNOWN, frozenset())


@pytest.mark.parametrize(
    ("words", "lost", "draining", "eligible"),
    [
        ("IDLE", False, False, True),
        ("ALLOCATED", False, False, True),
        ("MIXED+PLANNED", False, False, True),
        ("IDLE+COMPLETING", False, False, True),
        ("IDLE+DRAIN", False, True, False),
        ("ALLOCATED+DRAIN", False, True, False),
        ("DOWN", True, False, False),
        ("DOWN*+DRAIN", True, True, False),
        ("IDLE*", True, False, False),
        ("IDLE+MAINT", False, False, False),
        ("IDLE+POWERED_DOWN", False, False, False),
        ("MIXED+FAILING", False, False, False),
        ("IDLE+INVALID_REG", False, False, False),
        ("FUTURE", False, False, False),
        ("WHATEVER", False, False, False),
    ],
)
def test_what_a_node_state_allows(node, words, lost, draining, eligible):
    """Lost, draining and eligible are read from state and flags; an unknown state is none of them."""
    state = parse_node_state(words)
    found = node("n1", state.state, flags=state.flags)
    assert (found.lost, found.draining, found.eligible) == (lost, draining, eligible)


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({"tres": "cpu=64,mem=1T,node=2,billing=64,gres/gpu=16,gres/gpu:h100=16", "gres_per_node": "gpu:4"}, 16),
        ({"gres_per_node": "gpu:h100:8(S:0-1)"}, 16),
        ({"gres_per_node": "gpu,shard:3"}, 2),
        ({"tres": "cpu=64,gres/gpu=many"}, 0),
        ({}, 0),
    ],
    ids=["all that was asked for", "by node", "one each", "garbled", "not said"],
)
def test_gpus_of_a_job(fields, gpus):
    """What was asked for together counts before what was asked for by node."""
    submitted = datetime(2026, 12, 1, tzinfo=UTC)
    record = JobRecord(job_id=1, state=JobState.RUNNING, submit_time=submitted, node_count=2, **fields)
    assert record.gpus == gpus
