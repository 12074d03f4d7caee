"""Logs, traces and metrics: structlog for lines, the OpenTelemetry API for spans and numbers."""

from gradbus.telemetry.logs import configure_logging, get_logger
from gradbus.telemetry.numbers import PROCESS, Few, Numbers, are_read, numbers_of, observe, shown
from gradbus.telemetry.process import show_process
from gradbus.telemetry.setup import exported
from gradbus.telemetry.timed import MAX_LINKS, Attributes, Interval, TimedSpan, is_tracing, record
from gradbus.telemetry.trace_ids import child_of, evaluation_trace, group_trace, is_sampled, start_trace, step_trace
from gradbus.telemetry.traces import current_traceparent, root_span, span, trace_headers, traceparent_of, under
from gradbus.telemetry.weights import way_failed, weights_active, weights_moved, weights_trouble
from gradbus.telemetry.wires import WireOperation

__all__ = [
    "MAX_LINKS",
    "PROCESS",
    "Attributes",
    "Few",
    "Interval",
    "Numbers",
    "TimedSpan",
    "WireOperation",
    "are_read",
    "child_of",
    "configure_logging",
    "current_traceparent",
    "evaluation_trace",
    "exported",
    "get_logger",
    "group_trace",
    "is_sampled",
    "is_tracing",
    "numbers_of",
    "observe",
    "record",
    "root_span",
    "show_process",
    "shown",
    "span",
    "start_trace",
    "step_trace",
    "trace_headers",
    "traceparent_of",
    "under",
    "way_failed",
    "weights_active",
    "weights_moved",
    "weights_trouble",
]
