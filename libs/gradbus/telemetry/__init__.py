"""Logs, traces and metrics: structlog for log lines, the OpenTelemetry API for spans and metrics."""

from gradbus.telemetry.logs import configure_logging, get_logger
from gradbus.telemetry.metrics import PROCESS, CardinalityLimit, Metrics, export_metrics, is_exporting, observe, run_metrics
from gradbus.telemetry.operations import WireOperation
from gradbus.telemetry.process import export_process_metrics
from gradbus.telemetry.setup import export_telemetry
from gradbus.telemetry.timed_spans import MAX_LINKS, Attributes, Interval, TimedSpan, is_tracing, record
from gradbus.telemetry.trace_ids import child_of, evaluation_trace, group_trace, is_sampled, start_trace, step_trace
from gradbus.telemetry.traces import current_traceparent, root_span, span, trace_headers, under
from gradbus.telemetry.weights import transport_failed, weights_active, weights_moved, weights_trouble

__all__ = [
    "MAX_LINKS",
    "PROCESS",
    "Attributes",
    "CardinalityLimit",
    "Interval",
    "Metrics",
    "TimedSpan",
    "WireOperation",
    "child_of",
    "configure_logging",
    "current_traceparent",
    "evaluation_trace",
    "export_metrics",
    "export_process_metrics",
    "export_telemetry",
    "get_logger",
    "group_trace",
    "is_exporting",
    "is_sampled",
    "is_tracing",
    "observe",
    "record",
    "root_span",
    "run_metrics",
    "span",
    "start_trace",
    "step_trace",
    "trace_headers",
    "transport_failed",
    "under",
    "weights_active",
    "weights_moved",
    "weights_trouble",
]
