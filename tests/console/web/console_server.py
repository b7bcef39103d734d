"""The console as `relight console --dev` serves it, but for where decisions go: into a file, a line each.

Usage: console_server.py SETTINGS PORT DECISIONS
"""

import asyncio
import sys
from pathlib import Path

import uvicorn

from relight.config.settings import load
from relight.console.web.app import make
from relight.console.web.decisions import Decided, DecisionAsk
from relight.console.web.errors import Overtaken
from relight.console.web.roles import Identity


class InFile:
    """Takes decisions, and needs a moment for it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def decide(self, who: Identity, name: str, ask: DecisionAsk) -> Decided:
        await asyncio.sleep(0.4)
        with self.path.open("a") as file:
            file.write(f"{who.name} {name} {ask.approve} {ask.digest} {ask.reason}\n")
        if ask.reason == "too late":
            raise Overtaken("not counted: the incident has ended meanwhile")
        return Decided(counted=True, answer="counted: 1 of 1 approval")


if __name__ == "__main__":
    config, port, file = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    app = make(load(config), dev=True, config=config)
    app.state.desk = app.state.desk._replace(decisions=InFile(file))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
