"""The hook `relight-hook`: it tells what slurmctld has ended, and never fails or lingers, whatever happens."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from relight.clients import relight_hook
from relight.clients.relight_hook import Problem, Target, read_settings, read_token, target, tell

TOKEN = "0123456789abcdef" * 4


class Endpoint(BaseHTTPRequestHandler):
    """Notes what it is told."""

    status = 202
    told: list[tuple[str, str, object]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.told.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"the token is not that of 'slurmctld'\n")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[HTTPServer]:
    """An HTTP server in a thread of its own."""
    Endpoint.told, Endpoint.status = [], 202
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Installed:
    """The hook as an administrator installs it: a copy of the one file, settings, a token."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "sbin" / "relight-hook"
        self.settings = folder / "etc" / "relight-hook.conf"
        self.token = folder / "etc" / "relight-hook.token"
        self.program.parent.mkdir()
        self.settings.parent.mkdir()
        shutil.copy(relight_hook.__file__, self.program)
        self.token.write_text(f"{TOKEN}\n")
        self.token.chmod(0o600)

    def configure(self, url: str, **more: str) -> None:
        lines = {"url": url, "token_file": str(self.token), **more}
        self.settings.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
        self.settings.chmod(0o644)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """As slurmctld does: without PATH."""
        command = [sys.executable, "-I", str(self.program)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def tell(self, **environment: str) -> None:
        tell(self.program, environment)


@pytest.fixture
def hook(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def address(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_it_tells_the_job(hook: Installed, endpoint: HTTPServer) -> None:
    """With its token, at the endpoint's own path."""
    hook.configure(address(endpoint) + "/relight/")
    done = hook.run(SLURM_JOB_ID="4711")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Endpoint.told == [("/relight/v1/epilog", f"Bearer {TOKEN}", {"job_id": 4711})]


@pytest.mark.parametrize("trouble", ["nobody listens", "no answer", "refused", "no settings", "bad settings", "no job"])
def test_it_always_ends_well(hook: Installed, endpoint: HTTPServer, trouble: str) -> None:
    """With status 0 and silently: a hook that fails, or lingers, must not hurt the cluster."""
    job = {"SLURM_JOB_ID": "7"}
    # It is connected by the kernel, and nobody ever answers.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        if trouble == "no answer":
            hook.configure(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        elif trouble == "nobody listens":
            hook.configure("http://127.0.0.1:1")
        elif trouble == "refused":
            Endpoint.status = 403
            hook.configure(address(endpoint))
        elif trouble == "bad settings":
            hook.configure(address(endpoint), mood="good")
        elif trouble == "no job":
            hook.configure(address(endpoint))
            job = {}
        done = hook.run(**job)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_says_how_it_is_installed(hook: Installed) -> None:
    """Asked for help, it helps."""
    command = [sys.executable, "-I", str(hook.program), "--help"]
    assert "EpilogSlurmctld=" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_went_wrong_is_told_in_one_line(
    hook: Installed, endpoint: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In syslog, with the job and what the endpoint says."""
    lines: list[str] = []
    monkeypatch.setattr(relight_hook.syslog, "syslog", lambda _level, text: lines.append(text))
    Endpoint.status = 403
    hook.configure(address(endpoint))
    relight_hook._told(hook.program, {"SLURM_JOB_ID": "7"})
    assert lines == ["job 7 not told: 127.0.0.1 answers 403: the token is not that of 'slurmctld'"]


def test_a_name_server_that_does_not_answer_is_not_waited_for(hook: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up cannot be interrupted, so it is done in a thread that nobody waits for."""
    hook.configure("https://controller.example:8642")
    never = threading.Event()
    lines: list[str] = []
    ended: list[int] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: never.wait())
    monkeypatch.setattr(relight_hook, "WITHIN", 0.1)
    monkeypatch.setattr(relight_hook, "__file__", str(hook.program))
    monkeypatch.setattr(relight_hook, "log", lines.append)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(sys, "argv", ["relight-hook"])
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    relight_hook.main()
    assert (ended, lines) == ([0], ["no answer within 0.1 s"])
    never.set()


@pytest.mark.parametrize("job_id", ["", "7; rm -rf /", "-1", "\u0667"])
def test_only_a_job_id_is_told(hook: Installed, job_id: str) -> None:
    """Digits, as slurmctld writes them."""
    with pytest.raises(Problem, match="SLURM_JOB_ID"):
        hook.tell(SLURM_JOB_ID=job_id)


@pytest.mark.parametrize(
    ("url", "insecure", "expected"),
    [
        ("https://ctl.example", False, Target(tls=True, host="ctl.example", port=443, path="/v1/epilog")),
        ("http://127.0.0.1:8642", False, Target(tls=False, host="127.0.0.1", port=8642, path="/v1/epilog")),
        ("http://[::1]:8642/", False, Target(tls=False, host="::1", port=8642, path="/v1/epilog")),
        ("http://ctl.example:80", True, Target(tls=False, host="ctl.example", port=80, path="/v1/epilog")),
    ],
)
def test_where_to(url: str, expected: Target, *, insecure: bool) -> None:
    """TLS, or this very machine, or the operator's word."""
    assert target(url, insecure=insecure) == expected


@pytest.mark.parametrize("url", ["", "ctl.example:8642", "ftp://ctl.example", "http://ctl.example", "http://x:port"])
def test_where_not_to(url: str) -> None:
    """Neither nowhere nor, in the clear, to another machine."""
    with pytest.raises(Problem, match="url"):
        target(url, insecure=False)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_token_that_others_can_read_is_not_used(hook: Installed, mode: int) -> None:
    """It would be theirs as well."""
    hook.token.chmod(mode)
    with pytest.raises(Problem, match="open to others"):
        read_token(hook.token)


def test_settings_that_others_can_write_are_not_believed(hook: Installed) -> None:
    """They say who gets the token."""
    hook.configure("http://127.0.0.1:8642")
    assert read_settings(hook.settings)["url"] == "http://127.0.0.1:8642"
    hook.settings.chmod(0o666)
    with pytest.raises(Problem, match="open to others"):
        read_settings(hook.settings)


@pytest.mark.parametrize("text", ["", "short", "with blank in it"])
def test_what_is_no_token_is_not_sent(hook: Installed, text: str) -> None:
    """A line break in a header would be another header."""
    hook.token.write_text(text)
    with pytest.raises(Problem, match="holds no token"):
        read_token(hook.token)


def test_it_needs_the_standard_library_only() -> None:
    """So that one file is all there is to install."""
    lines = Path(relight_hook.__file__).read_text().splitlines()
    roots = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert roots <= sys.stdlib_module_names
