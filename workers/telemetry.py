"""Watching the watchers: beside the activities, a loop that writes down what each detector last saw, and shows it.

The page that Prometheus scrapes is the Temporal SDK's own (its runtime serves it), Temporal's metrics included:

    relight_detector_last_success_timestamp_seconds{cluster,detector}
    relight_detector_overdue{cluster,detector}                1 while it is blind or overdue
    relight_worker_last_sign_timestamp_seconds{cluster}       when the ledger was last written
    relight_incidents_open, relight_outbox_undelivered, relight_attempts_unreadable {cluster}

A rule for each that calls a person: deploy/alerts.yaml.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from importlib.metadata import version

from temporalio.common import MetricMeter
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from relight.activities.sights import Seen, WatchBook
from relight.activities.site import Site
from relight.clients.ledger import LedgerError
from relight.config.settings import ConfigError, TelemetrySettings
from relight.domain.detectors import Sight

logger = logging.getLogger(__name__)

EVERY = timedelta(seconds=5)


def runtime(settings: TelemetrySettings) -> Runtime | None:
    """The runtime that serves the metrics page; None where the settings want none. It serves until the process ends.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    if not settings.prometheus:
        return None
    page = PrometheusConfig(
        bind_address=settings.prometheus, counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=page, attach_service_name=False))
    except ValueError as error:
        raise ConfigError(f"telemetry.prometheus {settings.prometheus}: {error}") from error


class Gauges:
    """The metrics of one cluster."""

    def __init__(self, meter: MetricMeter, cluster: str) -> None:
        self._cluster = {"cluster": cluster}
        self._saw = meter.create_gauge_float(
            "relight_detector_last_success_timestamp_seconds", "When the detector last looked with success"
        )
        self._overdue = meter.create_gauge("relight_detector_overdue", "1 while the detector is blind or overdue")
        self._sign = meter.create_gauge_float(
            "relight_worker_last_sign_timestamp_seconds", "When a worker last wrote to the ledger"
        )
        self._incidents = meter.create_gauge("relight_incidents_open", "Incidents that have no outcome yet")
        self._outbox = meter.create_gauge("relight_outbox_undelivered", "Detections that no incident knows of yet")
        self._unreadable = meter.create_gauge("relight_attempts_unreadable", "Attempts with unreadable outputs")

    def show_sights(self, sights: Mapping[str, Sight], unreadable: int, now: datetime) -> None:
        """Show how each detector does."""
        for name, sight in sights.items():
            labels = {**self._cluster, "detector": name}
            if sight.last:
                self._saw.set(sight.last.timestamp(), labels)
            self._overdue.set(int(not sight.sees(now)), labels)
        self._unreadable.set(unreadable, self._cluster)

    def show_ledger(self, seen: Seen, now: datetime) -> None:
        """Show what the ledger holds, just written."""
        self._sign.set(now.timestamp(), self._cluster)
        self._incidents.set(seen.backlog.open_incidents, self._cluster)
        self._outbox.set(seen.backlog.undelivered, self._cluster)


@contextlib.asynccontextmanager
async def telling(site: Site, runtime: Runtime | None) -> AsyncIterator[None]:
    """Meanwhile, write down every few seconds what the site's detectors see, and show it."""
    book = WatchBook(site, f"{socket.gethostname()}/{os.getpid()}", version("relight"))
    gauges = Gauges(runtime.metric_meter, site.cluster) if runtime else None
    task = asyncio.create_task(_tell(site, book, gauges))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _tell(site: Site, book: WatchBook, gauges: Gauges | None) -> None:
    silent = False
    while True:
        seen: Seen | None = None
        try:
            seen = await book.write()
        except LedgerError as error:
            if not silent:
                logger.warning("what the detectors see is not written down: %s", error)
        except Exception:
            # Whatever it is, the others go on: this loop is what tells that they do.
            logger.exception("what the detectors see is not written down")
        silent = seen is None
        if gauges:
            now = site.clock()
            sights = seen.sights if seen else site.detectors.sights()
            gauges.show_sights(sights, len(site.detectors.unreadable), now)
            if seen:
                gauges.show_ledger(seen, now)
        await asyncio.sleep(EVERY.total_seconds())
