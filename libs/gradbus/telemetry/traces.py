"""Spans as context managers, nested by the current context. Without a sampled parent no span is made: the trace's first span decides.

A span is recorded when its block ends, by `gradbus.telemetry.timed_spans`; until then only its context exists.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanKind

from gradbus.telemetry.timed_spans import Attributes, TimedSpan, context_of, is_tracing, record
from gradbus.telemetry.trace_ids import child_of, new_trace

_HEADER = "traceparent"


def span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, parent: str = "", attributes: Attributes | None = None
) -> AbstractContextManager[None]:
    """A span that is current inside the block. `parent` is a W3C traceparent; empty means the current span.

    Without a sampled parent there is no span unless the block raises: an error is recorded in a trace of its own.
    """
    above = _sampled(parent or current_traceparent())
    own = child_of(above) if is_tracing() else above
    return _recorded_span(TimedSpan(name, time.time_ns(), parent=above, own=own, attributes=attributes or {}, kind=kind))


def root_span(name: str, links: Iterable[str], attributes: Attributes | None = None) -> AbstractContextManager[None]:
    """A span that begins a trace and is current inside the block, linked to the spans whose work it does."""
    return _recorded_span(TimedSpan(name, time.time_ns(), own=new_trace(), attributes=attributes or {}, links=list(links)))


@contextmanager
def under(traceparent: str) -> Iterator[None]:
    """Makes a span that is recorded later, or in another process, the parent of spans in the block. Empty: no change."""
    context = context_of(traceparent) if traceparent else None
    token = attach(trace.set_span_in_context(NonRecordingSpan(context), Context())) if context else None
    try:
        yield
    finally:
        if token is not None:
            detach(token)


def current_traceparent() -> str:
    """The current span as a W3C traceparent; empty when there is none."""
    context = trace.get_current_span().get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}" if context.is_valid else ""


def trace_headers() -> dict[str, str] | None:
    """The current trace context as message headers; None when there is none."""
    current = current_traceparent()
    return {_HEADER: current} if current else None


@contextmanager
def _recorded_span(work: TimedSpan) -> Iterator[None]:
    error = ""
    try:
        with under(work.own):
            yield
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        if work.own or error:
            record(replace(work, error=error))


def _sampled(traceparent: str) -> str:
    """`traceparent` if it is valid and sampled, else empty."""
    context = context_of(traceparent) if traceparent else None
    return traceparent if context is not None and context.trace_flags.sampled else ""
