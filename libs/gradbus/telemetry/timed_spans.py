"""Spans of work that is over, made from the times noted while it went on.

The loops work in batches: a task names 32 groups, a call scores 128. They note when something began and ended, and tell
it here once for each group whose trace is recorded. Times are nanoseconds since 1970, as `time.time_ns` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

MAX_LINKS = 128
"""Of one span: the SDK's default; it would drop more."""
Attributes = Mapping[str, str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]]
Interval = tuple[int, int]
"""When something began and ended."""


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


SpanSinkFunction = Callable[[TimedSpan], None]
_sinks: list[SpanSinkFunction] = []


def send_spans_to(sink: SpanSinkFunction) -> None:
    """From here on `record` gives every span to `teller`; the newest counts."""
    _sinks[:] = [sink]


def stop_sending_spans() -> None:
    """Spans are no longer exported."""
    _sinks.clear()


def is_tracing() -> bool:
    """Whether this process exports spans. Where it does not, nothing need be noted."""
    return bool(_sinks)


def record(span: TimedSpan) -> None:
    """Makes the span, at once and whole. Nothing happens where no spans are exported."""
    for sink in _sinks:
        sink(span)


def links_to(traceparents: Iterable[str]) -> list[Link]:
    """Links to those that are traceparents, each once, and no more than a span holds."""
    contexts = [context_of(traceparent) for traceparent in dict.fromkeys(traceparents)]
    return [Link(context) for context in contexts if context is not None][:MAX_LINKS]


@lru_cache(4096)
def context_of(traceparent: str) -> SpanContext | None:
    """What a W3C traceparent says; None if it is none."""
    try:
        version, trace_id, span_id, flags = traceparent.split("-")
        context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    except ValueError:
        return None
    return context if version == "00" and context.is_valid else None
