"""Notices nodes whose agents have fallen silent."""

from datetime import timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.ingest import Ingest
from relight.activities.site import Site, poll

PERIOD = timedelta(seconds=1)


class WatchAgents:
    """Notices nodes whose agents have fallen silent."""

    def __init__(self, site: Site, ingest: Ingest) -> None:
        """Bind to a cluster and to what its agents tell."""
        self._site = site
        self._ingest = ingest

    @activity.defn(name=c.WATCH_AGENTS.name)
    async def watch_agents(self, arg: c.WatchInput) -> c.Nothing:
        """Look again and again."""
        until = self._site.clock() + arg.run_for
        generation = 0
        while self._site.clock() < until:
            generation += 1
            await poll(self._site, PERIOD, generation)
        return c.Nothing()
