"""Log lines as OpenTelemetry's log records, so that they reach the same place as traces, with the same ids."""

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
_ELSEWHERE: Final = {"event", "level", "timestamp", "service", "trace_id", "span_id"}
"""What a record says by itself."""


def emit(line: Mapping[str, Any]) -> None:
    """One line, in the trace that is current. Costs next to nothing unless `publish_lines` was called."""
    level = str(line.get("level", "info"))
    records.get_logger("gradbus").emit(
        severity_text=level,
        severity_number=_SEVERITY.get(level, SeverityNumber.UNSPECIFIED),
        body=str(line.get("event", "")),
        attributes={key: _value(value) for key, value in line.items() if key not in _ELSEWHERE},
    )


def publish_lines(resource: Any, exporters: list[Any]) -> Any:
    """From now on lines leave by `exporters`, in batches from a bounded queue; the SDK's provider, to be shut down at the end."""
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
