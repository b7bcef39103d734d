"""A check of GPU metrics: that the store answers, and whose GPUs it shows."""

from collections.abc import Sequence
from datetime import timedelta

from relight.clients.metrics import MetricsError, Shown, open_metrics
from relight.clients.slurm import Slurm, SlurmError
from relight.config.settings import ConfigError, Settings
from relight.console.context import now
from relight.console.doctor_checks import Check, brief, fail, ok, warn
from relight.console.text import count, span
from relight.domain.gpu_metrics import TOGETHER, NodeNames, some

CLOCKS_APART = timedelta(seconds=10)
"""The store's clock and ours: faults are told in its time, and compared with the times of Slurm's jobs."""
_NAME = "GPU metrics"


async def check_metrics(settings: Settings, slurm: Slurm) -> Sequence[Check]:
    """Prometheus answers, and shows fresh GPU metrics of Slurm's nodes; nothing where none is configured."""
    at = settings.metrics.prometheus
    try:
        async with open_metrics(at) as metrics:
            if metrics is None:
                return ()
            shown = await metrics.shown()
    except ConfigError as error:
        return (fail(_NAME, str(error), "Correct metrics.prometheus: until then no controller starts."),)
    except MetricsError as error:
        return (fail(_NAME, brief(error), "Until it answers, only node agents see GPU faults, where there are any."),)
    try:
        nodes = [node.name for node in await slurm.nodes()]
    except SlurmError as error:
        return (warn(_NAME, f"not known whose, Slurm does not say: {brief(error)}", "See the check of Slurm."),)
    return (_whose(shown, nodes, at.node_label), *_clock(shown))


def _whose(shown: Shown, nodes: Sequence[str], label: str) -> Check:
    names = NodeNames(nodes)
    found = {label: node for label in shown.nodes if (node := names.find(label))}
    fresh = {node for label, node in found.items() if shown.at - shown.nodes[label] <= TOGETHER}
    strange = shown.nodes.keys() - found.keys()
    said = f"fresh of {len(fresh)} of {count(len(nodes), 'node')}"
    said += f"; {count(len(strange), 'name')} that Slurm does not have, such as {some(strange)}" if strange else ""
    if shown.twice:
        advice = "Give each node one exporter, and have its port closed to users' programs."
        return warn(_NAME, f"{said}; two exporters claim to be {some(shown.twice)}: neither is believed", advice)
    if fresh:
        return ok(_NAME, said)
    advice = (
        f"Does it scrape DCGM's exporters, with DCGM_FI_DEV_XID_ERRORS, more often than every {span(TOGETHER)}? "
        f"Does the label {label} (metrics.prometheus.node_label) hold Slurm's node names?"
    )
    return fail(_NAME, said, advice)


def _clock(shown: Shown) -> Sequence[Check]:
    apart = abs(now() - shown.at)
    if apart <= CLOCKS_APART:
        return ()
    found = f"the metrics store's clock and ours are {span(apart)} apart"
    return (warn("clock", found, "Set both by NTP: a fault may be taken for that of the job before."),)
