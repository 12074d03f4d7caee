"""From times to the SDK's spans, with the SDK imported: only where spans are exported."""

from __future__ import annotations

import random
import time

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from gradbus.telemetry.timed import TimedSpan, context_of, links_to

_SCOPE = InstrumentationScope("gradbus")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status()


class SpanTeller:
    """Gives finished spans to a processor.

    There is no tracer: it would choose the ids itself, and take five times as long. Its locks, limits and sampler are of no use to a
    span that is over.
    """

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        self._processor = processor
        self._resource = resource

    def __call__(self, span: TimedSpan) -> None:
        """Makes the span."""
        parent = context_of(span.parent)
        context = context_of(span.own) or _new_context(parent)
        made = ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            links=links_to(span.links),
            kind=span.kind,
            status=Status(StatusCode.ERROR, span.error) if span.error else _OK,
            start_time=span.began,
            end_time=max(span.began, span.ended or time.time_ns()),
            instrumentation_scope=_SCOPE,
        )
        self._processor.on_end(made)


def _new_context(parent: SpanContext | None) -> SpanContext:
    trace_id = parent.trace_id if parent else random.getrandbits(128) or 1
    return SpanContext(trace_id, random.getrandbits(64) or 1, is_remote=False, trace_flags=_SAMPLED)
