"""Spans. Without a configured SDK all of this costs next to nothing, and a context that comes in still goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_MAX_LINKS = 128  # the SDK's default limit; more would be dropped silently
_HEADER = "traceparent"
_W3C = TraceContextTextMapPropagator()

Attributes = Mapping[str, str | int | float | bool]


@contextmanager
def span(name: str, kind: SpanKind = SpanKind.INTERNAL, parent: str = "", attributes: Attributes | None = None) -> Iterator[Span]:
    """A span that is current inside the block. `parent` is a W3C traceparent; empty means the current context."""
    context = _context(parent) if parent else None
    with trace.get_tracer("gradbus").start_as_current_span(name, context, kind, attributes) as current:
        yield current


@contextmanager
def linked_span(name: str, parents: Iterable[str], attributes: Attributes | None = None) -> Iterator[Span]:
    """A span of a trace of its own with links to the first 128 traces it consumed: a training step to its groups."""
    different = islice(dict.fromkeys(parent for parent in parents if parent), _MAX_LINKS)
    contexts = [trace.get_current_span(_context(parent)).get_span_context() for parent in different]
    links = [Link(context) for context in contexts if context.is_valid]
    with trace.get_tracer("gradbus").start_as_current_span(name, Context(), SpanKind.CONSUMER, attributes, links) as current:
        yield current


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


def _context(traceparent: str) -> Context:
    return _W3C.extract({_HEADER: traceparent}, Context())
