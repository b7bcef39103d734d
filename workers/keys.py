"""Secrets that a controller worker makes for itself on first start."""

import logging
import os
import re
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from relight.clients.signing_keys import KeyFileError, public_half, read_key
from relight.config.settings import ConfigError, Settings
from relight.domain.rights import Approver, site_approver

logger = logging.getLogger(__name__)
_OLD_KEY = re.compile(rb"[0-9a-f]{64}\s*")
"""What version 0.1 signed decisions with."""


def make_key(path: Path) -> None:
    """Make one of the site's keys where there is none; only its owner can read it."""
    if not path.exists():
        _write_new(path, secrets.token_hex(32).encode())


def _write_new(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_approval_key(path: Path) -> None:
    """Make the key with which a site that lists nobody signs decisions, where there is none.

    A key of version 0.1 is replaced, under the owner, group and mode that its file has: it can sign nothing any more.
    """
    fresh = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    if not path.exists():
        _write_new(path, fresh)
    elif _OLD_KEY.fullmatch(path.read_bytes()):
        path.write_bytes(fresh)
        logger.warning("%s held a key of version 0.1 and has a new one now: decisions are signed by Ed25519", path)


def approvers(settings: Settings) -> tuple[Approver, ...]:
    """Whose signatures count: the people listed, or else the site's own key, which is made where there is none.

    Raises:
        ConfigError: when the site's key is needed and its file is no such key.
    """
    if settings.approvals.approvers:
        return settings.approvals.people
    make_approval_key(settings.approval_key)
    try:
        return (site_approver(public_half(read_key(settings.approval_key))),)
    except KeyFileError as error:
        raise ConfigError(f"{error}\nRemove it, and the worker makes a new one on its next start.") from error
