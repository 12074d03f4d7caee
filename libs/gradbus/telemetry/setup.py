"""Starts the OpenTelemetry SDK when the standard `OTEL_*` variables ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from threading import Thread
from typing import Any

from opentelemetry import metrics

from gradbus.telemetry.log_export import publish_lines
from gradbus.telemetry.logs import get_logger
from gradbus.telemetry.metrics import publish_metrics
from gradbus.telemetry.timed_spans import send_spans_to, stop_sending_spans

_log = get_logger(__name__)
_FLUSH_SECONDS = 3.0
_DEFAULTS = {
    # The same delay as for spans: each export costs milliseconds, however small it is.
    "OTEL_BLRP_SCHEDULE_DELAY": "5000",
    # Counts dropped spans and log lines by error.type: otel.sdk.processor.span.processed counts those that found the queue full,
    # otel.sdk.exporter.span.exported those that the collector did not accept.
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true",
}
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PACKAGES = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


@contextmanager
def export_telemetry(service: str, worker: str) -> Iterator[None]:
    """Exports spans, metrics and log lines inside the block, and flushes the rest at its end, for at most three seconds.

    `OTEL_TRACES_EXPORTER`, `OTEL_METRICS_EXPORTER` and `OTEL_LOGS_EXPORTER` name exporters (`otlp`, `console`, `none`); with an
    `OTEL_EXPORTER_OTLP_ENDPOINT` all are `otlp` by default. Without any of them nothing is
    configured. An exporter whose package is not installed is skipped with a warning.
    """
    spans = _exporters("traces", "OTEL_TRACES_EXPORTER")
    metric_exporters = _exporters("metrics", "OTEL_METRICS_EXPORTER")
    lines = _exporters("logs", "OTEL_LOGS_EXPORTER")
    providers = _providers(service, worker, spans, metric_exporters, lines) if spans or metric_exporters or lines else ()
    try:
        yield
    finally:
        stop_sending_spans()
        _end(providers)


def _end(providers: Sequence[Any]) -> None:
    """Flushes every provider. A collector that does not answer must not keep the process alive, so the wait is bounded."""
    threads = [Thread(target=provider.shutdown, name="telemetry-end", daemon=True) for provider in providers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_FLUSH_SECONDS)


def _exporters(signal: str, variable: str) -> list[Any]:
    wanted = os.environ.get(variable, "otlp" if os.environ.get(_ENDPOINT) else "none")
    if wanted != "none":
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)  # exporters read it when they are created
    found = []
    for name in [part.strip() for part in wanted.split(",") if part.strip() not in {"", "none"}]:
        package = _PACKAGES.get(os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), name) if name == "otlp" else name
        points = entry_points(group=f"opentelemetry_{signal}_exporter", name=package)
        if points:
            found.append(next(iter(points)).load()())
        else:
            _log.warning("exporter_not_installed", signal=signal, exporter=package, advice=f"install its package or unset {variable}")
    return found


def _providers(service: str, worker: str, spans: list[Any], metric_exporters: list[Any], lines: list[Any]) -> tuple[Any, ...]:
    # Imported only where it is used: the SDK takes longer to import than the rest of a small service.
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from gradbus.telemetry.span_sink import SpanSink  # noqa: PLC0415

    name = os.environ.get("OTEL_SERVICE_NAME", f"gradbus-{service}")
    resource = Resource.create({"service.name": name, "service.namespace": "gradbus", "service.instance.id": worker})
    measuring = MeterProvider(
        [PeriodicExportingMetricReader(exporter) for exporter in metric_exporters], resource=resource, shutdown_on_exit=False
    )
    queues = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    for exporter in spans:
        queues.add_span_processor(BatchSpanProcessor(exporter, meter_provider=measuring))
    if spans:
        send_spans_to(SpanSink(queues, resource))
    if metric_exporters:
        metrics.set_meter_provider(measuring)
        publish_metrics(service)
    return queues, measuring, publish_lines(resource, lines)
