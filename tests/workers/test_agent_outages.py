"""A real agent process whose controller fails, lies, drips or is not trusted, and one that is started again."""

import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from relight.domain.reports import FaultKind, Report
from relight.lab.nvml_stub import NvmlStub
from relight.lab.processes import wait_until

from .agents import NODE, OFF_THE_BUS, PATIENCE, AgentProcess, Controller, Server, serve, started


def test_faults_outlive_an_outage(agent: AgentProcess, server: Server, stub: NvmlStub) -> None:
    """They are told when it is over, each once, and the log says it in two lines."""
    controller = server.controller
    started(agent, controller)
    server.end()
    stub.xid(1, 79)
    agent.kernel("Out of memory: Killed process 4711 (python) total-vm:1kB")
    wait_until(lambda: "not reached" in agent.log, PATIENCE, "the log to say so")
    again = serve(server.server_port)
    try:
        again.controller.wait_for_fault(xid=79)
        again.controller.wait_for_fault(kind=FaultKind.OOM_KILL)
        again.controller.next_report()
        assert len({fault.id for fault in again.controller.faults}) == len(again.controller.faults) == 2
        wait_until(lambda: "reached again" in agent.log, PATIENCE, "the log to say that it is over")
        assert agent.log.count("not reached") == 1
        assert "Traceback" not in agent.log
    finally:
        again.end()


