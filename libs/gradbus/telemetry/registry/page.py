"""The page of metrics, with the names that Prometheus gives them."""

from __future__ import annotations

from typing import Final

from gradbus.telemetry.registry.metric import EVERY, Metric
from gradbus.telemetry.registry.metrics import METRICS

_UNITS: Final = {"s": "seconds", "By": "bytes"}
_HEAD: Final = """# Metrics

`python -m gradbus_gateway.documents docs` writes this page from the [registry](../libs/gradbus/telemetry/registry). Names are those that
Prometheus's OTLP receiver gives ([observability](observability.md)). A histogram has the series `_bucket`, `_sum` and `_count`.
Attributes become labels with `_` in place of `.`; `gradbus_run_id` is there while the run is active.

| Prometheus | kind | OpenTelemetry | unit | labels | of | meaning |
|---|---|---|---|---|---|---|
"""


def prometheus_name(metric: Metric) -> str:
    """The name after the rules of Prometheus's OTLP receiver: the unit in words, and `_total` for a counter."""
    name = metric.name.replace(".", "_")
    if not metric.unit.startswith("{"):
        name = f"{name}_{_UNITS[metric.unit]}"
    return f"{name}_total" if metric.instrument == "counter" else name


def metrics_page() -> str:
    """`docs/metrics.md`."""
    return _HEAD + "".join(_row(metric) for metric in sorted(METRICS, key=lambda metric: metric.name))


def _row(metric: Metric) -> str:
    labels = " ".join(f"`{name.replace('.', '_')}`" for name in metric.attributes)
    services = "every service" if metric.services == EVERY else ", ".join(metric.services)
    kind = metric.instrument.replace("_", " ")
    cells = (f"`{prometheus_name(metric)}`", kind, f"`{metric.name}`", metric.unit, labels, services, metric.description)
    return f"| {' | '.join(cells)} |\n"
