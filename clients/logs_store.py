"""The log source that a site's settings name, and how an attempt's outputs are named there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from relight.clients.logs import Asked, Chunk, Cursor, LogError, Logs, LogUnreadableError
from relight.config.log_store import LogStoreSettings, StoreKind
from relight.config.settings import ConfigError
from relight.domain.log_labels import is_reference, references
from relight.domain.slurm import JobRecord

if TYPE_CHECKING:
    from relight.clients.logs_http import HttpLogs


class StoreAndFiles:
    """Implements `Logs`: references are read in a store, paths (a job's own progress file) as files."""

    def __init__(self, store: Logs, files: Logs) -> None:
        self._store, self._files = store, files

    def _where(self, path: str) -> Logs:
        return self._store if is_reference(path) else self._files

    async def read_new(self, path: str, cursor: Cursor | None, *, max_bytes: int = 4 << 20) -> Chunk:
        """Lines added since `cursor`."""
        return await self._where(path).read_new(path, cursor, max_bytes=max_bytes)

    async def read_many(self, asked: Sequence[Asked]) -> list[Chunk | LogError | None]:
        """What is new in each, in their order; the files do not wait for the store."""
        stored = [each for each in asked if is_reference(each.path)]
        others = [each for each in asked if not is_reference(each.path)]
        in_store, in_files = await asyncio.gather(self._store.read_many(stored), self._files.read_many(others))
        of_store, of_files = iter(in_store), iter(in_files)
        return [next(of_store if is_reference(each.path) else of_files) for each in asked]

    def place(self, path: str) -> str:
        """What this log becomes unreadable with."""
        return self._where(path).place(path)

    async def ahead(self, path: str, cursor: Cursor) -> int:
        """Bytes that a follower at this cursor has not read."""
        return await self._where(path).ahead(path, cursor)

    async def size(self, path: str) -> int:
        """Size in bytes."""
        return await self._where(path).size(path)

    def open(self, path: str, offset: int = 0) -> BinaryIO:
        """Open for reading from `offset` on. Blocks: for a thread. Raises OSError."""
        return self._where(path).open(path, offset)

    async def keep(self, path: str, folder: str, *, head: int = 1 << 20, tail: int = 16 << 20) -> str:
        """Copy the first `head` and last `tail` bytes into `folder`; returns the copy's path."""
        return await self._where(path).keep(path, folder, head=head, tail=tail)


@asynccontextmanager
async def open_logs(settings: LogStoreSettings, files: Logs) -> AsyncIterator[Logs]:
    """The site's log source; a store is reached when it is first read.

    Raises:
        ConfigError: the store's secret or certificates cannot be read, or its client is not installed.
    """
    if settings.kind is StoreKind.FILES:
        yield files
        return
    async with AsyncExitStack() as stack:
        try:
            store = await stack.enter_async_context(_store(settings))
        except LogUnreadableError as error:
            raise ConfigError(f"logs.store.token_file: {error}") from error
        except OSError as error:
            raise ConfigError(f"logs.store.ca {settings.ca}: {error.strerror or error}") from error
        yield StoreAndFiles(store, files)


def naming(settings: LogStoreSettings, cluster: str) -> Callable[[JobRecord], tuple[str, ...]]:
    """Tells under which names a job's outputs are in the site's store; where there is none, they are files."""
    if settings.kind is StoreKind.FILES:
        return lambda _: ()
    templates = {**settings.labels, **settings.fields}
    return lambda record: references(templates, cluster, record)


def _store(settings: LogStoreSettings) -> "HttpLogs":
    try:
        # Only a site with a store needs aiohttp installed.
        from relight.clients.http_store import Endpoint  # noqa: PLC0415
        from relight.clients.logs_http import Reading  # noqa: PLC0415
        from relight.clients.logs_loki import Loki  # noqa: PLC0415
        from relight.clients.logs_victorialogs import VictoriaLogs  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"logs.store needs {error.name}: pip install 'relight[http]'") from error
    secret, ca = (Path(name).expanduser() if name else None for name in (settings.token_file, settings.ca))
    endpoint = Endpoint(settings.url, secret, settings.user, ca)
    reading = Reading(settings.late, settings.reach, settings.page)
    if settings.kind is StoreKind.LOKI:
        return Loki(endpoint, settings.labels, tenant=settings.tenant, reading=reading)
    tenant = settings.tenant or "0:0"
    return VictoriaLogs(endpoint, settings.labels, fields=settings.fields, tenant=tenant, reading=reading)
