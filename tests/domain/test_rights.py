"""What needs whose approval, and which keys are keys."""

import contextlib
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relight.domain.plan import Plan, Restart
from relight.domain.rights import (
    APPROVERS,
    WEIGHTS,
    Approver,
    Right,
    Weight,
    fingerprint,
    key_bytes,
    public_key,
    rights_of,
)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOOpHHRjjPzerSRq6uUgnLAwE2FMV/MCd0VwGky6dQWo"


def test_every_action_has_a_weight_and_the_heavy_ones_need_two():
    """None is left out by accident."""
    assert set(WEIGHTS) == set(APPROVERS) == set(Right)
    assert {right for right in Right if APPROVERS[right] > 1} == {r for r in Right if WEIGHTS[r] is Weight.HEAVY}


def test_exclusions_belong_to_the_restart(attempt):
    """They concern that job's retry alone; so does a release."""
    plan = Plan(attempt=attempt().key, restart=Restart.ADOPT, release=True, exclude=("n2",), reason="x")
    assert rights_of(plan) == (Right.RESTART,)
    assert rights_of(plan.model_copy(update={"restart": Restart.NONE, "cancel": True})) == (Right.STOP,)


@pytest.mark.parametrize("text", [KEY, f"{KEY} ada@example", f"  {KEY}   a comment of words \n"])
def test_a_key_as_it_stands_in_its_file(text):
    """The comment is dropped: it proves nothing."""
    assert public_key(text) == KEY
    assert len(key_bytes(KEY)) == 32


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "type 'none'; accepted: ssh-ed25519"),
        ("ssh-rsa AAAAB3NzaC1yc2E= x", "type 'ssh-rsa'; accepted: ssh-ed25519 (ssh-keygen -t ed25519)"),
        ("sk-ssh-ed25519@openssh.com AAAA", "type 'sk-ssh-ed25519@openssh.com'"),
        ("ssh-ed25519", "is no complete ssh-ed25519 key"),
        ("ssh-ed25519 AAAA", "is no complete ssh-ed25519 key"),
        (KEY[:-4], "is no complete ssh-ed25519 key"),
        (KEY.replace("AAAAC3", "AAAAD3"), "is no complete ssh-ed25519 key"),
        ("ssh-ed25519 ééé", "is no complete ssh-ed25519 key"),
        (f"{KEY}\n{KEY}", "must be one line"),
        (f"-----BEGIN OPENSSH {'PRIVATE'} KEY-----", "the public key"),
        ("x" * 60_000, "type 'xxxx"),
    ],
)
def test_what_is_no_key(text, said):
    """Said with what is accepted, in little space."""
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        public_key(text)
    assert len(str(refused.value)) < 300


@given(st.text(max_size=200))
def test_garbage_is_refused_with_an_error_and_nothing_else(text):
    """Whatever stands there."""
    with contextlib.suppress(ValueError):
        assert public_key(text) == text.strip()


def test_the_fingerprint_is_the_one_that_people_know(tmp_path):
    """As `ssh-keygen -l` has it."""
    (tmp_path / "key.pub").write_text(KEY + "\n")
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, text=True, check=True)
    assert fingerprint(KEY) in shown.stdout


@pytest.mark.parametrize("name", ["", "ada lovelace", "-rf", "a\nb", "x" * 65, "ä"])
def test_names_are_user_names(name):
    """Nothing that reads like anything else in a terminal or a sentence."""
    with pytest.raises(ValidationError, match="must be a user name"):
        Approver(name=name, key=KEY)
