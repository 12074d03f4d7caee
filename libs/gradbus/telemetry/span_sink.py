"""Makes SDK spans from recorded times. Imported only where spans are exported, because it imports the SDK."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from gradbus.telemetry.registry.spans import SPANS
from gradbus.telemetry.timed_spans import TimedSpan, context_of, links_to

_SCOPE = InstrumentationScope("gradbus")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status()
_KINDS = {entry.name: {"openinference.span.kind": entry.kind} for entry in SPANS if entry.kind}


class SpanSink:
    """Passes finished spans to a processor.

    It uses no tracer: a tracer would choose the ids itself and take five times as long, and a finished span needs none of its locks,
    limits and samplers.
    """

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        self._processor = processor
        self._resource = _Resource(resource.attributes, resource.schema_url)

    def __call__(self, span: TimedSpan) -> None:
        """Exports one span."""
        parent = context_of(span.parent)
        context = context_of(span.own) or _new_context(parent)
        made = ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes={**span.attributes, **kind} if (kind := _KINDS.get(span.name)) else span.attributes,
            links=links_to(span.links),
            kind=span.kind,
            status=Status(StatusCode.ERROR, span.error) if span.error else _OK,
            start_time=span.began,
            end_time=max(span.began, span.ended or time.time_ns()),
            instrumentation_scope=_SCOPE,
        )
        self._processor.on_end(made)


class _Resource(Resource):
    """A resource whose hash is computed once: the encoder needs it for each span, and the SDK's own hash serializes to JSON each time."""

    def __init__(self, attributes: Mapping[str, Any], schema_url: str) -> None:
        super().__init__(attributes, schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def _new_context(parent: SpanContext | None) -> SpanContext:
    trace_id = parent.trace_id if parent else random.getrandbits(128) or 1
    return SpanContext(trace_id, random.getrandbits(64) or 1, is_remote=False, trace_flags=_SAMPLED)
