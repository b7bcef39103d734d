"""When the agent reports, how long it waits, and what it makes of each answer; with a clock of our own."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.reports import Receipt, Report
from relight.workers.agent_delivery import BATCHED_WITHIN, LONGEST_PAUSE, OVERDUE, REFUSED_PAUSE, Delivery
from relight.workers.agent_faults import Faults, Sight
from relight.workers.agent_probe import Answer
from relight.workers.agent_send import UNREACHABLE, Outcome

BEAT = 5.0
EMPTY: dict[str, Any] = {"at": "2026-11-30T12:00:00+00:00", "gpus": [], "blind": []}


class Wire:
    """Stands for the sender: notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[Report] = []
        self.aborted = 0

    def send(self, body: bytes) -> None:
        self.sent.append(Report.model_validate_json(body))

    def abort(self) -> None:
        self.aborted += 1


class Line:
    """A delivery, its faults, its wire and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wire = Wire()
        self.faults = Faults("n1/boot")
        fixed = {"node": "n1", "boot": "b", "version": "1"}
        self.delivery = Delivery(
            fixed=fixed,
            faults=self.faults,
            sender=self.wire,  # type: ignore[arg-type]
            token="/etc/relight/token",
            beat=BEAT,
            clock=lambda: self.now,
        )

    def fault(self, *xids: int) -> None:
        """Let something be wrong."""
        for xid in xids:
            self.faults.tell(Sight("xid", datetime(2026, 11, 30, tzinfo=UTC), "x", "nvml", xid=xid))

    def report(self) -> Report:
        """Wait until a report is due, and send it."""
        self.now = max(self.now, self.delivery.due)
        count = len(self.wire.sent)
        self.delivery.report(EMPTY)
        assert len(self.wire.sent) == count + 1
        return self.wire.sent[-1]

    def end(self, status: int = 200, receipt: Receipt | None = None, **more: Any) -> list[Any] | None:
        """Let the report under way end so."""
        return self.delivery.ended(Outcome(status, (receipt or Receipt()).model_dump_json().encode(), **more))

    @property
    def pause(self) -> float:
        """How long it will do nothing now."""
        return self.delivery.due - self.now


@pytest.fixture
def line() -> Line:
    """Nothing sent yet."""
    return Line()


def test_beats_come_regularly_and_faults_at_once(line: Line) -> None:
    """A fault does not wait for the next beat."""
    for _ in range(3):
        line.report()
        line.end()
        assert line.pause == pytest.approx(BEAT, abs=BEAT / 2)
    line.fault(79)
    assert line.pause <= 0
    assert [fault.xid for fault in line.report().faults] == [79]


def test_what_is_told_in_between_does_not_put_the_beat_off(line: Line) -> None:
    """The controller's questions are fetched with the beat: the second look at a hung rank waits for it."""
    line.report()
    line.end()
    due = line.delivery.due
    line.now += 1
    line.fault(79)
    line.report()
    line.end(receipt=Receipt(faults=1))
    assert line.delivery.due == due


def test_many_faults_go_in_several_reports(line: Line) -> None:
    """Each at once after the other, in order, and none twice."""
    line.fault(*range(150))
    told = []
    for _ in range(3):
        assert line.pause <= 1.0
        report = line.report()
        told += [fault.xid for fault in report.faults]
        line.end(receipt=Receipt(faults=len(report.faults)))
    assert told == list(range(150))


def test_an_outage_is_met_with_growing_pauses_up_to_a_limit(line: Line) -> None:
    """Whatever waits to be told."""
    line.fault(79)
    pauses = []
    for _ in range(12):
        line.report()
        line.end(UNREACHABLE, problem="Connection refused")
        pauses.append(line.pause)
    assert pauses[0] <= 1.0
    assert all(LONGEST_PAUSE / 2 <= pause <= LONGEST_PAUSE for pause in pauses[5:])
    assert len(set(pauses[5:])) > 1, "ten thousand agents would come back at once"
    line.report()
    line.end(receipt=Receipt(faults=1))
    assert line.pause <= BEAT


