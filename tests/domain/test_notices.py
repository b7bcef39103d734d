"""What people are told of each row: who hears it, what it says, and what it leaves out."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.ledger import Row, RowKind
from relight.domain.notices import Audience, Severity, notice_of, words
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Policy, Verdict

USERS, OPERATORS, APPROVERS = Audience.USERS, Audience.OPERATORS, Audience.APPROVERS


@pytest.fixture
def row(now):
    def made(kind, body, **fields):
        given_ = {"id": "x", "at": now, "cluster": "main", "incident": "i0", "seq": 7, "prev_hash": "", "hash": ""}
        return Row(**{**given_, "kind": kind, "body": body, **fields})

    return made


@pytest.fixture
def told(row, incident, diagnosis):
    """What a row of an incident of alice's job 7 tells, in a mode."""

    def made(kind, body, mode=Mode.AUTO, **fields):
        known = incident(id="i0", user="alice", job_name="train", mode=mode, diagnosis=diagnosis())
        return notice_of(row(kind, body, **fields), known)

    return made


def verdict(attempt, mode, **fields):
    plan = Plan(attempt=attempt().key, restart=Restart.REQUEUE, exclude=("n2",), reason="it may help")
    return Verdict(plan=plan, mode=mode, mode_reason="policy", policy=Policy(mode=mode), **fields).model_dump(
        mode="json"
    )


@pytest.mark.parametrize(
    ("mode", "about", "says"),
    [
        (
            Mode.APPROVE,
            {USERS, OPERATORS, APPROVERS},
            "waits for 1 approval until 2026-11-30 09:30 UTC",
        ),
        (Mode.AUTO, {USERS, OPERATORS}, "it is done now, unasked"),
        (Mode.MONITOR, {OPERATORS}, "would have been done"),
    ],
)
def test_a_plan_says_what_why_what_next_and_how_to_stop_it(told, attempt, mode, about, says):
    """Approvers hear what waits for them; in monitor users hear nothing, as nothing is done."""
    notice = told(RowKind.PLANNED, verdict(attempt, mode), mode)
    facts = {fact.name: fact.text for fact in notice.facts}
    assert set(notice.about) == about
    assert notice.severity is (Severity.WARNING if mode is Mode.APPROVE else Severity.INFO)
    assert notice.title == "crash of job 7 train of alice: A GPU reported an uncorrectable memory error."
    assert "requeue job 7 excluding n2" in facts["Plan"]
    assert says in facts["Next"]
    assert ("To stop it" in facts) is (mode is not Mode.MONITOR)
    assert notice.waits is ("To approve" in facts) is (mode is Mode.APPROVE)
    assert notice.owner == "alice"


def test_an_answer_must_come_before_slurm_forgets_the_job(told, attempt, now):
    """The earlier of both ends counts."""
    body = verdict(attempt, Mode.APPROVE)
    body["plan"]["requeue_until"] = (now + timedelta(minutes=4)).isoformat()
    assert told(RowKind.PLANNED, body, Mode.APPROVE).until == now + timedelta(minutes=4)


@pytest.mark.parametrize(
    ("outcome", "severity", "if_told"),
    [("recovered", "info", False), ("failed", "warning", False), ("not_confirmed", "info", True)],
)
def test_an_end_ends_the_topic(told, outcome, severity, if_told):
    """What was never confirmed is told only to who has heard of it."""
    notice = told(RowKind.CLOSED, {"outcome": outcome, "reason": "because"})
    assert (notice.ends, notice.settles, notice.severity, notice.if_told) == (True, True, severity, if_told)


def test_what_a_person_must_do_is_critical_and_outlives_the_incident(told):
    """With what exactly."""
    notice = told(
        RowKind.ESCALATED, {"next": "sbatch it anew", "reason": "Slurm has forgotten it", "outcome": "expired"}
    )
    assert (notice.severity, notice.calls, notice.ends) == (Severity.CRITICAL, True, False)
    assert notice.facts[0].text == "sbatch it anew"