def test_a_receipt_that_is_lost_makes_it_send_the_same_fault_again(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """With the same id, so that the controller can tell; after a receipt it is not sent any more."""
    started(agent, controller)
    lose = [500, 503]
    controller.respond = lambda report: lose.pop() if report.faults and lose else None
    stub.xid(1, 79)
    controller.wait(lambda: len(controller.faults) == 3, "the fault three times")
    controller.next_report()
    assert len(controller.faults) == 3
    assert len({fault.id for fault in controller.faults}) == 1


def test_what_the_controller_has_not_kept_is_sent_again(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """The receipt says how many of the report's faults are in the ledger, from the first on."""
    started(agent, controller)
    keep = [b'{"faults": 0}']
    controller.respond = lambda report: keep.pop() if report.faults and keep else None
    stub.xid(1, 79)
    controller.wait(lambda: len(controller.faults) == 2, "the fault twice")
    assert len({fault.id for fault in controller.faults}) == 1


def test_a_wrong_token_is_explained_and_a_new_one_is_used(agent: AgentProcess, controller: Controller) -> None:
    """It does not give up, nor ask often; the log says what to do."""
    agent.token.write_text("0" * 64)
    agent.start(controller.url)
    wait_until(lambda: "it answers 401" in agent.log, PATIENCE, "the log to say so")
    assert str(agent.token) in agent.log
    assert controller.reports == []
    assert len(controller.tokens) == 1


def test_a_fault_that_is_not_acceptable_does_not_hold_up_the_others(
    agent: AgentProcess, controller: Controller
) -> None:
    """Found by halves, dropped, and that is told."""
    started(agent, controller)

    def refuse(report: Report) -> int | None:
        return 422 if any(fault.pid == 13 for fault in report.faults) else None

    controller.respond = refuse
    lines = [f"Out of memory: Killed process {pid} (python) total-vm:1kB" for pid in (11, 12, 13, 14, 15)]
    for line in lines:
        agent.kernel(line)
    controller.wait(lambda: {11, 12, 14, 15} <= accepted(controller), "the other faults")
    controller.wait(
        lambda: any(
            "agent: 1 faults were dropped" in text for _, r in controller.reports if r.beat for text in r.beat.blind
        ),
        "a beat that says so",
    )


def accepted(controller: Controller) -> set[int | None]:
    """PIDs of faults in reports that were taken."""
    return {f.pid for _, r in controller.reports if all(f.pid != 13 for f in r.faults) for f in r.faults}


@pytest.mark.slow
def test_a_server_that_drips_is_given_up(agent: AgentProcess, stub: NvmlStub) -> None:
    """One byte now and then keeps a connection busy for ever; the loop is not held up and ends when it is told to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        agent.start(f"http://127.0.0.1:{listener.getsockname()[1]}")
        wait_until(lambda: "no answer in time" in agent.log, 60, "the log to say so")
        assert agent.stop() == 0


def drip(listener: socket.socket) -> None:
    """Answer a byte a second."""
    while True:
        try:
            connection, _ = listener.accept()
            with connection:
                for sign in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000:
                    connection.send(bytes([sign]))
                    threading.Event().wait(1)
        except OSError:
            if listener.fileno() < 0:
                return


@pytest.mark.parametrize("answer", [b"<html>hello</html>", b"[]", b'{"faults": "many"}', b'{"probes": 3}'])
def test_an_answer_that_is_no_receipt_is_said(agent: AgentProcess, controller: Controller, answer: bytes) -> None:
    """A proxy's page, say; the agent lives."""
    controller.respond = lambda _report: answer
    agent.start(controller.url)
    wait_until(lambda: "no receipt" in agent.log, PATIENCE, "the log to say so")
    controller.respond = lambda _report: None
    wait_until(lambda: "reached again" in agent.log, PATIENCE, "it to go on")


def test_probes_that_it_does_not_understand_do_no_harm(agent: AgentProcess, controller: Controller) -> None:
    """A newer controller may ask anything."""
    strange = [b'{"probes": [3, {"id": "a"}, {"id": "b", "kind": "gpu_check", "job_id": 7}]}']
    controller.respond = lambda _report: strange.pop() if strange else None
    agent.start(controller.url)
    controller.wait(lambda: any(r.answers for _, r in controller.reports), "an answer")
    answers = [answer for _, report in controller.reports for answer in report.answers]
    assert answers[0].id == "b"
    assert "knows no probe" in answers[0].problem


def test_a_restart_tells_nothing_twice_and_forgets_nothing(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """Neither a state that still holds, nor lines read before; lines written meanwhile are news."""
    agent.kernel(OFF_THE_BUS.replace("79", "13"))
    stub.set(3, field_145=1)
    started(agent, controller)
    stub.xid(1, 79)
    controller.wait_for_fault(xid=79)
    agent.kernel("Out of memory: Killed process 11 (python) total-vm:1kB")
    controller.wait_for_fault(pid=11)
    assert agent.stop() == 0
    agent.kernel(OFF_THE_BUS)
    agent.kernel("Out of memory: Killed process 12 (python) total-vm:1kB")
    started(agent, controller)
    controller.wait_for_fault(pid=12)
    controller.next_report()
    told = [(fault.kind.value, fault.xid, fault.pid) for fault in controller.faults]
    assert sorted(told, key=str) == [
        ("oom_kill", None, 11),
        ("oom_kill", None, 12),
        ("row_remap", None, None),
        ("xid", 79, None),
    ]


def test_what_was_not_acknowledged_is_told_after_a_restart(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """With the same id; also after kill -9."""
    started(agent, controller)
    controller.respond = lambda report: 503 if report.faults else None
    stub.xid(1, 79)
    first = controller.wait_for_fault(xid=79)
    agent.stop(signal.SIGKILL)
    assert [fault["id"] for fault in agent.saved["faults"]["pending"]] == [first.id]
    controller.respond = lambda _report: None
    agent.start(controller.url)
    controller.wait(lambda: len(controller.faults) >= 2 and controller.faults[-1].id == first.id, "the fault again")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"faults": [1]}',
        '{"faults": {"seen": {"x": "yesterday"}}}',
        '{"faults": {"pending": [{"id": 1}]}}',
        '{"position": {"inode": 1, "offset": "x"}}',
        '{"position": [1]}',
    ],
)
def test_a_broken_state_file_is_begun_anew(agent: AgentProcess, controller: Controller, content: str) -> None:
    """A disk that was full, or an older version's: never a crash."""
    state = agent.folder / "state" / "agent.json"
    state.parent.mkdir()
    state.write_text(content)
    agent.start(controller.url)
    controller.next_report()
    agent.kernel(OFF_THE_BUS)
    controller.wait_for_fault(xid=79)


def test_a_state_file_that_cannot_be_written_is_said_once(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """And the agent goes on without."""
    (agent.folder / "state").write_text("a file where the folder should be")
    started(agent, controller)
    stub.xid(1, 79)
    controller.wait_for_fault(xid=79)
    assert agent.log.count("cannot be written") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(agent: AgentProcess, controller: Controller, number: signal.Signals) -> None:
    """Status 0, no traceback, and its state is kept."""
    started(agent, controller)
    assert agent.stop(number) == 0
    assert "Traceback" not in agent.log
    assert agent.saved["position"]["inode"] == agent.kernel_log.stat().st_ino


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "controller")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[Controller, Path]]:
    """A controller over TLS, and the certificate that it has."""
    cert, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = serve(tls=context)
    yield server.controller, cert
    server.end()


def test_tls_with_a_certificate_of_the_sites_own(agent: AgentProcess, tls: tuple[Controller, Path]) -> None:
    """Trusted by --ca."""
    controller, cert = tls
    agent.start(controller.url, "--ca", str(cert))
    assert controller.next_report().node == NODE


def test_a_certificate_that_is_not_trusted_gets_no_token(agent: AgentProcess, tls: tuple[Controller, Path]) -> None:
    """The log says what to do."""
    controller, _ = tls
    agent.start(controller.url)
    wait_until(lambda: "is not trusted" in agent.log, PATIENCE, "the log to say so")
    assert "--ca" in agent.log
    assert controller.tokens == []


def test_a_host_that_is_none_is_said(agent: AgentProcess) -> None:
    """And tried again: the sender does not die of it."""
    agent.start("https://a..b:8443")
    wait_until(lambda: "not reached" in agent.log, PATIENCE, "the log to say so")
    assert "Traceback" not in agent.log


def test_tls_where_there_is_none_is_said(agent: AgentProcess, controller: Controller) -> None:
    """The address has the wrong scheme."""
    agent.start(controller.url.replace("http:", "https:"))
    wait_until(lambda: "no TLS with it" in agent.log, PATIENCE, "the log to say so")
