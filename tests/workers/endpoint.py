"""The ingest endpoint of a site whose Slurm is simulated, and a client of it."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from relight.activities.ingest import Ingest
from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.config.settings import IngestSettings
from relight.domain.policy import Policy
from relight.domain.reports import agent_token
from relight.workers.ingest import open_key, serving

AT = "2026-11-30T09:00:00Z"


class Endpoint:
    """The endpoint, and a client of it."""

    def __init__(self, tmp_path, session) -> None:
        self.key_file = tmp_path / "ingest.key"
        self.session = session
        self.nudges = 0
        self.slurm = MemorySlurm(lambda: datetime.now(UTC))
        self.ledger = memory_ledger()
        self.url = ""
        site = Site(
            cluster="test",
            slurm=self.slurm,
            nodes=self.slurm,
            ledger=self.ledger,
            logs=LogFiles(),
            kernel_logs=KernelLogFiles(""),
            policy=Policy(),
            clock=lambda: datetime.now(UTC),
            sleep=asyncio.sleep,
            kept=tmp_path,
        )
        self.ingest = Ingest(site, self._nudge)

    def _nudge(self) -> None:
        self.nudges += 1

    def token(self, node: str) -> str:
        return agent_token(open_key(self.key_file), node)

    @asynccontextmanager
    async def open(self, **settings):
        given = {"listen": "127.0.0.1:0", **settings}
        async with serving(IngestSettings(**given), self.key_file, self.ingest) as (host, port):
            self.url = f"{'https' if settings else 'http'}://{host}:{port}"
            yield self

    async def post(self, path, body, *, token=None, **options):
        """What is answered: status, text, headers."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, headers=headers, **options) as answer:
            return answer.status, await answer.text(), answer.headers

    async def report(self, node="n1", *, token=None, **fields):
        """Send a report; the token is the node's own where none is given."""
        body = {"node": node, "boot": "b1", "beat": {"at": AT}, **fields}
        return await self.post("/v1/report", body, token=token or self.token(node))


def fault(number=1, **fields):
    return {"id": f"f{number}", "kind": "disk_full", "at": AT, "text": "/tmp is full", "source": "host", **fields}
