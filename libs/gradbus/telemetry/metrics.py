"""Metrics that services keep in memory and exporters read. An update costs one dictionary update, with or without an exporter.

`add` on an SDK instrument costs tens of microseconds in Python, so instruments record only events that happen a few times a step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from gradbus.telemetry.registry import METRIC, METRICS, Instrument

_METER: Final = "gradbus"
_NONE: Final[Mapping[str, str]] = {}
_OTHER: Final = "other"
Value = float | Callable[[], float]
"""A number, or a function that returns it when it is read, on the exporter's thread."""


class _Series(dict[str, dict[tuple[tuple[str, str], ...], Value]]):
    """Values by attributes, of each metric that has any. Raises KeyError for a metric that is not in the registry."""

    def __missing__(self, name: str) -> dict[tuple[tuple[str, str], ...], Value]:
        series: dict[tuple[tuple[str, str], ...], Value] = {}
        self[METRIC[name].name] = series
        return series


class Metrics:
    """Values by metric and attributes. The `fixed` attributes are added to each value when it is read."""

    def __init__(self, fixed: Mapping[str, str] | None = None) -> None:
        self._fixed = dict(fixed or {})
        self._values = _Series()

    def count(self, name: str, amount: float = 1, attributes: Mapping[str, str] = _NONE) -> None:
        """Adds to a counter of the registry."""
        series = self._values[name]
        key = tuple(attributes.items())
        series[key] = series.get(key, 0) + amount  # type: ignore[operator]

    def set(self, name: str, value: Value, attributes: Mapping[str, str] = _NONE) -> None:
        """Sets the value of a gauge."""
        self._values[name][tuple(attributes.items())] = value

    def replace(self, name: str, attribute: str, values: Mapping[str, Value]) -> None:
        """Replaces all values of a metric; `values` maps a value of `attribute` to the metric's value."""
        self._values[METRIC[name].name] = {((attribute, key),): value for key, value in values.items()}

    def observe_many(self, name: str, sizes: Iterable[float]) -> None:
        """Adds each of `sizes` to the cumulative buckets of a counter with the attribute `le`."""
        # Sorted once, because a step has thousands of sizes and a dozen bounds.
        ordered = sorted(sizes)
        for bound in METRIC[name].buckets:
            self.count(name, bisect_right(ordered, bound), {"le": f"{bound:g}"})
        self.count(name, len(ordered), {"le": "+Inf"})

    def read(self, name: str) -> list[Observation]:
        """The current observations of a metric."""
        # Copied first, because the service's thread may update it meanwhile.
        series = self._values[name].copy() if name in self._values else {}
        return [Observation(value() if callable(value) else value, {**self._fixed, **dict(key)}) for key, value in series.items()]


PROCESS: Final = Metrics()
"""Metrics of this process that belong to no run."""
_RUNS: Final[list[Metrics]] = []
_READERS: Final[list[str]] = []


def run_metrics(run_id: str) -> Metrics:
    """Metrics of a run; exported inside `export_metrics`."""
    return Metrics({"gradbus.run.id": run_id})


@contextmanager
def export_metrics(of_run: Metrics) -> Iterator[Metrics]:
    """Exports a run's metrics only while it is active, so the number of series stays bounded."""
    _RUNS.append(of_run)
    try:
        yield of_run
    finally:
        _RUNS.remove(of_run)


def observe(name: str, value: float, attributes: Mapping[str, str] = _NONE) -> None:
    """Records one value of a histogram, with the current sampled span as its exemplar. Too slow to be called for every sample."""
    _histogram(name).record(value, attributes)


class CardinalityLimit:
    """Caps label cardinality; further values become `other`. For attributes whose values users choose."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value, or `other`."""
        if value not in self._known:
            if len(self._known) >= self._most:
                return _OTHER
            self._known.add(value)
        return value


def is_exporting() -> bool:
    """Whether metrics are exported. Expensive ones are skipped otherwise."""
    return bool(_READERS)


def publish_metrics(service: str) -> None:
    """Creates the instruments that read the metrics; called once, before the service starts."""
    _READERS.append(service)
    meter = metrics.get_meter(_METER)
    for metric in METRICS:
        if metric.instrument != "histogram" and not metric.name.startswith("http."):
            _reading(meter, metric.instrument, metric.name)
        if service in metric.services:
            for attributes in metric.zeros:
                PROCESS.count(metric.name, 0, attributes)


def _reading(meter: Meter, instrument: Instrument, name: str) -> None:
    make = {
        "counter": meter.create_observable_counter,
        "up_down_counter": meter.create_observable_up_down_counter,
        "gauge": meter.create_observable_gauge,
    }[instrument]
    make(name, [partial(_read, name)], METRIC[name].unit, METRIC[name].description)


def _read(name: str, _options: CallbackOptions) -> list[Observation]:
    return [observation for kept in [PROCESS, *_RUNS] for observation in kept.read(name)]


@cache
def _histogram(name: str) -> Histogram:
    metric = METRIC[name]
    meter = metrics.get_meter(_METER)
    return meter.create_histogram(name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets)