def test_an_outage_is_said_once(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """And its end."""
    for _ in range(5):
        line.report()
        line.end(UNREACHABLE, problem="Connection refused")
    line.report()
    line.end()
    assert [record.message for record in caplog.records] == [
        "the controller is not reached: Connection refused",
        "the controller is reached again",
    ]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_only_a_person_can_mend_is_tried_slowly(line: Line, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """And the log says what to do."""
    line.report()
    line.delivery.ended(Outcome(status, b"because of this\x1b[31m\nand more"))
    assert f"it answers {status} because of this [31m: " in caplog.text
    assert REFUSED_PAUSE / 2 <= line.pause <= REFUSED_PAUSE
    assert "--controller" in caplog.text if status == 404 else "/etc/relight/token" in caplog.text


def test_the_controller_may_ask_for_time(line: Line) -> None:
    """Retry-After, up to a minute: no longer silence is worth it."""
    line.report()
    line.end(429, retry_after=20.0)
    assert 10 <= line.pause <= 20
    line.report()
    line.end(503, retry_after=86400.0)
    assert line.pause <= REFUSED_PAUSE


def test_what_takes_too_long_is_given_up_and_sent_again(line: Line) -> None:
    """Nothing else is sent meanwhile, and nothing is forgotten."""
    line.fault(79)
    first = line.report()
    assert line.pause == pytest.approx(OVERDUE)
    line.now = line.delivery.due
    line.delivery.report(EMPTY)
    assert (line.wire.aborted, len(line.wire.sent)) == (1, 1)
    line.end(UNREACHABLE, problem="Broken pipe")
    assert line.report().faults == first.faults


def test_an_answer_is_sent_until_it_is_taken(line: Line) -> None:
    """Like a fault."""
    line.delivery.answers.append(Answer({"id": "p1", "at": "2026-11-30T12:00:00+00:00"}))
    for status in (500, 200):
        assert line.report().answers[0].id == "p1"
        line.end(status)
    assert line.report().answers == ()


def test_answers_go_one_by_one_and_at_once(line: Line) -> None:
    """Together they may be longer than the endpoint takes."""
    line.delivery.answers += [Answer({"id": each, "at": "2026-11-30T12:00:00+00:00"}) for each in ("p1", "p2")]
    for expected in ("p1", "p2"):
        assert line.pause <= 0
        assert [answer.id for answer in line.report().answers] == [expected]
        line.end()


def test_a_storm_becomes_two_reports_a_second(line: Line) -> None:
    """What is seen meanwhile goes into the next one; a first fault after a beat waits for nothing."""
    line.report()
    line.end()
    line.fault(1)
    assert line.pause <= 0
    line.report()
    line.end(receipt=Receipt(faults=1))
    line.fault(2)
    assert line.pause == pytest.approx(BATCHED_WITHIN)


def test_an_answer_that_is_not_acceptable_is_dropped_before_any_fault(line: Line) -> None:
    """It can be asked again; a fault cannot."""
    line.delivery.answers.append(Answer({"id": "p1", "at": "2026-11-30T12:00:00+00:00"}))
    line.fault(79)
    line.report()
    line.end(413)
    report = line.report()
    assert (report.answers, [fault.xid for fault in report.faults]) == ((), [79])


@given(bad=st.sets(st.integers(0, 39), max_size=4), count=st.integers(1, 40))
def test_unacceptable_faults_are_found_and_only_they_are_dropped(bad: set[int], count: int) -> None:
    """By halves; every other fault arrives once, and the dropped ones are counted."""
    line, told = Line(), []
    line.fault(*range(count))
    for _ in range(400):
        if not len(line.faults):
            break
        report = line.report()
        xids = [fault.xid for fault in report.faults]
        if bad.isdisjoint(xids):
            told += xids
            line.end(receipt=Receipt(faults=len(xids)))
        else:
            line.end(422)
    dropped = {each for each in bad if each < count}
    assert told == [xid for xid in range(count) if xid not in dropped]


def test_what_was_dropped_is_said_until_a_report_has_said_it(line: Line) -> None:
    """A report that is lost has not."""
    line.faults.dropped = 3
    line.report()
    line.end(500)
    assert line.faults.dropped == 3
    line.report()
    line.faults.dropped = 5
    line.end()
    assert line.faults.dropped == 2


def test_questions_come_with_the_receipt(line: Line) -> None:
    """No more than the contract has."""
    line.report()
    asked = line.delivery.ended(Outcome(200, json.dumps({"faults": 0, "probes": list(range(20))}).encode()))
    assert asked == list(range(8))


def test_a_late_outcome_of_nothing_is_ignored(line: Line) -> None:
    """No report is under way."""
    assert line.end() is None
