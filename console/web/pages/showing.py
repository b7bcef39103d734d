"""One page in one browser: read, shown, and kept true while it is open."""

import asyncio
import hashlib
from collections.abc import Awaitable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relight.console.web.look import Html, tag
from relight.console.web.look_frame import Frame, top
from relight.console.web.look_parts import iso
from relight.console.web.pages import states
from relight.console.web.pages.asked import Asked, Load, View

if TYPE_CHECKING:
    from fastapi import Request
    from nicegui import ui

    from relight.console.web.api_build import Desk
    from relight.console.web.roles import Identity

LOOK_EVERY = 0.2
"""Seconds between two looks at whether anything was written."""
LOAD_AT_MOST = timedelta(seconds=0.5)
"""A page is read anew no more often than this, and at the latest after `LOAD_AT_LEAST`: a detector goes overdue without
a word in the ledger."""
LOAD_AT_LEAST = timedelta(seconds=10)
SHOWN_WITHIN = 1.5
"""Seconds after which a page that is not read yet shows that it loads."""
_MOST_BLOCKS = 8
HERE = Path(__file__).parent.parent


@cache
def asset(kind: str) -> str:
    """A file's address, which changes with the file, so that browsers may keep it."""
    digest = hashlib.sha256((HERE / f"look.{kind}").read_bytes()).hexdigest()[:10]
    return f"/static/look-{digest}.{kind}"


class Showing:
    """One page in one browser, kept true while it is open."""

    def __init__(self, desk: "Desk", request: "Request", place: str, name: str, load: Load | None) -> None:
        from relight.console.web.sign_in import identity_of

        self.desk, self.name, self.place, self._load = desk, name, place, load
        self.who: Identity = identity_of(request)
        self.query = dict(request.query_params)
        self._told: list[Html] = []
        self._blocks: list[ui.html] = []
        self._read_at = 0.0
        self._seen = -1

    async def start(self) -> None:
        """Build the page: with what it shows, or, where that takes too long, saying that it loads."""
        from nicegui import ui

        ui.add_head_html(
            f'<link rel="stylesheet" href="{asset("css")}"><script src="{asset("js")}"></script>'
            '<meta name="robots" content="noindex"><meta name="theme-color" content="#0e1318">'
        )
        self._feed = _watching(self.desk)
        self._frame = ui.html(top(await self._frame_now()))
        with ui.element("div").classes("main").props("id=main tabindex=-1"):
            self._clock = ui.html()
            self._blocks = [ui.html() for _ in range(_MOST_BLOCKS)]
            self.extra()
        reading = asyncio.ensure_future(self._read())
        await asyncio.wait({reading}, timeout=SHOWN_WITHIN)
        if reading.done():
            self._show(reading.result())
        else:
            self._blocks[0].set_content(states.LOADING)
        ui.timer(LOOK_EVERY, lambda: self._keep(reading))

    def extra(self) -> None:
        """What a kind of page adds beside its blocks."""

    async def load(self, asked: Asked) -> View:
        """Read what is shown."""
        if self._load is None:
            raise NotImplementedError
        return await self._load(asked)

    async def _frame_now(self) -> Frame:
        waiting: tuple[Any, ...] = ()
        try:
            waiting = await self.desk.reading.waiting(self.who)
        except Exception:  # noqa: BLE001 - the frame stands even where nothing can be read
            waiting = ()
        shown = self.desk.settings
        return Frame(
            cluster=shown.cluster,
            place=self.place,
            person=self.who.name,
            role=str(self.who.role),
            dev=self.desk.dev,
            waiting=len(waiting),
            csrf="" if self.desk.dev else self.who.csrf,
        )

    async def _read(self) -> View:
        self._seen, self._read_at = self._feed.version, asyncio.get_running_loop().time()
        try:
            return await self.load(Asked(self.desk, self.who, self.query, self.name, self.desk.now()))
        except Exception as error:  # noqa: BLE001 - the page says so; what it is is logged
            states.log(error)
            return states.failed(error)

    def _show(self, view: View) -> None:
        from nicegui import ui

        ui.page_title(f"{view.title} · Relight")
        at = iso(self.desk.now())
        self._clock.set_content(tag("span", hidden=True, data_now=at))
        for number, block in enumerate(self._blocks):
            told = view.blocks[number] if number < len(view.blocks) else Html()
            if number >= len(self._told) or self._told[number] != told:
                block.set_content(told)
        self._told = [*view.blocks, *([Html()] * (_MOST_BLOCKS - len(view.blocks)))]

    async def _keep(self, first: "asyncio.Future[View]") -> None:
        if not self._told:
            if first.done():
                self._show(first.result())
            return
        since = asyncio.get_running_loop().time() - self._read_at
        fresh = self._feed.version == self._seen
        if since < (LOAD_AT_LEAST if fresh else LOAD_AT_MOST).total_seconds():
            return
        if not await self._still_signed_in():
            return
        self._show(await self._read())
        self._frame.set_content(top(await self._frame_now()))

    async def _still_signed_in(self) -> bool:
        from nicegui import ui

        still = self.desk.door.still(self.who)
        if isinstance(still, Awaitable):
            still = await still
        if not still:
            ui.navigate.to("/sign-in")
        return bool(still)

    @property
    def shown(self) -> bool:
        """Whether it has been shown once."""
        return bool(self._told)

    async def again(self) -> None:
        """Read and show now."""
        self._show(await self._read())


class _Feed:
    """How often the ledger has changed since the console started; one reader for all pages."""

    def __init__(self) -> None:
        self.version = 0

    async def follow(self, desk: "Desk") -> None:
        """Count changes for ever."""
        async for _ in desk.reading.feed.subscribe():
            self.version += 1


_feeds: dict[int, _Feed] = {}


def _watching(desk: "Desk") -> _Feed:
    from nicegui import background_tasks

    feed = _feeds.get(id(desk))
    if feed is None:
        feed = _feeds[id(desk)] = _Feed()
        background_tasks.create(feed.follow(desk), name="changes of the ledger")
    return feed
