"""Asks the console's application as browsers and programs do, without a socket; the application is the real one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI

from relight.clients.console_tokens import Tokens
from relight.clients.ledger_sql import SqlLedger
from relight.config.console import Role
from relight.config.settings import Settings
from relight.console.web.api_build import build

ROOT = "http://127.0.0.1:8470"
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Clock:
    """A time that moves when it is told to."""

    def __init__(self) -> None:
        self.time = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.time

    def move(self, **parts: float) -> None:
        self.time += timedelta(**parts)


class Site:
    """A site with a console."""

    def __init__(self, settings: Settings, **build_with: Any) -> None:
        self.settings = settings
        self.clock = Clock()
        self.app: FastAPI = build(settings, **{"now": self.clock, **build_with})
        self.tokens = Tokens(settings.console_tokens)

    def token(self, name: str, role: str, **more: Any) -> str:
        return self.tokens.add(name, Role(role), self.clock(), **more)

    def client(self, *, bearer: str = "", **headers: str | bytes) -> httpx2.AsyncClient:
        """A browser, or with a token a program."""
        auth = {"authorization": f"Bearer {bearer}"} if bearer else {}
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url=ROOT, headers={**auth, **headers})

    def program(self, name: str, role: str) -> httpx2.AsyncClient:
        return self.client(bearer=self.token(name, role))

    async def signed_in(self, name: str, role: str) -> httpx2.AsyncClient:
        """A browser with a session."""
        browser = self.client(accept="text/html")
        answer = await browser.post("/sign-in", data={"token": self.token(name, role), "next": "/"})
        assert answer.status_code == 303, answer.text
        return browser


@asynccontextmanager
async def site(settings: Settings, **build_with: Any) -> AsyncIterator[Site]:
    made = Site(settings, **build_with)
    async with made.app.router.lifespan_context(made.app):
        yield made


def settings_in(data: Path, **more: Any) -> Settings:
    given = {"data": str(data), "temporal": {"address": "127.0.0.1:1", "ui": "http://ui.example:8233"}}
    return Settings.model_validate({**given, **more})


def empty_ledger(folder: Path) -> Path:
    """A data folder with a ledger in which nothing has happened."""
    folder.chmod(0o700)
    SqlLedger.open(f"sqlite:///{folder / 'ledger.sqlite'}", folder / "ledger.key").close()
    return folder
