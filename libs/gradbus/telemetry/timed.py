"""Spans of work that is over, made from the times noted while it went on.

The loops work in batches: a task names 32 groups, a call scores 128. They note when something began and ended, and tell
it here once for each group whose trace is recorded. Times are nanoseconds since 1970, as `time.time_ns` gives them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

MAX_LINKS = 128
"""Of one span: the SDK's default; it would drop more."""
Attributes = Mapping[str, str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]]
Interval = tuple[int, int]
"""When something began and ended."""

_chosen: ContextVar[SpanContext | None] = ContextVar("gradbus_chosen_span", default=None)


@dataclass(frozen=True, slots=True)
class TimedSpan:
    """One span to be. Contexts are W3C traceparents."""

    name: str
    began: int
    ended: int = 0
    """0: now."""
    parent: str = ""
    """Empty: it begins a trace."""
    own: str = ""
    """The context that others were told of before; empty: a new one."""
    attributes: Attributes = field(default_factory=dict)
    links: Sequence[str] = ()
    kind: SpanKind = SpanKind.INTERNAL
    error: str = ""
    """What went wrong, in words."""


class SpanIds:
    """The SDK's source of ids. A span whose context was given out before it existed gets that one."""

    def generate_trace_id(self) -> int:
        """The chosen span's, or a random one."""
        chosen = _chosen.get()
        return chosen.trace_id if chosen else random.getrandbits(128) or 1

    def generate_span_id(self) -> int:
        """The chosen span's, or a random one."""
        chosen = _chosen.get()
        return chosen.span_id if chosen else random.getrandbits(64) or 1

    def is_trace_id_random(self) -> bool:
        """Not by the letter of W3C: some are hashes."""
        return False


def is_tracing() -> bool:
    """Whether this process exports spans. Where it does not, nothing need be noted."""
    return isinstance(getattr(trace.get_tracer_provider(), "id_generator", None), SpanIds)


def record(span: TimedSpan) -> None:
    """Makes the span, at once and whole. Nothing happens where no spans are exported."""
    token = _chosen.set(_context_of(span.own))
    try:
        parent = _context_of(span.parent)
        above = trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()
        made = trace.get_tracer("gradbus").start_span(span.name, above, span.kind, span.attributes, links_to(span.links), span.began)
    finally:
        _chosen.reset(token)
    if span.error:
        made.set_status(Status(StatusCode.ERROR, span.error))
    made.end(max(span.began, span.ended or time.time_ns()))


def links_to(traceparents: Iterable[str]) -> list[Link]:
    """Links to those that are traceparents, each once, and no more than a span holds."""
    contexts = [_context_of(traceparent) for traceparent in dict.fromkeys(traceparents)]
    return [Link(context) for context in contexts if context is not None][:MAX_LINKS]


def _context_of(traceparent: str) -> SpanContext | None:
    try:
        version, trace_id, span_id, flags = traceparent.split("-")
        context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    except ValueError:
        return None
    return context if version == "00" and context.is_valid else None
