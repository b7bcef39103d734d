"""What the agent has to tell: each fault once, with an id that is always the same, until the controller has it."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from relight.domain import reports
from relight.domain.reports import FaultKind, NodeFault
from relight.workers.agent_faults import MAX_KEPT, MAX_SENT, MAX_TEXT, SAME, Condition, Faults, Kind, Sight, printable
from relight.workers.agent_gpus import EVENT_KINDS
from relight.workers.agent_kernel import RULES
from relight.workers.agent_loop import MAX_GPUS
from relight.workers.agent_probe import MAX_STACKS

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ORIGIN = "n1/84796d4e-78db-4b86-83b9-81f4c78393b1"


def xid(seconds: float = 0.0, number: int = 79, **more: Any) -> Sight:
    """An Xid of GPU 0000:43:00."""
    values = {"text": f"Xid {number}", "source": "nvml", "gpu": "0000:43:00"} | more
    return Sight("xid", NOW + timedelta(seconds=seconds), xid=number, **values)


def disk(holds: bool | None, seconds: float = 0.0) -> Condition:
    """A disk that is full, or is not."""
    return Condition(Sight("disk_full", NOW + timedelta(seconds=seconds), "/tmp", "host", about="/tmp"), holds)


def ids(faults: Faults) -> list[str]:
    """Of all that waits to be told."""
    return [fault.id for fault in faults.first(MAX_KEPT)]


def test_kinds_and_limits_are_the_contracts() -> None:
    """The agent cannot import the contract, for its memory; so this holds them together."""
    assert set(get_args(Kind)) == {kind.value for kind in FaultKind}
    assert {rule.kind for rule in RULES} | set(EVENT_KINDS.values()) <= set(get_args(Kind))
    assert (MAX_SENT, MAX_GPUS) == (reports.MAX_FAULTS, reports.MAX_GPUS)
    limits = [limit.max_length for limit in NodeFault.model_fields["text"].metadata if hasattr(limit, "max_length")]
    assert limits == [MAX_TEXT]
    assert MAX_STACKS == 64


def test_two_sights_of_one_fault_are_one_fault() -> None:
    """The kernel's line and NVML's event, whichever comes first, and however they name the process."""
    faults = Faults(ORIGIN)
    assert faults.tell(xid(0))
    assert not faults.tell(xid(1.2, source="kernel_log", pid=77, mark="k1234"))
    assert not faults.tell(xid(-0.3, source="kernel_log", mark="k1233"))
    assert len(faults) == 1


def test_another_gpu_another_xid_or_another_time_is_another_fault() -> None:
    """A storm of equal lines is told again every ten seconds, not once for ever."""
    faults = Faults(ORIGIN)
    told = [
        faults.tell(sight)
        for sight in (xid(0), xid(0, 48), xid(0, gpu="0000:52:00"), xid(9.9), xid(10), xid(19.9), xid(20))
    ]
    assert told == [True, True, True, False, True, False, True]
    assert len(set(ids(faults))) == 5


def test_processes_killed_at_once_are_faults_of_their_own() -> None:
    """`about` tells them apart."""
    faults = Faults(ORIGIN)
    for pid in (11, 12):
        assert faults.tell(Sight("oom_kill", NOW, "killed", "kernel_log", pid=pid, about=str(pid)))


def test_the_same_line_read_by_another_life_has_the_same_id() -> None:
    """Its place in the source makes the id, not the time at which it was read."""
    one, other = Faults(ORIGIN), Faults(ORIGIN)
    one.tell(xid(0, mark="k77"))
    other.tell(xid(0.4, mark="k77"))
    assert ids(one) == ids(other)


def test_a_state_is_told_when_it_begins_and_when_it_is_over() -> None:
    """Once each; not known is neither."""
    faults = Faults(ORIGIN)
    for holds in (None, False, True, True, None, True):
        faults.check(disk(holds))
    assert [fault.cleared for fault in faults.first(9)] == [False]
    faults.check(disk(False))
    faults.check(disk(False))
    begun, over = faults.first(9)
    assert (over.cleared, over.id) == (True, f"{begun.id}/over")
    faults.check(disk(True, 1))
    assert len({*ids(faults)}) == 3


def test_a_state_that_the_kernel_told_is_not_told_again() -> None:
    """A GPU that fell off the bus: the kernel's line, then NVML's reading."""
    faults = Faults(ORIGIN)
    faults.tell(Sight("gpu_lost", NOW, "fallen off the bus", "kernel_log", gpu="0000:43:00", mark="k9"))
    faults.check(Condition(Sight("gpu_lost", NOW + timedelta(seconds=3), "lost", "nvml", gpu="0000:43:00"), holds=True))
    assert len(faults) == 1


def test_beyond_the_limit_the_oldest_are_dropped_and_counted() -> None:
    """The newest tell most about now; and nothing is dropped silently."""
    faults = Faults(ORIGIN)
    for number in range(MAX_KEPT + 3):
        faults.tell(xid(0, number))
    assert (len(faults), faults.dropped) == (MAX_KEPT, 3)
    assert faults.first(1)[0].xid == 3


def test_only_what_is_acknowledged_is_forgotten() -> None:
    """Also when the oldest were dropped while the report was on its way."""
    faults = Faults(ORIGIN)
    for number in range(MAX_KEPT):
        faults.tell(xid(0, number))
    sent = faults.first(10)
    faults.tell(xid(0, 900))
    faults.acknowledged(sent[:5])
    assert faults.first(1)[0].xid == 5


def test_another_life_goes_on_where_this_one_ended() -> None:
    """Through JSON: what waits, what was seen, and what holds."""
    faults = Faults(ORIGIN)
    faults.tell(xid(0))
    faults.check(disk(True))
    later = Faults(ORIGIN, json.loads(json.dumps(faults.save())))
    assert ids(later) == ids(faults)
    assert not later.tell(xid(5))
    later.check(disk(True))
    assert len(later) == 2
    later.check(disk(False))
    assert later.first(9)[-1].id == f"{faults.first(9)[-1].id}/over"


def test_what_was_seen_is_bounded() -> None:
    """Whatever goes on on the node."""
    faults = Faults(ORIGIN)
    for number in range(5000):
        faults.tell(Sight("oom_kill", NOW + timedelta(seconds=number), "", "kernel_log", about=str(number)))
    assert len(faults.save()["seen"]) <= 1024


@given(
    text=st.text(max_size=2000),
    about=st.text(max_size=5000),
    gpu=st.sampled_from(["", "0000:43:00", "10000:01:00"]),
    mark=st.sampled_from(["", "k18446744073709551615", "f18446744073709551615-18446744073709551615"]),
    kind=st.sampled_from(get_args(Kind)),
)
def test_whatever_is_seen_is_valid_by_the_contract(text: str, about: str, gpu: str, mark: str, kind: Kind) -> None:
    """With the longest node name, too."""
    faults = Faults(f"{'n' * 63}/{'b' * 36}")
    faults.check(Condition(Sight(kind, NOW, text, "kernel_log", gpu=gpu, about=about, mark=mark), holds=True))
    faults.check(Condition(Sight(kind, NOW, text, "kernel_log", gpu=gpu, about=about, mark=mark), holds=False))
    for fault in faults.first(2):
        NodeFault.model_validate_json(json.dumps(fault.as_json()))
    assert len(faults) == 2


@given(text=st.text(max_size=3000), limit=st.integers(40, 600))
def test_a_text_is_one_printable_line_that_keeps_its_end(text: str, limit: int) -> None:
    """The kernel names the killed process last."""
    line = printable(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
    assert printable(f"oom-kill: {text} pid=4711", limit).endswith("pid=4711")


@given(steps=st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=40))
def test_within_the_window_nothing_is_told_twice(steps: list[tuple[float, bool]]) -> None:
    """Between any two faults of one key that are told lies at least the window."""
    faults, told = Faults(ORIGIN), []
    for seconds, by_kernel in sorted(steps):
        sight = xid(seconds, source="kernel_log" if by_kernel else "nvml", mark=f"k{seconds}" if by_kernel else "")
        if faults.tell(sight):
            told.append(sight.at)
    assert all(later - earlier >= SAME for earlier, later in pairwise(told))
