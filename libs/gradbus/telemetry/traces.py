"""Spans of what goes on now, each below another. Where there is none above it nothing is made: whoever begins a trace has decided.

Work that is done for many groups at once is told afterwards instead, by `gradbus.telemetry.timed`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gradbus.telemetry.timed import Attributes, TimedSpan, links_to, record

_HEADER = "traceparent"
_W3C = TraceContextTextMapPropagator()


@contextmanager
def span(name: str, kind: SpanKind = SpanKind.INTERNAL, parent: str = "", attributes: Attributes | None = None) -> Iterator[Span]:
    """A span that is current inside the block. `parent` is a W3C traceparent; empty means the current span.

    Without a parent that is recorded there is no span, but an error is told: by one that begins a trace of its own.
    """
    context = _context(parent) if parent else None
    if trace.get_current_span(context).get_span_context().trace_flags.sampled:
        with _tracer().start_as_current_span(name, context, kind, attributes) as current:
            yield current
        return
    began = time.time_ns()
    try:
        yield INVALID_SPAN
    except Exception as error:
        record(TimedSpan(name, began, attributes=attributes or {}, kind=kind, error=f"{type(error).__name__}: {error}"))
        raise


@contextmanager
def root_span(name: str, links: Iterable[str], attributes: Attributes | None = None) -> Iterator[Span]:
    """A span that begins a trace and is current inside the block, linked to the spans it works for."""
    with _tracer().start_as_current_span(name, Context(), SpanKind.INTERNAL, attributes, links_to(links)) as current:
        yield current


@contextmanager
def under(traceparent: str) -> Iterator[None]:
    """What goes on in the block is below a span that is made later, or elsewhere. Empty: nothing changes."""
    token = attach(_context(traceparent)) if traceparent else None
    try:
        yield
    finally:
        if token is not None:
            detach(token)


def current_traceparent() -> str:
    """The current span as a W3C traceparent; empty when there is none."""
    return (trace_headers() or {}).get(_HEADER, "")


def trace_headers() -> dict[str, str] | None:
    """The current trace context as message headers; None when there is none."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers or None


def traceparent_of(headers: Mapping[str, str] | None) -> str:
    """The traceparent among a message's headers, or empty."""
    return headers.get(_HEADER, "") if headers else ""


@cache
def _tracer() -> Tracer:
    """Kept: to be given one takes longer than a span. It follows a provider that is set later."""
    return trace.get_tracer("gradbus")


def _context(traceparent: str) -> Context:
    return _W3C.extract({_HEADER: traceparent}, Context())
