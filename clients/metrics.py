"""The contract with a monitoring store that keeps what DCGM's exporters show of GPUs.

MetricsError
├── MetricsUnavailableError   no answer, a refusal, a rate limit: nothing is known. Trying again helps.
└── MetricsAnswerError        an answer that is none. Trying again hardly helps: the address or the settings are wrong.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from relight.config.settings import ConfigError, PrometheusSettings
from relight.domain.gpu_metrics import Series


class MetricsError(Exception):
    """Root of everything that a monitoring store can raise."""


class MetricsUnavailableError(MetricsError):
    """The store does not answer, or refuses to."""


class MetricsAnswerError(MetricsError):
    """What answers is no store such as we know, or says more than can be taken."""


class Shown(NamedTuple):
    """Whose GPUs the store shows now."""

    at: datetime
    """Now, by the store's clock: all its times are."""
    nodes: Mapping[str, datetime]
    """By name, as the store has it: when the newest sample of its GPUs was taken."""
    twice: frozenset[str] = frozenset()
    """Names that two exporters claim. Either may lie: they are not in `nodes`."""


class GpuMetrics(Protocol):
    """What DCGM's exporters have shown of the GPUs of a cluster. `MetricsError` where nothing is known."""

    async def shown(self) -> Shown:
        """Which nodes' GPUs are shown."""

    async def changes(self, nodes: Collection[str], since: datetime, until: datetime) -> tuple[Series, ...]:
        """Of these nodes, the fields that were one thing at `since` and another at `until`, with all samples.

        The samples begin early enough to have neighbours. Fields that have not changed may be among them.
        """


@asynccontextmanager
async def open_metrics(settings: PrometheusSettings) -> AsyncIterator[GpuMetrics | None]:
    """The store that the settings name, whether or not it answers now; None where they name none.

    Raises:
        ConfigError: a file that they name cannot be used, or aiohttp is missing.
    """
    if not settings.url:
        yield None
        return
    try:
        # Only a site that reads metrics needs aiohttp.
        from relight.clients.http_store import Endpoint  # noqa: PLC0415
        from relight.clients.prometheus import Prometheus  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"metrics.prometheus needs {error.name}: pip install 'relight[http]'") from error
    endpoint = Endpoint(settings.url, _file(settings.token_file), settings.user, _file(settings.ca))
    store = Prometheus(endpoint, node_label=settings.node_label, selector=settings.selector, tenant=settings.tenant)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(store)
        except MetricsError as error:
            raise ConfigError(f"metrics.prometheus.token_file: {error}") from error
        except OSError as error:
            raise ConfigError(f"metrics.prometheus.ca {settings.ca}: {error.strerror or error}") from error
        yield store


def _file(name: str) -> Path | None:
    return Path(name).expanduser() if name else None
