"""Secrets that a controller worker makes for itself on first start."""

import os
import secrets
from pathlib import Path


def make_key(path: Path) -> None:
    """Make one of the site's keys where there is none; only its owner can read it."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
