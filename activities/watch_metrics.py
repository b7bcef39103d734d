"""Reads GPU metrics where no agent is."""

from datetime import timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.site import Site, poll

PERIOD = timedelta(seconds=1)


class WatchMetrics:
    """Reads GPU metrics where no agent is."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.WATCH_METRICS.name)
    async def watch_metrics(self, arg: c.WatchInput) -> c.Nothing:
        """Look again and again."""
        until = self._site.clock() + arg.run_for
        generation = 0
        while self._site.clock() < until:
            generation += 1
            await poll(self._site, PERIOD, generation)
        return c.Nothing()
