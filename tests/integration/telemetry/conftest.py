"""The SDK with in-memory exporters, and clients of the servers."""

import secrets

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gradbus.telemetry.metrics import publish_metrics
from gradbus.telemetry.span_sink import SpanSink
from gradbus.telemetry.timed_spans import send_spans_to, stop_sending_spans


@pytest.fixture(scope="session")
def memory():
    """Spans and metrics of this process from now on; a process has one SDK, so it stays for later tests."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    send_spans_to(SpanSink(SimpleSpanProcessor(exporter), Resource.create()))
    metrics.set_meter_provider(MeterProvider([reader]))
    publish_metrics("weight_store")
    yield exporter, reader
    stop_sending_spans()
    exporter.shutdown()


@pytest.fixture
def spans(memory):
    """Finished spans by name."""
    exporter, _ = memory
    exporter.clear()
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


@pytest.fixture
def finished_spans(memory):
    """Finished spans from here on, in the order of their ends."""
    exporter, _ = memory
    exporter.clear()
    return lambda: list(exporter.get_finished_spans())


@pytest.fixture
def points(memory):
    """All data points, as (metric, attributes, point)."""
    _, reader = memory

    def read():
        data = reader.get_metrics_data()
        found = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
        return [(metric.name, dict(point.attributes), point) for metric in found for point in metric.data.data_points]

    return read


@pytest.fixture
def run_id():
    return f"run-{secrets.token_hex(6)}"
