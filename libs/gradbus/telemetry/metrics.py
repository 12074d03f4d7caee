"""Numbers that services keep and exporters read: adding to one costs a dictionary's update, whether anybody exports or not.

An instrument's own `add` costs the SDK tens of microseconds in Python, so only what happens a few times a step is recorded by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
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
"""A number, or what gives it when it is read, from the exporter's thread."""


class Metrics:
    """Values by metric and attributes. `fixed` attributes are added to each when it is read."""

    def __init__(self, fixed: Mapping[str, str] | None = None) -> None:
        self._fixed = dict(fixed or {})
        self._values: defaultdict[str, dict[tuple[tuple[str, str], ...], Value]] = defaultdict(dict)

    def count(self, name: str, amount: float = 1, attributes: Mapping[str, str] = _NONE) -> None:
        """Adds to a counter of the registry."""
        series = self._values[name]
        key = tuple(attributes.items())
        series[key] = series.get(key, 0) + amount  # type: ignore[operator]

    def set(self, name: str, value: Value, attributes: Mapping[str, str] = _NONE) -> None:
        """Sets what is read from now on."""
        self._values[name][tuple(attributes.items())] = value

    def replace(self, name: str, attribute: str, values: Mapping[str, Value]) -> None:
        """Sets a metric's values by one attribute; those of other values of it are gone."""
        self._values[name] = {((attribute, key),): value for key, value in values.items()}

    def observe_many(self, name: str, sizes: Iterable[float]) -> None:
        """Adds each of `sizes` to the cumulative buckets of a counter that has `le`."""
        # Sorted once: a step has thousands of sizes and a dozen bounds.
        ordered = sorted(sizes)
        for bound in METRIC[name].buckets:
            self.count(name, bisect_right(ordered, bound), {"le": f"{bound:g}"})
        self.count(name, len(ordered), {"le": "+Inf"})

    def read(self, name: str) -> list[Observation]:
        """What is exported of a metric now."""
        # A copy is made at once; the service's thread may add meanwhile.
        series = self._values[name].copy() if name in self._values else {}
        return [Observation(value() if callable(value) else value, {**self._fixed, **dict(key)}) for key, value in series.items()]


PROCESS: Final = Metrics()
"""Of this process: what has no run."""
_RUNS: Final[list[Metrics]] = []
_READERS: Final[list[str]] = []


def run_metrics(run_id: str) -> Metrics:
    """Of a run; exported while they are `shown`."""
    return Metrics({"gradbus.run.id": run_id})


@contextmanager
def exporting(numbers: Metrics) -> Iterator[Metrics]:
    """Exports a run's numbers inside the block alone: there are as many series as runs are worked on, however many there were."""
    _RUNS.append(numbers)
    try:
        yield numbers
    finally:
        _RUNS.remove(numbers)


def observe(name: str, value: float, attributes: Mapping[str, str] = _NONE) -> None:
    """One more value of a histogram of the registry, with a sampled span around it as its exemplar. Not for what comes by the sample."""
    _histogram(name).record(value, attributes)


class CardinalityLimit:
    """Lets a bounded number of values through; the rest share one. For attributes whose values users choose."""

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
    """Whether anybody reads what is kept: what takes work to be told is left out otherwise."""
    return bool(_READERS)


def publish_metrics(service: str) -> None:
    """Makes the instruments that read what is kept, on the process's meter; once, before the service starts."""
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
    return [observation for numbers in [PROCESS, *_RUNS] for observation in numbers.read(name)]


@cache
def _histogram(name: str) -> Histogram:
    metric = METRIC[name]
    meter = metrics.get_meter(_METER)
    return meter.create_histogram(name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets)
