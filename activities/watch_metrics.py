"""Reads GPU metrics where no agent is: what DCGM's exporters show, as a Prometheus server keeps it.

No state is kept in the ledger: the store remembers, and the same samples always tell the same faults, under the same
ids. So a look reaches back further than to the one before it, and what was told already adds nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.ingest import Ingest, Told
from relight.activities.site import Site, beating, poll
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.metrics import GpuMetrics, MetricsError, Shown
from relight.clients.slurm import SlurmError
from relight.domain.detectors import within
from relight.domain.gpu_metrics import TOGETHER, NodeNames, faults, some, too_little
from relight.domain.reports import NodeFault

NAME = "metrics"
PERIOD = timedelta(seconds=5)
READ_SHARE = 10
"""A pause is at least ten times as long as the look took: Relight never keeps the store busy."""
LONGEST_PAUSE = timedelta(seconds=60)
LOOK_WITHIN = timedelta(seconds=60)
"""A look that takes longer is given up."""
OVERLAP = timedelta(seconds=90)
"""A sample can be seen 10 s after its time, and two or three of them make a fault: each look begins so long before the
end of the one before."""
REACH = timedelta(minutes=5)
"""What is older at the first look, or after a time of blindness, is old news: nothing follows from it."""
MISSED_FOR = timedelta(hours=1)
"""A node whose metrics have been gone for longer is no longer expected to show any."""
_Key = tuple[str, str, str]


class WatchMetrics:
    """Reads GPU metrics where no agent is.

    Args:
        site: the cluster; without `metrics` there is nothing to do.
        ingest: writes faults down.
        period: from one look to the next.
        trusted: whether the site says that no user's program can pass for an exporter.
    """

    def __init__(self, site: Site, ingest: Ingest, *, period: timedelta = PERIOD, trusted: bool = False) -> None:
        self._site = site
        self._ingest = ingest
        self._period = period
        self._source = "dcgm" if trusted else "exporter"
        self._seen_until: datetime | None = None
        """By the store's clock."""
        self._told: dict[_Key, datetime] = {}
        """Node, GPU and text of what was told lately. Not by id: of two servers behind one address, each has its own
        times for the same."""
        self._expected: dict[str, datetime] = {}
        """Nodes with metrics, by when they were last fresh."""
        self._remarked = ""

    @activity.defn(name=c.WATCH_METRICS.name)
    async def watch_metrics(self, arg: c.WatchInput) -> c.Nothing:
        """Look again and again."""
        until = self._site.clock() + arg.run_for
        # A look or a pause may be longer than Temporal waits for a beat.
        async with beating():
            generation = 0
            while self._site.clock() < until:
                generation += 1
                pause = await self._timed(self._site.metrics) if self._site.metrics else self._period
                await poll(self._site, pause, generation)
        return c.Nothing()

    async def _timed(self, metrics: GpuMetrics) -> timedelta:
        """Look once, say how it went, and return how long to wait."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(LOOK_WITHIN.total_seconds()):
                problem = await self._look(metrics)
        except (MetricsError, SlurmError, LedgerUnavailableError) as error:
            problem = str(error)
        except TimeoutError:
            problem = f"a look takes longer than {LOOK_WITHIN.total_seconds():.0f} s"
        took = timedelta(seconds=loop.time() - began)
        pause = max(self._period, min(READ_SHARE * took, LONGEST_PAUSE))
        if problem:
            self._site.detectors.blind(NAME, problem, within(pause))
        else:
            self._site.detectors.saw(NAME, within(pause + took))
        return pause

    async def _look(self, metrics: GpuMetrics) -> str:
        """Tell what is new. Returns why too little is seen; empty when enough is."""
        names = NodeNames(await self._ingest.nodes())
        shown = await metrics.shown()
        found = {label: node for label in shown.nodes if (node := names.find(label))}
        fresh = {label: node for label, node in found.items() if shown.at - shown.nodes[label] <= TOGETHER}
        if fresh:
            since = max((self._seen_until or shown.at - REACH) - OVERLAP, shown.at - REACH)
            series = await metrics.changes(fresh.keys(), since, shown.at)
            await self._tell([(fresh[one.node], fault) for one in series for fault in faults(one) if fault.at > since])
            self._seen_until = shown.at
        self._expected |= dict.fromkeys(fresh.values(), shown.at)
        self._expected = {node: at for node, at in self._expected.items() if shown.at - at <= MISSED_FOR}
        self._remark(shown, found, fresh)
        return too_little(self._expected, frozenset(fresh.values()))

    async def _tell(self, news: list[tuple[str, NodeFault]]) -> None:
        """Write down what was not told yet; what cannot be written down now is told by the next look."""
        told = dict(self._told)
        by_node: defaultdict[str, list[NodeFault]] = defaultdict(list)
        for node, fault in sorted(news, key=lambda each: each[1].at):
            key = (node, fault.gpu, fault.text)
            if key not in told or fault.at - told[key] > TOGETHER:
                by_node[node].append(fault.model_copy(update={"source": self._source}))
                told[key] = fault.at
        await self._ingest.keep([Told(node, tuple(each)) for node, each in by_node.items()])
        newest = max(told.values(), default=None)
        self._told = {key: at for key, at in told.items() if newest and newest - at <= REACH}

    def _remark(self, shown: Shown, found: Mapping[str, str], fresh: Mapping[str, str]) -> None:
        """Log what is left out, where that is not what was left out before."""
        left_out = (
            ("Slurm has no such nodes", shown.nodes.keys() - found.keys()),
            ("two exporters claim to be these nodes, one may lie", shown.twice),
            ("without fresh GPU metrics", self._expected.keys() - set(fresh.values())),
        )
        remark = "; ".join(f"{why}: {some(names)}" for why, names in left_out if names)
        if remark != self._remarked:
            activity.logger.warning("GPU metrics left out: %s", remark or "none any more")
        self._remarked = remark
