"""What every value of the domain shares."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from posixpath import join, normpath
from typing import Any

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """An immutable value that travels between processes.

    Unknown fields are ignored: an older worker reads what a newer one wrote (values only ever grow).
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


def canonical_json(value: Mapping[str, Any]) -> str:
    """The one JSON text of a value: sorted keys, no spaces, so equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def short_hash(text: str, length: int = 8) -> str:
    """The first `length` hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def compact_time(at: datetime) -> str:
    """A time in UTC as it stands in ids, for example `20261130T092712Z`."""
    return at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def clip(text: str, limit: int) -> str:
    """The text, cut to `limit` characters with an ellipsis where it was longer."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def few(names: Sequence[str], limit: int = 8) -> str:
    """`a, b and 3 more`: the first few of the names, and how many others there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def below(folder: str, path: str) -> str | None:
    """The path, taken from that folder where it is relative; None where it leads out of it.

    What a user's text names is read with our rights, which may be wider than the user's.
    """
    root = normpath(folder)
    full = normpath(join(root, path))
    return full if "\0" not in path and full.startswith(root.rstrip("/") + "/") else None
