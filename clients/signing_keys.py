"""The key that a decision is signed with: an OpenSSH private key, Ed25519."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from relight.domain.rights import public_key

DEFAULT_KEY = Path("~/.ssh/id_ed25519")
_LARGEST = 64 << 10


class KeyFileError(Exception):
    """A file is no key that decisions can be signed with; the message names it, and says what is accepted."""


def no_passphrase() -> bytes:
    """For where nobody can be asked."""
    raise KeyFileError("needs a passphrase, and there is no terminal to ask for it on")


def read_key(
    path: Path, *, private_to_owner: bool = False, passphrase: Callable[[], bytes] = no_passphrase
) -> Ed25519PrivateKey:
    """The private key in a file.

    Args:
        path: of the file, as `ssh-keygen -t ed25519` makes it.
        private_to_owner: refuse, as ssh does, a file that others than its owner can read.
        passphrase: asks for it, where the key has one.

    Raises:
        KeyFileError: no such key.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        text = file.read(_LARGEST + 1)
    open_to = stat.S_IRWXG | stat.S_IRWXO if private_to_owner else stat.S_IRWXO
    if mode & open_to:
        raise KeyFileError(f"{path}: mode {mode:04o} lets others read it: chmod 600 {path}, or make another key")
    if b"PRIVATE KEY-----" not in text[:100] or len(text) > _LARGEST:
        which = "that is the public half; name the private one" if text.startswith(b"ssh-") else "no private key"
        raise KeyFileError(f"{path}: {which}; accepted: an OpenSSH key made by ssh-keygen -t ed25519")
    return _loaded(path, text, passphrase)


def _loaded(path: Path, text: bytes, passphrase: Callable[[], bytes]) -> Ed25519PrivateKey:
    try:
        try:
            key = load_ssh_private_key(text, None)
        except TypeError:  # this is how the library says that it is encrypted
            key = load_ssh_private_key(text, passphrase())
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None
    except UnsupportedAlgorithm as error:
        raise KeyFileError(f"{path}: {error}; accepted: an OpenSSH key made by ssh-keygen -t ed25519") from error
    except (ValueError, TypeError) as error:
        raise KeyFileError(f"{path}: the passphrase is wrong, or the file is damaged or in another format") from error
    if not isinstance(key, Ed25519PrivateKey):
        kind = type(key).__name__.removesuffix("PrivateKey").lstrip("_")
        raise KeyFileError(f"{path}: a key of type {kind}; accepted: Ed25519 (ssh-keygen -t ed25519)")
    return key


def make_key(path: Path) -> None:
    """Make a key in a file that only its owner can read.

    Raises:
        OSError: it cannot be written, or is there already.
    """
    text = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)


def public_half(key: Ed25519PrivateKey) -> str:
    """As it stands in the list of approvers."""
    return public_key(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())
