"""Keys as `ssh-keygen` makes them."""

import subprocess

import pytest

from relight.clients.signing_keys import KeyFileError, public_half, read_key
from relight.domain.rights import public_key


@pytest.fixture
def keygen(tmp_path):
    """Makes a key with the real tool."""

    def make(name="id", *words, passphrase="", kind="ed25519"):
        path = tmp_path / name
        command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "ada@laptop", *words, "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return path

    return make


def test_its_public_half_is_that_of_the_pub_file(keygen):
    """So that what is listed is what signs."""
    path = keygen()
    assert public_half(read_key(path, private_to_owner=True)) == public_key(path.with_suffix(".pub").read_text())


def test_a_passphrase_is_asked_for_where_there_is_one(keygen):
    """Once; a wrong one is said."""
    path, asked = keygen(passphrase="correct horse"), []

    def typed(text):
        asked.append(text)
        return text

    assert read_key(path, passphrase=lambda: typed(b"correct horse"))
    with pytest.raises(KeyFileError, match="the passphrase is wrong"):
        read_key(path, passphrase=lambda: typed(b"battery"))
    assert len(asked) == 2
    with pytest.raises(KeyFileError, match=r"id: needs a passphrase, and there is no terminal"):
        read_key(path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ({"kind": "rsa"}, "a key of type RSA; accepted: Ed25519"),
        ({"kind": "ecdsa"}, "accepted: Ed25519"),
        ({"kind": "rsa", "pem": True}, "in another format"),
    ],
    ids=["rsa", "ecdsa", "pem"],
)
def test_other_kinds_of_key_are_named(keygen, make, said):
    """With what is accepted."""
    words = ("-m", "PEM") if make.pop("pem", False) else ()
    with pytest.raises(KeyFileError, match=said):
        read_key(keygen("key", *words, **make))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_read_is_refused_as_ssh_does(keygen, mode):
    """The site's own may be its group's."""
    path = keygen()
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"mode {mode:04o} lets others read it: chmod 600"):
        read_key(path, private_to_owner=True)
    if mode == 0o640:
        assert read_key(path)


def test_a_damaged_key_is_said(keygen):
    """Cut off in the middle."""
    path = keygen()
    path.write_text(path.read_text()[:200])
    with pytest.raises(KeyFileError, match="the file is damaged or in another format"):
        read_key(path)
