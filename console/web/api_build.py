"""Puts the console's server together: the ledger, who may come in, the API, sign-in, and the gate before all of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from relight.clients.console_tokens import Tokens
from relight.config.settings import Settings
from relight.console import context
from relight.console.errors import Stop
from relight.console.web import api, api_problems, sign_in, slack
from relight.console.web.decisions import Decisions
from relight.console.web.decisions_judge import Judge
from relight.console.web.desk import Desk
from relight.console.web.door import Door
from relight.console.web.gate import Gate
from relight.console.web.limits import Limit
from relight.console.web.read import Reading
from relight.console.web.read_shelf import Shelf
from relight.console.web.sign_in_oidc import Oidc

__all__ = ["Desk", "build", "server_options"]


def build(
    settings: Settings,
    *,
    dev: bool = False,
    config: Path | None = None,
    now: Callable[[], datetime] = context.now,
    oidc: Oidc | None = None,
) -> FastAPI:
    """The application without pages; `app.state.desk` is its desk.

    Args:
        settings: in force.
        dev: nobody has to sign in; on loopback only.
        config: the settings file, to tell where each setting comes from.
        now: the time.
        oidc: instead of the one that the settings name, in tests.

    Raises:
        Stop: `dev` where others can connect.
    """
    console = settings.console
    if dev and not console.loopback:
        raise Stop(
            f"--dev lets everybody in, and console.listen is {console.listen}\n"
            "It works on loopback only: --listen 127.0.0.1:8470"
        )
    if oidc is None and console.oidc.issuer:
        oidc = Oidc(console.oidc, f"{console.root}/sign-in/callback", now)
    shelf = Shelf(settings)
    judge = Judge(settings)
    desk = Desk(
        settings=settings,
        reading=Reading(shelf, settings, judge, now=now, config=config),
        door=Door(
            console,
            Tokens(settings.console_tokens),
            failures=Limit(console.sign_ins_per_minute, time.monotonic),
            now=now,
            dev=dev,
        ),
        decisions=Decisions(settings, shelf, judge, limit=Limit(console.decisions_per_minute, time.monotonic), now=now),
        oidc=oidc,
        dev=dev,
        now=now,
    )

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        await shelf.open()
        warming = asyncio.create_task(desk.reading.warm(), name="read ahead")
        try:
            yield
        finally:
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)
            await desk.reading.feed.close()
            await shelf.close()

    app = FastAPI(
        title="Relight",
        version=version("relight"),
        description="What Relight sees, decided and did on one cluster; and decisions on what it proposes.",
        # The documentation pages of FastAPI load their scripts from other sites.
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{api.ROOT}/openapi.json",
        lifespan=life,
        default_response_class=api_problems.SafeJson,
        separate_input_output_schemas=False,
    )
    app.state.desk = desk
    app.state.clicks = slack.Clicks(settings.notify.slack)
    api_problems.install(app)
    app.include_router(api.routes)
    app.include_router(sign_in.routes)
    app.include_router(slack.routes)
    app.add_api_route("/healthz", _healthy, include_in_schema=False)
    app.add_middleware(Gate, settings=console, door=lambda: desk.door)
    return app


async def _healthy() -> Response:
    """The process answers. Whether the ledger does stands on the pages: a restart of the console would not help it."""
    return api_problems.SafeJson({"ok": True})


def server_options(settings: Settings) -> dict[str, Any]:
    """What uvicorn is run with."""
    console = settings.console
    host, port = console.address
    tls = {"ssl_certfile": console.tls_cert, "ssl_keyfile": console.tls_key} if console.tls_cert else {}
    return {
        "host": host,
        "port": port,
        "proxy_headers": bool(console.proxies),
        "forwarded_allow_ips": list(console.proxies),
        "server_header": False,
        # Addresses carry what a provider sends people back with.
        "access_log": False,
        "timeout_graceful_shutdown": 5,
        **tls,
    }
