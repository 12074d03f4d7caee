"""Exports log lines as OpenTelemetry log records, so that they reach the collector with the same trace ids as spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import _logs as records
from opentelemetry._logs import SeverityNumber

_SEVERITY: Final = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
_OWN_FIELDS: Final = {"event", "level", "timestamp", "service", "trace_id", "span_id"}
"""Keys that a log record has fields for."""


def emit(line: Mapping[str, Any]) -> None:
    """Exports one line in the current trace. Costs next to nothing unless `publish_lines` was called."""
    level = str(line.get("level", "info"))
    records.get_logger("gradbus").emit(
        severity_text=level,
        severity_number=_SEVERITY.get(level, SeverityNumber.UNSPECIFIED),
        body=str(line.get("event", "")),
        attributes={key: _value(value) for key, value in line.items() if key not in _OWN_FIELDS},
    )


def publish_lines(resource: Any, exporters: list[Any]) -> Any:
    """Sends lines to `exporters` from now on, in batches from a bounded queue. Returns the SDK's provider, to be shut down at the end."""
    from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415 - loaded only where it is used
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: PLC0415

    provider = LoggerProvider(resource=resource)
    for exporter in exporters:
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    if exporters:
        records.set_logger_provider(provider)
    return provider


def _value(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)
