"""Logs, traces and metrics: structlog for lines, the OpenTelemetry API for spans and numbers."""

from gradbus.telemetry.logs import configure_logging, get_logger
from gradbus.telemetry.numbers import PROCESS, Few, Numbers, are_read, numbers_of, record, shown
from gradbus.telemetry.process import show_process
from gradbus.telemetry.setup import exported
from gradbus.telemetry.traces import Attributes, current_traceparent, linked_span, span, trace_headers, traceparent_of
from gradbus.telemetry.weights import way_failed, weights_active, weights_moved, weights_trouble
from gradbus.telemetry.wires import WireOperation

__all__ = [
    "PROCESS",
    "Attributes",
    "Few",
    "Numbers",
    "WireOperation",
    "are_read",
    "configure_logging",
    "current_traceparent",
    "exported",
    "get_logger",
    "linked_span",
    "numbers_of",
    "record",
    "show_process",
    "shown",
    "span",
    "trace_headers",
    "traceparent_of",
    "way_failed",
    "weights_active",
    "weights_moved",
    "weights_trouble",
]
