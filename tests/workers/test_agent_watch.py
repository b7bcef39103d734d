"""The watchers: what they say when they cannot see, and what the host's tells."""

import threading
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

import pytest

from relight.clients.host_state import Space
from relight.clients.kernel_messages import KernelMessage, Messages
from relight.lab.processes import wait_until
from relight.workers import agent_watch
from relight.workers.agent_faults import Condition
from relight.workers.agent_kernel import KernelFaults
from relight.workers.agent_watch import HostWatcher, KernelNews, KernelWatcher, Watcher

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Broken(Watcher):
    """Dies of a fault of ours."""

    def run(self) -> None:
        raise ZeroDivisionError("division by zero")


def test_a_watcher_that_died_is_blind(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not look like one that sees nothing wrong."""
    monkeypatch.setattr(agent_watch, "MISSING_PERIOD", 3600.0)  # within the tests' life it is not tried again
    watcher = Broken("gpu", lambda _news: None)
    watcher.start()
    wait_until(lambda: "fault in the agent" in watcher.problem, 10, "it to say so")
    assert list(watcher.blind()) == ["gpu: a fault in the agent: ZeroDivisionError: division by zero"]
    assert "a fault in the agent's watcher gpu" in caplog.text


class Storm:
    """A kernel that says the same for ever."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, _timeout_s: float) -> Messages:
        self.reads += 1
        line = f"Out of memory: Killed process {self.reads} (python)"
        return Messages([KernelMessage(line, NOW, f"k{self.reads}")], {"next": self.reads}, "")


def test_a_storm_of_messages_waits_in_the_kernel() -> None:
    """Nothing more is read before what was read has been dealt with."""
    storm, inbox = Storm(), SimpleQueue[Any]()
    watcher = KernelWatcher(inbox.put, storm, KernelFaults())
    watcher.start()
    for number in (1, 2):
        news = inbox.get(timeout=10)
        assert isinstance(news, KernelNews)
        assert (news.sights[0].pid, news.position, storm.reads) == (number, {"next": number}, number)
        assert inbox.empty()
        watcher.taken.release()
    threading.Event().wait(0.05)
    assert inbox.qsize() == 1


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostWatcher:
    """A watcher of no paths, on a host without ports and mounts."""
    monkeypatch.setattr(agent_watch, "fabric_ports", dict)
    monkeypatch.setattr(agent_watch, "network_mounts", list)
    return HostWatcher(lambda _news: None, (), 15.0, mounts=True)


def holding(conditions: Any) -> dict[str, bool | None]:
    """Whether each holds, by kind and what it is about."""
    found: list[Condition] = list(conditions)
    return {f"{each.sight.kind} {each.sight.about}": each.holds for each in found}


def test_a_port_that_goes_down_is_told_and_one_without_a_cable_is_not(
    host: HostWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what has been active can be missed; one that is gone altogether is down, too."""
    looks = [
        {"mlx5_0/1": True, "mlx5_1/1": False},
        {"mlx5_0/1": False, "mlx5_1/1": False},
        {},
        {"mlx5_0/1": True, "mlx5_1/1": False},
    ]
    seen = []
    for look in looks:
        monkeypatch.setattr(agent_watch, "fabric_ports", lambda look=look: look)
        seen.append(holding(host._ports()))
    assert seen == [{"fabric port mlx5_0/1": holds} for holds in (False, True, True, False)]


class Scripted:
    """A path whose answers are known beforehand."""

    def __init__(self, *answers: Space) -> None:
        self._answers = list(answers)

    def ask(self) -> None:
        """Take the next."""

    def answer(self) -> Space:
        """The next."""
        return self._answers.pop(0)


def test_a_mount_that_does_not_answer_is_told_and_its_end(host: HostWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is taken away instead of answering again. Whether it is full is then not known."""
    monkeypatch.setattr(agent_watch, "network_mounts", lambda: ["/scratch"])
    dead, alive = (
        Space("/scratch", stale=True, problem="/scratch has not answered for 5 s"),
        Space("/scratch", stale=False),
    )
    host._watched["/scratch"] = Scripted(alive, dead, alive, dead)  # type: ignore[assignment]
    seen = [holding(host._spaces()) for _ in range(4)]
    assert [each["stale_mount /scratch"] for each in seen] == [False, True, False, True]
    assert {each["disk_full /scratch"] for each in seen} == {None}
    assert host.problem == ""
    monkeypatch.setattr(agent_watch, "network_mounts", list)
    assert holding(host._spaces()) == {"stale_mount /scratch": False}


def test_a_path_that_is_not_there_is_blindness_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a slip in the settings, or not mounted yet."""
    watcher = HostWatcher(lambda _news: None, ("/nonexistent/scratch",), 15.0, mounts=False)
    assert set(holding(watcher._spaces()).values()) == {None}
    assert list(watcher.blind()) == ["host: /nonexistent/scratch: No such file or directory"]


def test_a_round_that_does_not_end_is_blindness(host: HostWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken driver may hold up even sysfs."""
    host.problem = ""
    assert list(host.blind()) == []
    host._round -= 60
    assert list(host.blind()) == ["host: not looked at for 60 s"]
