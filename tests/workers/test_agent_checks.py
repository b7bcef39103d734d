"""Checks of a node by its agent: real programs, real files and sockets, and a pretended NVML under the real pynvml."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relight.domain.reports import CheckName, NodeCheck, ProbeAnswer, ProbeKind, ProbeRequest, Result
from relight.lab.nvml_stub import NvmlStub
from relight.workers import agent_check, agent_checks
from relight.workers.agent_checks import MAX_OUTPUT, Checks, Ended, exercised, run, scripted, unsafe
from relight.workers.agent_settings import AgentSettingsError, Care, read_file

from .agents import AgentProcess, Controller, started


def told(found: dict[str, object], name: str = "script") -> NodeCheck:
    """As the controller reads it."""
    return NodeCheck.model_validate({"name": name, **found})


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """And is neither pass nor fail."""
    child = tmp_path / "child"
    began = time.monotonic()
    ended = run(["/bin/sh", "-c", f"sleep 600 & echo $! > {child}; echo begun; wait"], 0.5, {})
    assert time.monotonic() - began < 10
    assert (ended.status, ended.out) == (None, b"begun\n")
    assert "was ended" in ended.why
    pid = int(child.read_text())
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("its child lives on")


def test_a_program_that_does_not_exist_is_said() -> None:
    """Unknown, not failed."""
    ended = run(["/nonexistent/nhc"], 5, {})
    assert told(scripted("/nonexistent/nhc", ended)).result is Result.UNKNOWN
    assert "No such file" in ended.why


def test_a_script_gets_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the agent's environment; its node's name, and a plain PATH."""
    monkeypatch.setenv("SECRET", "x")
    ended = run(["/usr/bin/env"], 5, {"SLURMD_NODENAME": "n1"})
    names = {line.partition("=")[0] for line in ended.out.decode().splitlines()}
    assert names == {"PATH", "LC_ALL", "HOME", "SLURMD_NODENAME"}


@pytest.mark.parametrize(
    ("body", "result", "text"),
    [
        ("echo all well", Result.PASSED, "ended with 0: all well"),
        ("echo ERROR: nhc: check_hw_ib: no port; exit 1", Result.FAILED, "check_hw_ib"),
        ("exit 3", Result.FAILED, "ended with 3"),
        ("kill -9 $$", Result.UNKNOWN, "signal 9"),
        ("sleep 60", Result.UNKNOWN, "took longer than 1 s"),
    ],
)
def test_the_sites_script(tmp_path: Path, body: str, result: Result, text: str) -> None:
    """Exit status 0 is healthy, any other is not; without a status nothing is known. The last line says why."""
    script = tmp_path / "node-check"
    script.write_text(f"#!/bin/sh\n{body}\n")
    found = told(scripted(str(script), run(["/bin/sh", str(script)], 1, {})))
    assert found.result is result
    assert text in found.text


def test_output_without_end_is_bounded(tmp_path: Path) -> None:
    """In memory and in the answer."""
    script = _safe_script(tmp_path, "yes 'x\x1b[31m' | head -c 4000000; exit 1")
    checks = Checks(print, node="n1", controller="127.0.0.1:1", care=Care(check=str(script)), nvml=False, folders=())
    found = told(checks.check("script", checks._script))
    assert found.result in {Result.FAILED, Result.UNKNOWN}
    assert len(found.output) <= MAX_OUTPUT
    assert "\x1b" not in found.output


def _safe_script(folder: Path, body: str) -> Path:
    script = folder / "check"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda script: script.chmod(0o777), "others can change"),
        (lambda script: script.parent.chmod(0o777), "others can change"),
        (lambda script: script.chmod(0o644), "not executable"),
        (lambda script: script.unlink(), "No such file"),
    ],
)
def test_a_script_that_others_can_change_is_not_run(tmp_path: Path, change: Callable[[Path], None], why: str) -> None:
    """It would be run with the agent's rights, which are often root's."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    script = _safe_script(folder, "exit 0")
    assert unsafe(str(script)) == ""
    change(script)
    assert why in unsafe(str(script))
    checks = Checks(print, node="n1", controller="127.0.0.1:1", care=Care(check=str(script)), nvml=False, folders=())
    assert told(checks.check("script", checks._script)).result is Result.UNKNOWN


# --- disk and network -------------------------------------------------------------------------------------------------


def test_a_file_is_written_and_read_back(tmp_path: Path) -> None:
    """And nothing is left of it."""
    found = told(agent_check.disk([str(tmp_path)]), "disk")
    assert found.result is Result.PASSED
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    """In the kernel's words."""
    found = told(agent_check.disk([str(tmp_path / "gone")]), "disk")
    assert found.result is Result.FAILED
    assert "cannot be written" in found.text


@pytest.fixture
def listener() -> Iterator[str]:
    """Something that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_reach(listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller and one neighbour are enough; without any neighbour the fabric is not there."""
    monkeypatch.setattr("relight.clients.host_state.fabric_ports", dict)
    closed = "127.0.0.1:1"
    assert told(agent_check.network(listener, [closed, listener]), "network").result is Result.PASSED
    assert told(agent_check.network(listener, []), "network").result is Result.PASSED
    assert told(agent_check.network(listener, [closed]), "network").result is Result.FAILED
    assert told(agent_check.network(closed, [listener]), "network").result is Result.FAILED
    monkeypatch.setattr("relight.clients.host_state.fabric_ports", lambda: {"mlx5_0/1": False})
    assert "no fabric port" in told(agent_check.network(listener, [listener]), "network").text


