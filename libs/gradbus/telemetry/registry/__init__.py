"""The registry of telemetry: services emit every metric and span listed here and no others. Tests on real runs check both.

Names follow OpenTelemetry's semantic conventions where they have one, and are `gradbus.*` otherwise.
"""

from gradbus.telemetry.registry.gateway import RefusalCause
from gradbus.telemetry.registry.metric import EVERY, Instrument, Metric
from gradbus.telemetry.registry.metrics import METRIC, METRICS
from gradbus.telemetry.registry.spans import SPANS, SpanEntry

__all__ = ["EVERY", "METRIC", "METRICS", "SPANS", "Instrument", "Metric", "RefusalCause", "SpanEntry"]
