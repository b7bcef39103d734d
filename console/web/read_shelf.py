"""The ledger as the console holds it: opened when it can be, asked for again while it cannot."""

import asyncio
import logging

from relight.clients.ledger import LedgerError
from relight.clients.ledger_pages import LedgerPages
from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import Settings
from relight.console.context import check_there
from relight.console.errors import Stop
from relight.console.web.errors import Unreachable

_EVERY_S = 2
_LOG = logging.getLogger(__name__)


class Shelf:
    """Where the ledger stands. Whoever looks for it while it is away is told so, and why."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ledger: SqlLedger | None = None
        self._pages: LedgerPages | None = None
        self._why = "the ledger is not open yet"
        self._opening: asyncio.Task[None] | None = None

    @property
    def ledger(self) -> SqlLedger:
        """The ledger.

        Raises:
            Unreachable: it is not open (yet).
        """
        if self._ledger is None:
            raise Unreachable(self._why)
        return self._ledger

    @property
    def pages(self) -> LedgerPages:
        """The same by pages."""
        if self._pages is None:
            raise Unreachable(self._why)
        return self._pages

    async def open(self) -> None:
        """Open it, or go on trying beside."""
        if not await self._try():
            _LOG.warning("%s", self._why)
            self._opening = asyncio.create_task(self._keep_trying(), name="open the ledger")

    async def close(self) -> None:
        """Give it back."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)
            self._ledger = self._pages = None

    async def _try(self) -> bool:
        settings = self._settings
        try:
            check_there(settings)
            ledger = await asyncio.to_thread(SqlLedger.open, settings.ledger_url, settings.ledger_key)
        except Stop as error:
            self._why = error.message.partition("\n")[0]
        except LedgerError as error:
            self._why = str(error)
        else:
            self._ledger, self._pages = ledger, LedgerPages(ledger)
        return self._ledger is not None

    async def _keep_trying(self) -> None:
        while not await self._try():  # noqa: ASYNC110 - nothing tells when a database is back
            await asyncio.sleep(_EVERY_S)
