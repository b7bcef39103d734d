"""The web console: the pages on NiceGUI, over the HTTP API's application. Everything is served from the package."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from relight.config.settings import Settings
from relight.console.context import check_there
from relight.console.errors import Stop
from relight.console.web.pages import audit, goodput, incidents, jobs, nodes, now, scorecard, settings
from relight.console.web.pages.asked import Load
from relight.console.web.pages.deciding import Deciding
from relight.console.web.pages.showing import HERE, Showing, asset

if TYPE_CHECKING:
    from fastapi import FastAPI


BUILT_WITHIN = 30
"""Seconds; a page that reads for longer has long been shown as loading."""


class Page(NamedTuple):
    """One page: where it is, under which entry of the navigation, and what it loads."""

    address: str
    place: str
    load: Load | None
    """None: its kind of showing knows."""
    showing: type[Showing] = Showing


PAGES = (
    Page("/", "/", now.view),
    Page("/incidents", "/incidents", incidents.view),
    Page("/incidents/{name}", "/incidents", None, Deciding),
    Page("/jobs", "/jobs", jobs.view),
    Page("/jobs/{name}", "/jobs", jobs.view_one),
    Page("/nodes", "/nodes", nodes.view),
    Page("/nodes/{name}", "/nodes", nodes.view_one),
    Page("/goodput", "/goodput", goodput.view),
    Page("/scorecard", "/scorecard", scorecard.view),
    Page("/audit", "/audit", audit.view),
    Page("/settings", "/settings", settings.view),
)


def make(settings_: Settings, *, dev: bool = False, config: Path | None = None) -> "FastAPI":
    """The application: API, sign-in and pages. One for a process: NiceGUI keeps its pages in the module.

    Args:
        settings_: in force.
        dev: nobody signs in; for loopback only.
        config: the settings file, for the page that tells where each value comes from.
    """
    from relight.console.web.api_build import build

    return with_pages(build(settings_, dev=dev, config=config))


def with_pages(app: "FastAPI") -> "FastAPI":
    """The application with the pages put on it; its `state.desk` is asked when a page is."""
    from nicegui import app as pages
    from nicegui import ui

    for kind in ("css", "js"):
        pages.add_static_file(local_file=HERE / f"look.{kind}", url_path=asset(kind), max_cache_age=31_536_000)
    for page in PAGES:
        _register(app, page)
    ui.run_with(
        app,
        title="Relight",
        favicon=_FAVICON,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=30.0,
    )
    return app


def serve(settings_: Settings, *, dev: bool = False, config: Path | None = None) -> None:
    """Serve it until it is stopped.

    Raises:
        Stop: the address cannot be listened on.
    """
    import uvicorn

    from relight.console.web.api_build import server_options

    app = make(settings_, dev=dev, config=config)
    options = server_options(settings_)
    check_free(options["host"], options["port"])
    try:
        check_there(settings_)
    except Stop as why:
        click.echo(f"relight: {why.message.partition(chr(10))[0]}; the pages say so until there is one", err=True)
    scheme = "https" if options.get("ssl_certfile") else "http"
    host = f"[{options['host']}]" if ":" in options["host"] else options["host"]
    click.echo(f"The console of cluster {settings_.cluster}: {scheme}://{host}:{options['port']}/  (Ctrl-C ends it)")
    uvicorn.run(app, log_level="warning", **options)


def check_free(host: str, port: int) -> None:
    """Make sure that nobody listens there, before anything is started.

    Raises:
        Stop: somebody does, or it is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            there.bind((host, port))
        except OSError as error:
            raise Stop(f"{host}:{port}: {error.strerror}\nAnother address: --listen HOST:PORT") from error


_FAVICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='#2f6fdb' stroke-width='2.4' "
    "stroke-linecap='round'><path d='M4 12a8 8 0 1 1 2.6 5.9M4 19v-4h4M12 8v4l2.5 1.5'/></svg>"
)


def _register(app: "FastAPI", page: Page) -> None:
    from fastapi import Request
    from nicegui import ui

    async def build(request: Request, name: str = "") -> None:
        await page.showing(app.state.desk, request, page.place, name, page.load).start()

    # NiceGUI reads them when it registers the page; imported above, they are no module's names.
    build.__annotations__ = {"request": Request, "name": str, "return": None}
    ui.page(page.address, response_timeout=BUILT_WITHIN)(build)
