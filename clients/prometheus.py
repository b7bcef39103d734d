"""GPU metrics in a Prometheus server, or in what speaks its HTTP API (Thanos, Mimir: same engine).

Facts from its documentation ("HTTP API", "Querying basics", "Staleness"), tried with 2.42:
- An instant query shows a series' last sample if it is younger than 5 min, and not at all once a scrape has failed or
  no longer shows it. The time in the answer is the question's: the sample's own is what `timestamp()` says.
- A range in an instant query (`x[60s]`) answers with the samples as they were scraped, under their own times.
- A sample bears the time at which its scrape began, and can be seen when the scrape has ended, up to 10 s later.
- `x @ 1700000000` is x as it was then. Of two vectors, only what both have is compared.
- An Xid's number is also a label, `err_code`: each Xid is another series.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from relight.clients.http_store import Endpoint, HttpStore
from relight.clients.logs import LogUnreadableError
from relight.clients.metrics import MetricsAnswerError, MetricsUnavailableError, Shown
from relight.domain.base import clip
from relight.domain.gpu_metrics import (
    FIELDS,
    REASONS_BELOW,
    REASONS_FROM,
    TOGETHER,
    XID,
    Field,
    Reading,
    Sample,
    Series,
    pci_address,
)

_QUERY = "/api/v1/query"
_MOST = 32 << 20
"""Bytes of one answer: 10,000 nodes are shown in 1 MiB, the samples of `_AT_ONCE` nodes in 8."""
_AT_ONCE = 500
"""Nodes named in one question."""
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,255}")


class _Row(NamedTuple):
    labels: dict[str, str]
    samples: list[Sample]


class Prometheus:
    """Implements `GpuMetrics`. To be entered on the event loop that uses it.

    Args:
        endpoint: where the server is.
        node_label: the label that names the node.
        selector: matchers that all series must fit, for example `cluster="east"`; empty: none.
        tenant: `X-Scope-OrgID`, for stores that have tenants; empty: none.
    """

    def __init__(
        self, endpoint: Endpoint, *, node_label: str = "Hostname", selector: str = "", tenant: str = ""
    ) -> None:
        headers = {"X-Scope-OrgID": tenant} if tenant else {}
        whose = f"Prometheus tenant {tenant}" if tenant else "Prometheus"
        self._store = HttpStore(endpoint, headers=headers, whose=whose)
        self._label = node_label
        self._selector = selector

    async def __aenter__(self) -> Self:
        try:
            await self._store.__aenter__()
        except LogUnreadableError as error:
            raise MetricsUnavailableError(str(error)) from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._store.__aexit__(*exception)

    async def shown(self) -> Shown:
        """The nodes whose Xid metric is shown."""
        # Without labels: so that there is an answer, and with it the server's time, also where nothing is shown.
        newest = f"max by ({self._label}, instance) (timestamp({self._series(XID)})) or vector(0)"
        rows = await self._ask(newest)
        try:
            now = rows[0].samples[0].at
            named = [(name, _time(row.samples[0].value)) for row in rows if (name := row.labels.get(self._label))]
        except (IndexError, ValueError, OverflowError, OSError):
            raise self._strange() from None
        fresh = Counter(name for name, at in named if now - at <= TOGETHER)
        twice = frozenset(name for name, count in fresh.items() if count > 1)
        # Ascending: of an exporter that has moved, the newer place counts.
        nodes = {name: at for name, at in sorted(named, key=lambda each: each[1]) if name not in twice}
        return Shown(now, nodes, twice)

    async def changes(self, nodes: Collection[str], since: datetime, until: datetime) -> tuple[Series, ...]:
        """See `GpuMetrics`: one question for each field, and one more for each that has changed."""
        wanted = frozenset(name for name in nodes if _PLAIN.fullmatch(name))
        found: list[Series] = []
        for field in FIELDS:
            rows = await self._ask(self._changed(field, since), until)
            names = sorted({row.labels.get(self._label, "") for row in rows} & wanted)
            for first in range(0, len(names), _AT_ONCE):
                found += await self._samples(field, names[first : first + _AT_ONCE], since - TOGETHER, until)
        return tuple(found)

    def _changed(self, field: Field, since: datetime) -> str:
        """What is not as it was, also of an exporter that has started since.

        Most of it is 0 and stays so: that is left out before anything is compared, which is what costs the server.
        """
        now, then = self._series(field), f"{self._series(field)} @ {since.timestamp():.3f}"
        match field.reading:
            case Reading.VALUE:
                return f"{now} != 0 unless ({now} != 0) == ({then} != 0)"
            case Reading.RISE:
                # One that matters between two samples, a second or more apart, is no smaller over the whole time.
                return f"{now} > 0 unless ({now} > 0) - ({then} > 0) < {max(field.rate, 1.0):g}"
            case Reading.REASONS:
                held, was_held = (f"({each} % {REASONS_BELOW} >= {REASONS_FROM})" for each in (now, then))
                return f"({held} unless {was_held}) or ({was_held} unless {held})"

    def _series(self, field: Field, *more: str) -> str:
        return f"{field.name}{{{','.join(part for part in (self._selector, *more) if part)}}}"

    async def _samples(self, field: Field, names: list[str], since: datetime, until: datetime) -> list[Series]:
        # A dot in brackets: within quotes, a backslash would have to be doubled.
        any_of = "|".join(names).replace(".", "[.]")
        named = self._series(field, f'{self._label}=~"{any_of}"')
        rows = await self._ask(f"{named}[{(until - since).total_seconds():.0f}s]", until)
        samples: defaultdict[tuple[str, str, str], dict[datetime, Sample]] = defaultdict(dict)
        for row in rows:
            gpu = pci_address(row.labels.get("pci_bus_id", "")) or row.labels.get("gpu", "")
            one = samples[row.labels.get(self._label, ""), row.labels.get("instance", ""), clip(gpu, 32)]
            for sample in row.samples:
                # The parts of a GPU (MIG) are shown one by one.
                one[sample.at] = max(sample, one.get(sample.at, sample))
        return [Series(field, node, gpu, tuple(each.values())) for (node, _, gpu), each in samples.items()]

    async def _ask(self, expression: str, at: datetime | None = None) -> list[_Row]:
        question = {"query": expression, **({"time": f"{at.timestamp():.3f}"} if at else {})}
        try:
            body = await self._store.body(_QUERY, question, _MOST, form=True)
        except LogUnreadableError as error:
            raise MetricsUnavailableError(str(error)) from error
        if body is None:
            raise MetricsAnswerError(f"{self._store.url}: its answer is longer than {_MOST >> 20} MiB: set a selector")
        try:
            return [_row(each) for each in json.loads(body)["data"]["result"]]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError, RecursionError):
            raise self._strange() from None

    def _strange(self) -> MetricsAnswerError:
        return MetricsAnswerError(f"{self._store.url}: what answers is no Prometheus: check the address")


def _row(result: Mapping[str, Any]) -> _Row:
    """A series of a vector, with its one value, or of a matrix."""
    labels = {str(name): str(value) for name, value in result["metric"].items()}
    values = result["values"] if "values" in result else [result["value"]]
    text = labels.get("err_msg", "")
    return _Row(labels, [Sample(_time(at), float(value), text) for at, value in values])


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
