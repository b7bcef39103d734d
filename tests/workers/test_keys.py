"""The site's own key: made once, private, and a key of version 0.1 replaced where it lies."""

import logging

import pytest

from relight.clients.signing_keys import public_half, read_key
from relight.config.settings import ConfigError, Settings
from relight.domain.rights import Right, site_approver
from relight.workers.keys import approvers, make_approval_key

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOOpHHRjjPzerSRq6uUgnLAwE2FMV/MCd0VwGky6dQWo"


def test_a_site_that_lists_nobody_has_a_key_of_its_own(tmp_path):
    """Made on the first start, readable by its owner alone; the same on the next."""
    settings = Settings(data=tmp_path / "new")
    (first,) = approvers(settings)
    assert settings.approval_key.stat().st_mode & 0o777 == 0o600
    assert first == site_approver(public_half(read_key(settings.approval_key)))
    assert approvers(settings) == (first,)


def test_where_people_are_listed_the_sites_key_counts_for_nothing(tmp_path):
    """It is not even made."""
    listed = {"approvers": [{"name": "ada", "key": f"{KEY} ada@laptop", "may": ["restart"]}]}
    settings = Settings(data=tmp_path / "new", approvals=listed)
    (ada,) = approvers(settings)
    assert (ada.name, ada.key, ada.may, ada.site) == ("ada", KEY, (Right.RESTART,), False)
    assert not settings.approval_key.exists()


def test_a_key_of_version_0_1_is_replaced(tmp_path, caplog):
    """It can sign nothing any more; who could read it can read the new one. Said in the log."""
    path = tmp_path / "approval.key"
    path.write_text("ab" * 32)
    path.chmod(0o640)
    with caplog.at_level(logging.WARNING):
        make_approval_key(path)
    assert "held a key of version 0.1" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o640
    assert public_half(read_key(path)).startswith("ssh-ed25519 ")


@pytest.mark.parametrize("content", [b"", b"hello", b"AB" * 32, bytes(range(256)) * 400])
def test_anything_else_there_is_an_error_that_names_it(tmp_path, content):
    """It may be somebody's: it is not overwritten."""
    settings = Settings(data=tmp_path)
    settings.approval_key.write_bytes(content)
    settings.approval_key.chmod(0o600)
    with pytest.raises(ConfigError, match=r"approval\.key: no private key; accepted"):
        approvers(settings)
    assert settings.approval_key.read_bytes() == content
