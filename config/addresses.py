"""Addresses as operators write them."""

from typing import Annotated

from pydantic import AfterValidator


def _is_a_root(value: str) -> str:
    scheme, _, rest = value.partition("://")
    if value and (scheme not in {"http", "https"} or not rest or "@" in rest or "?" in rest):
        raise ValueError("must be like https://server.example:9428, without user, password or query")
    return value


HttpRoot = Annotated[str, AfterValidator(_is_a_root)]
"""Where an HTTP service is; empty where there is none. What proves who asks stands in files, not here."""