@pytest.mark.parametrize("place", ["nowhere", "127.0.0.1:x", ":", "127.0.0.1:99999999"])
def test_a_strange_place_is_not_reached(place: str) -> None:
    """Whatever Slurm calls a node's address."""
    assert agent_check.connects(place)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def gpus(stub: NvmlStub, expected: int = 8) -> NodeCheck:
    """The check as the agent runs it: a process of its own, with the stand-in."""
    command = [sys.executable, "-m", "relight.workers.agent_check", "nvml", str(expected)]
    environment = os.environ | stub.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    found.pop("cards", None)
    return told(found, "nvml")


def test_healthy_gpus_pass(stub: NvmlStub) -> None:
    """All that Slurm says there are."""
    assert gpus(stub).result is Result.PASSED


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"field_230": 2}, "Node Reboot Required"),
        ({"field_4": 1}, "uncorrected ECC"),
        ({"field_145": 1}, "row remapping failure"),
        ({"field_144": 1}, "row remapping pending"),
        ({"lost": 1}, "lost"),
        ({"absent": 1}, "lost"),
    ],
)
def test_a_gpu_that_is_not_well_fails(stub: NvmlStub, values: dict[str, int], text: str) -> None:
    """By the same judgement as every day, and by the driver's own count of errors."""
    stub.set(3, **values)
    found = gpus(stub)
    assert found.result is Result.FAILED
    assert text in found.text


def test_missing_gpus_fail(stub: NvmlStub) -> None:
    """One that fell off before the driver was loaded is not in its list at all."""
    found = gpus(stub, 9)
    assert found.result is Result.FAILED
    assert "8 GPUs of 9" in found.text


def test_without_a_driver_nothing_is_known(stub: NvmlStub) -> None:
    """Nor where it tells nothing of a GPU's health."""
    stub.driver(loaded=False)
    assert gpus(stub).result is Result.UNKNOWN
    stub.driver(loaded=True)
    stub.set(3, field_4=None, field_145=None, field_230=None)
    assert gpus(stub).result is Result.UNKNOWN


@pytest.mark.parametrize(
    ("status", "lines", "result"),
    [
        (0, [{"gpu": 0, "ok": True}, {"gpu": 1, "ok": True}], Result.PASSED),
        (0, [{"gpu": 0, "ok": True}, {"gpu": 1, "ok": False, "text": "7 values wrong"}], Result.FAILED),
        (0, [{"gpu": 0, "ok": True}, {"gpu": 1, "ok": None, "text": "no kernel image"}], Result.UNKNOWN),
        (None, [{"gpu": 0, "ok": True}], Result.UNKNOWN),
        (None, [{"gpu": 0, "ok": False}], Result.FAILED),
        (0, [], Result.UNKNOWN),
        (1, [], Result.UNKNOWN),
        (3, [{"why": "no torch, no cupy"}], Result.NOT_POSSIBLE),
        (0, ["garbage"], Result.UNKNOWN),
    ],
)
def test_what_the_exercise_tells(status: int | None, lines: list[object], result: Result) -> None:
    """One GPU that fails fails all; what was not made on all is unknown, and without a library it is not possible."""
    out = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
    assert told(exercised(Ended(status, out)), "exercise").result is result


def test_the_exercise_itself_says_that_it_is_not_possible_here() -> None:
    """On a machine without a GPU; run by whatever Python there is, it needs nothing of ours."""
    program = Path(agent_checks.__file__).with_name("agent_exercise.py")
    found = told(exercised(run([sys.executable, "-I", str(program)], 60)), "exercise")
    assert found.result in {Result.NOT_POSSIBLE, Result.PASSED}


# --- the agent as a whole ---------------------------------------------------------------------------------------------


def test_an_agent_answers_whether_its_node_is_fit(
    agent: AgentProcess, controller: Controller, stub: NvmlStub, listener: str, tmp_path: Path
) -> None:
    """A real agent, asked with a receipt, answers once; stacks could be asked for meanwhile."""
    script = _safe_script(agent.folder, "echo $SLURMD_NODENAME is well")
    agent.folder.chmod(0o755)
    if unsafe(str(script)):
        pytest.skip("the test's folder can be changed by others")
    agent.config.write_text(agent.config.read_text() + f"care: {{check: {script}, timeout: 20}}\n")
    started(agent, controller)
    controller.probes.append(ProbeRequest(id="care/1", kind=ProbeKind.CHECK, gpus=8, reach=(listener,)))

    def answers() -> list[ProbeAnswer]:
        return [answer for _, report in controller.reports for answer in report.answers if answer.id == "care/1"]

    controller.wait(answers, "the answer")
    answer = answers()[0]
    controller.probes.clear()
    found = {check.name: check for check in answer.checks}
    assert set(found) == set(CheckName)
    for name in (CheckName.NVML, CheckName.DISK, CheckName.NETWORK, CheckName.SCRIPT):
        assert found[name].result is Result.PASSED, found[name]
    assert found[CheckName.EXERCISE].result is Result.NOT_POSSIBLE
    assert found[CheckName.SCRIPT].text.endswith("n1 is well")
    assert (answer.cards[3].serial, answer.cards[3].uuid) == ("1650000000003", "GPU-pretended-3")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("care: {chek: /x}", "no setting care.chek"),
        ("care: {check: nhc}", "care.check must be an absolute path"),
        ("care: {timeout: 0}", "care.timeout must be seconds from 1 to 600"),
        ("care: 7", "care must be a mapping"),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """In one line."""
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    with pytest.raises(AgentSettingsError, match=problem):
        read_file(str(file))


def test_settings_of_care(tmp_path: Path) -> None:
    """All of them optional."""
    file = tmp_path / "agent.yaml"
    file.write_text("care: {check: /etc/relight/node-check, timeout: 30}")
    assert read_file(str(file)).care == Care("/etc/relight/node-check", 30.0, "")
