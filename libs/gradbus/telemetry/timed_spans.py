"""Records spans of finished work from its start and end times.

The services work in batches: a task names 32 groups, a call scores 128. They note when a batch began and ended, and record a span
for each traced group of it. Times are nanoseconds since 1970, as `time.time_ns` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

MAX_LINKS = 128
"""Most links of one span: the SDK's default; it drops further ones."""
Attributes = Mapping[str, str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]]
Interval = tuple[int, int]
"""Start and end."""


@dataclass(frozen=True, slots=True)
class TimedSpan:
    """A finished span. Contexts are W3C traceparents."""

    name: str
    began: int
    ended: int = 0
    """0: now."""
    parent: str = ""
    """Empty: the span begins a trace."""
    own: str = ""
    """Its context, when other services already refer to it; empty: a new one."""
    attributes: Attributes = field(default_factory=dict)
    links: Sequence[str] = ()
    kind: SpanKind = SpanKind.INTERNAL
    error: str = ""
    """The error message; empty when there was no error."""


_sinks: list[Callable[[TimedSpan], None]] = []


def send_spans_to(sink: Callable[[TimedSpan], None]) -> None:
    """Sends every span that `record` gets to `sink`, in place of the previous sink."""
    _sinks[:] = [sink]


def stop_sending_spans() -> None:
    """Stops the export of spans."""
    _sinks.clear()


def is_tracing() -> bool:
    """Whether this process exports spans. Times need not be noted otherwise."""
    return bool(_sinks)


def record(span: TimedSpan) -> None:
    """Exports the span. Does nothing where spans are not exported."""
    for sink in _sinks:
        sink(span)


def links_to(traceparents: Iterable[str]) -> list[Link]:
    """Links to the valid traceparents, without duplicates, at most MAX_LINKS."""
    contexts = [context_of(traceparent) for traceparent in dict.fromkeys(traceparents)]
    return [Link(context) for context in contexts if context is not None][:MAX_LINKS]


@lru_cache(4096)
def context_of(traceparent: str) -> SpanContext | None:
    """Parses a W3C traceparent; None if it is invalid."""
    try:
        version, trace_id, span_id, flags = traceparent.split("-")
        context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    except ValueError:
        return None
    return context if version == "00" and context.is_valid else None
