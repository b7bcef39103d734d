"""A real agent process that is told wrong things, or a site's own."""

import json
import subprocess
from pathlib import Path

import pytest

from relight.domain.reports import FaultKind

from .agents import AgentProcess, Controller, started


def refused(agent: AgentProcess, url: str, *more: str) -> str:
    """What it says when it does not start: one line, exit status 1, no traceback."""
    done = subprocess.run(
        agent.command(url, *more), env=agent.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("relight: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


URL = "http://127.0.0.1:9"
RULE = {"kind": "fabric", "pattern": "ice .*: Device recovery failed"}


def test_a_token_that_others_can_read_is_refused(agent: AgentProcess) -> None:
    """Whoever has it can speak for this node."""
    agent.token.chmod(0o644)
    assert "chmod 0600" in refused(agent, URL)


def test_a_missing_token_or_none_is_refused(agent: AgentProcess) -> None:
    """Each with its reason."""
    agent.token.write_text("two words\n")
    assert "holds no token" in refused(agent, URL)
    agent.token.unlink()
    assert "No such file" in refused(agent, URL)


@pytest.mark.parametrize(
    "url", ["controller:8443", "ftp://x", "https://", "https://user@host", "http://[::1", "http://x:y"]
)
def test_a_bad_address_is_refused(agent: AgentProcess, url: str) -> None:
    """With what was given."""
    assert url in refused(agent, url)


def test_a_token_is_not_sent_unencrypted_to_another_machine(agent: AgentProcess) -> None:
    """Unless the site says so."""
    assert "unencrypted" in refused(agent, "http://controller.example:8080")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("beat: 0", "seconds from"),
        ("beat: yes", "seconds from"),
        ("colour: red", "no setting 'colour'"),
        ("mounts: perhaps", "true or false"),
        ("paths: [tmp]", "absolute paths"),
        ("rules: [{kind: magic, pattern: x}]", "kinds are xid"),
        ("rules: [{kind: fabric, pattern: '('}]", "no regular expression"),
        ("a: b: c", "not YAML"),
        ("- a", "key: value"),
    ],
)
def test_a_bad_settings_file_is_refused(agent: AgentProcess, content: str, says: str) -> None:
    """With the key, and what is accepted."""
    agent.config.write_text(content)
    assert says in refused(agent, URL)


def test_a_bad_node_name_or_ca_is_refused(agent: AgentProcess, tmp_path: Path) -> None:
    """Before anything is sent."""
    assert "no node name" in refused(agent, URL, "--node", "n1; reboot")
    assert "No such file" in refused(agent, "https://127.0.0.1:9", "--ca", str(tmp_path / "none.pem"))


def test_rules_of_the_sites_own_are_used(agent: AgentProcess, controller: Controller) -> None:
    """Knowledge can be added without code."""
    agent.config.write_text(f"{agent.config.read_text()}rules: {json.dumps([RULE])}\n")
    started(agent, controller)
    agent.kernel("ice 0000:17:00.0: Device recovery failed")
    assert controller.wait_for_fault(kind=FaultKind.FABRIC).source == "kernel_log"
