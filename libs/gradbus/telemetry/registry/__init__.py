"""All telemetry there is: whatever is not here is not emitted, and whatever is here is. A run's tests hold it to that.

Names follow OpenTelemetry's semantic conventions where they have one, and are `gradbus.*` otherwise.
"""

from gradbus.telemetry.registry.metrics import EVERY, METRIC, METRICS, Instrument, Metric
from gradbus.telemetry.registry.spans import SPANS, SpanEntry

__all__ = ["EVERY", "METRIC", "METRICS", "SPANS", "Instrument", "Metric", "SpanEntry"]
