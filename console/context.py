"""What the commands work with: settings, the ledger opened without ever making one, Temporal."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from relight.config.settings import Settings, load
from relight.console.errors import RefusedStop, Stop
from relight.domain.incidents import Incident

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.runtime import Runtime

    from relight.clients.ledger_sql import SqlLedger

T = TypeVar("T")
CONNECT_WITHIN = 5.0
"""Seconds for Temporal to answer at all."""
_REASON = re.compile(r'message: "(?P<why>[^"]+)"')
"""What is worth reading in the Temporal client's connection errors."""
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///(?P<path>[^?]+)")


def now() -> datetime:
    """The time."""
    return datetime.now(UTC)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end."""
    return asyncio.run(work)


def settings_from(config: Path | None) -> Settings:
    """The settings, as every command reads them."""
    return load(config)


def ledger_file(settings: Settings) -> Path | None:
    """The file of an SQLite ledger; None where the ledger is another database."""
    found = _SQLITE.fullmatch(settings.ledger_url)
    return Path(found["path"]) if found else None


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator["SqlLedger"]:
    """The ledger, for reading. Opening would make a missing one: here that is an error."""
    from relight.clients.ledger_sql import SqlLedger

    check_there(settings)
    ledger = await asyncio.to_thread(SqlLedger.open, settings.ledger_url, settings.ledger_key)
    try:
        yield ledger
    finally:
        await asyncio.to_thread(ledger.close)


def check_there(settings: Settings) -> None:
    """Make sure that the ledger and its key exist and may be read.

    Raises:
        Stop: when there is none.
        RefusedStop: when it is another user's.
    """
    for path in (ledger_file(settings), settings.ledger_key):
        if path is None:
            continue
        try:
            there = path.exists()
        except PermissionError:
            there = True
        if not there:
            raise Stop(
                f"no ledger here yet: {path} does not exist\n"
                "Start Relight with `relight worker controller`, or name its settings with --config.",
            )
        if not os.access(path, os.R_OK):
            raise RefusedStop(f"{path}: you ({user_name()}) may not read it\n{_as_owner(path)}")


def _as_owner(path: Path) -> str:
    try:
        return f"It belongs to {path.owner()}: try `sudo -u {path.owner()} relight ...`."
    except (OSError, KeyError):
        return "Run this as the user that Relight runs as."


def user_name() -> str:
    """The name behind this process's user id; variables such as LOGNAME are not asked."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


async def connected(settings: Settings, runtime: "Runtime | None" = None) -> "Client":
    """A client of the settings' Temporal, in the process's own runtime where none is given.

    Raises:
        Stop: when it does not answer.
    """
    from temporalio.client import Client
    from temporalio.contrib.pydantic import pydantic_data_converter

    temporal = settings.temporal
    try:
        async with asyncio.timeout(CONNECT_WITHIN):
            return await Client.connect(
                temporal.address,
                namespace=temporal.namespace,
                data_converter=pydantic_data_converter,
                runtime=runtime,
            )
    except TimeoutError as error:
        why = f"no answer within {CONNECT_WITHIN:g} s"
        raise _unreachable(temporal.address, why) from error
    except (RuntimeError, ValueError) as error:
        said = _REASON.search(str(error))
        raise _unreachable(temporal.address, said["why"] if said else str(error)[:160]) from error


def _unreachable(address: str, why: str) -> Stop:
    return Stop(
        f"Temporal at {address} cannot be reached: {why}\n"
        "Start it (`temporal server start-dev`), or set temporal.address in the settings.",
    )


def web_link(settings: Settings, incident: Incident) -> str:
    """Address of the incident's page in the Temporal web UI; empty where the UI's address is not known."""
    if not settings.web_ui:
        return ""
    namespace, workflow = quote(settings.temporal.namespace, safe=""), quote(incident.workflow_id, safe="")
    return f"{settings.web_ui}/namespaces/{namespace}/workflows/{workflow}/{quote(incident.run_id, safe='')}"
