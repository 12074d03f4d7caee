"""Structured logs: one JSON object a line on standard error, with the service, the run and the trace."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import cast

import structlog
from opentelemetry import trace
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from gradbus.telemetry import log_export


def configure_logging(service: str, level: str = "INFO") -> None:
    """Configures structlog for this process. `run_id` and other context come from structlog's context variables."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_trace,
            # Without local variables, because they may hold secrets.
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False, max_frames=20)),
            _export,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: _Lines(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.captureWarnings(capture=True)
    logging.basicConfig(level=logging.WARNING, handlers=[_Libraries()])


class _Libraries(logging.Handler):
    """Writes what libraries log by Python's own means as lines like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)


class _Lines(structlog.PrintLogger):
    """Writes lines and ignores write errors: a full log volume must not end the service."""

    def msg(self, message: str) -> None:
        """Writes one line."""
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines carry `module=name`."""
    return cast("FilteringBoundLogger", structlog.get_logger(module=name))


def _add_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def _export(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    log_export.emit(event)
    return event