def test_the_breaker_calls_operators_until_it_is_reset(row):
    """One topic."""
    tripped = notice_of(row(RowKind.GUARD, {"what": "tripped", "text": "3 nodes", "by": ""}, incident=""), None)
    reset = notice_of(row(RowKind.GUARD, {"what": "reset", "text": "done", "by": "ada"}, incident=""), None)
    assert (tripped.severity, tripped.topic, tripped.ends) == (Severity.CRITICAL, "breaker", False)
    assert (reset.topic, reset.ends) == ("breaker", True)
    assert notice_of(row(RowKind.GUARD, {"what": "", "text": ""}), None) is None


def test_a_blind_detector_is_a_warning_and_one_jobs_output_is_not(row):
    """It sees again: told to who has heard that it did not."""
    detector = notice_of(row(RowKind.BLIND, {"what": "jobs", "why": "slurmctld is away"}, incident=""), None)
    one = notice_of(row(RowKind.BLIND, {"what": "log", "why": "gone"}, incident="", attempt="main/7/x"), None)
    over = notice_of(row(RowKind.BLIND, {"what": "jobs", "why": "sees", "until": "x"}, incident=""), None)
    assert (detector.severity, one.severity) == (Severity.WARNING, Severity.INFO)
    assert (over.topic, over.ends, over.if_told) == (detector.topic, True, True)


@pytest.mark.parametrize(
    ("step", "waits", "severity"),
    [("1-begun", False, "info"), ("7-asked", True, "warning"), ("9-kept", False, "warning"), ("4-drained", None, "")],
)
def test_operators_hear_of_a_quarantines_turns_and_approvers_of_its_questions(row, step, waits, severity):
    """In a topic of its own: it outlives the incident."""
    body = {"step": step, "phase": "waiting", "text": "return n1", "incident": "i0"}
    notice = notice_of(row(RowKind.CARE, body, node="n1", incident="c0"), None)
    if waits is None:
        assert notice is None
        return
    assert (notice.topic, notice.waits, notice.severity, notice.node) == ("c0", waits, severity, "n1")
    until = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
    dated = [
        notice_of(row(RowKind.CARE, {**body, "until": each}, node="n1", incident="c0"), None).until
        for each in (until.isoformat(), "soon", "2026-11-30T09:30:00")
    ]
    assert dated == ([until, None, None] if waits else [None] * 3)
    assert set(notice.about) == ({OPERATORS, APPROVERS} if waits else {OPERATORS})
    assert notice.owner == ""


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (RowKind.LEAVE, {"leave": {"granted": True}}),
        (RowKind.EFFECT, {"step": "exclude-n1", "done": {"text": "x"}}),
        (RowKind.EFFECT, {"step": "requeue", "done": {"text": "x", "outcome": "overridden"}}),
        (RowKind.EFFECT, {"step": "requeue", "done": {"text": "x"}, "meant": False}),
        (RowKind.FAULT, {"fault": {"kind": "xid", "cleared": True}}),
        (RowKind.PLANNED, {"written": "by another version"}),
        (RowKind.INTENT, {"what": "requeue"}),
        (RowKind.ATTEMPT_SEEN, {}),
    ],
)
def test_the_rest_is_for_the_record(told, kind, body):
    """What others tell better, what was not done, what cannot be read."""
    assert told(kind, body) is None


@given(
    st.sampled_from(RowKind),
    st.dictionaries(st.sampled_from(["text", "why", "what", "reason", "next", "step"]), st.text()),
)
def test_whatever_stands_in_a_row_no_text_breaks_a_line_or_a_terminal(kind, body):
    """Control characters, line breaks and what turns the direction of writing are gone; all texts are short."""
    base = {"id": "x", "at": "2026-11-30T09:00:00Z", "cluster": "main", "seq": 7, "prev_hash": "", "hash": ""}
    notice = notice_of(Row(**base, kind=kind, body=body, node="n1"), None)
    for text in (notice.title, *(fact.text for fact in notice.facts)) if notice else ():
        assert text.isprintable()
        assert len(text) <= 600


def test_words_are_one_line():
    """As a terminal, a header and a page would have it."""
    assert words("a\r\nBcc: b\x00\x1b[31m\u202e  c") == "a Bcc: b [31m c"
