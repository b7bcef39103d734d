"""Incidents go through their phases by one table and end in an outcome that the phase allows."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.evidence import GOES_ON, TRUST, Evidence, Interruption, Source, Trust
from relight.domain.incidents import (
    OUTCOMES_FROM,
    TRANSITIONS,
    Outcome,
    Phase,
    TransitionError,
    advance,
    headline,
    incident_id,
    may_close,
    node_reason,
    overtaken,
    overtaken_by,
)


def test_the_tables_are_total():
    """Every phase stands in both tables, and every outcome can be reached."""
    assert set(TRANSITIONS) == set(OUTCOMES_FROM) == set(Phase)
    assert frozenset().union(*OUTCOMES_FROM.values()) == set(Outcome)


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.CLOSED])
def test_every_phase_can_close_and_may_fail(phase):
    """From anywhere an incident may end, and for that there is an outcome, `failed` among them."""
    assert advance(phase, Phase.CLOSED) is Phase.CLOSED
    assert may_close(phase, Outcome.FAILED)


def test_closed_is_the_end():
    """Nothing follows, and no second outcome."""
    assert not TRANSITIONS[Phase.CLOSED]
    assert not any(may_close(Phase.CLOSED, outcome) for outcome in Outcome)


def test_phases_never_come_back():
    """Phases follow each other in one order: whatever happens, an incident cannot run in circles."""
    order = list(Phase)
    for phase, following in TRANSITIONS.items():
        assert all(order.index(to) > order.index(phase) for to in following)


@given(st.sampled_from(list(Phase)), st.sampled_from(list(Phase)))
def test_only_what_the_table_says_is_allowed(current, to):
    """Every pair that is not in the table is refused."""
    if to in TRANSITIONS[current]:
        assert advance(current, to) is to
    else:
        with pytest.raises(TransitionError, match="cannot go from"):
            advance(current, to)


PLANNED_FOR = {Phase.DIAGNOSING, Phase.PLANNING, Phase.WAITING}


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("kind", list(Interruption))
def test_an_attempt_that_ends_makes_a_plan_for_a_running_one_moot(detection, phase, kind):
    """Before anything is done, and not where the attempt had ended already; what goes on changes nothing."""
    first = detection(id="first", kind=kind)
    for end in (Interruption.CRASH, Interruption.NODE_LOST):
        later = detection(id="later", kind=end)
        moot = phase in PLANNED_FOR and kind in GOES_ON
        assert overtaken_by([first, later], phase) == (later if moot else None)
        assert overtaken(later).endswith("see the attempt's next incident")
    for other in GOES_ON - {Interruption.GPU_FAULT}:
        assert overtaken_by([first, detection(id="later", kind=other)], phase) is None
    assert overtaken_by([first], phase) is None
    assert overtaken_by([], phase) is None


def test_a_fault_counts_against_a_plan_that_waits(detection):
    """While the cause is still looked for it is evidence; the attempt's end goes before it."""
    hang, fault, crash = (
        detection(id=kind, kind=kind) for kind in (Interruption.HANG, Interruption.GPU_FAULT, Interruption.CRASH)
    )
    assert overtaken_by([hang, fault], Phase.WAITING) == fault
    assert overtaken_by([hang, fault], Phase.DIAGNOSING) is None
    assert overtaken_by([fault, fault], Phase.WAITING) is None
    assert overtaken_by([hang, fault, crash], Phase.WAITING) == crash


@pytest.mark.parametrize("outcome", [Outcome.RECOVERED, Outcome.ADOPTED])
def test_recovered_is_said_after_verification_only(outcome):
    """No incident counts as recovered from a phase in which nothing was verified."""
    assert [phase for phase in Phase if may_close(phase, outcome)] == [Phase.VERIFYING]


def test_observed_comes_from_planning_only():
    """Monitor mode ends before anything is done."""
    assert [phase for phase in Phase if may_close(phase, Outcome.OBSERVED)] == [Phase.PLANNING]


def test_incident_ids_are_short_and_the_same_each_time(attempt):
    """One id for a run of an attempt's workflow, another for the next run."""
    key = attempt().key
    first = incident_id(key, "run-1")
    assert first == incident_id(key, "run-1") != incident_id(key, "run-2")
    assert first.startswith("i")
    assert len(first) == 11


@given(st.text(max_size=600))
def test_node_reasons_are_one_short_line(text):
    """However long and strange the text, the mark is ours, one line, at most 200 characters, no double quotes."""
    reason = node_reason("i12", "CUDA_ECC", text)
    assert reason.startswith("relight:i12:CUDA_ECC: ")
    assert len(reason) <= 200
    assert len(reason.splitlines()) == 1
    assert '"' not in reason


def test_a_node_reason_reads_so():
    """The form that people and exporters see."""
    assert node_reason("i12", "CUDA_ECC", 'Xid 48\n "double  bit"') == "relight:i12:CUDA_ECC: Xid 48 'double bit'"


def test_headlines_are_short(detection):
    """One line of at most 200 characters, with or without evidence."""
    evidence = (Evidence(source=Source.SLURMCTLD, text="x" * 600),)
    assert headline(detection()) == "crash of job 7"
    assert len(headline(detection(evidence=evidence))) == 200


def test_everything_a_user_can_write_is_job_evidence():
    """Every source has its trust, and only what the platform itself says is platform evidence."""
    assert set(TRUST) == set(Source)
    platform = {Source.KERNEL_LOG, Source.SLURMCTLD, Source.ACCOUNTING, Source.NVML, Source.DCGM}
    platform |= {Source.AGENT, Source.SLURMD}
    assert {source for source in Source if TRUST[source] is Trust.PLATFORM} == platform
    assert Evidence(source=Source.JOB_LOG, text="Xid 79").trust is Trust.JOB


def test_an_incident_is_open_until_it_has_an_outcome(incident, now):
    """The outcome closes it, not the time."""
    assert incident().open
    assert not incident(outcome=Outcome.EXPIRED, closed_at=now + timedelta(seconds=1)).open
