"""The SDK is imported only when the environment asks for it."""

import json
import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from gradbus.process import ProcessSettings, run_process
from gradbus.telemetry import WireOperation, get_logger, root_span

async def main(process):
    with root_span("work", [], {"gradbus.step": 3}), WireOperation("nats", {"messaging.system": "nats"}).measured(5):
        get_logger("test").warning("in_span", run_id="run-a", groups=[1, 2])
    print("SDK" if "opentelemetry.sdk.trace" in sys.modules else "no SDK")

raise SystemExit(run_process("trainer", ProcessSettings(worker_id="worker-a"), main))
"""


def run(**environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=kept | environment, capture_output=True, text=True, timeout=60, check=True)


def test_nothing_is_configured_or_even_imported_by_default():
    assert run().stdout == "no SDK\n"


@pytest.mark.parametrize("value", ["none", ""])
def test_none_is_none(value):
    assert run(OTEL_TRACES_EXPORTER=value, OTEL_METRICS_EXPORTER=value).stdout == "no SDK\n"


def test_spans_are_exported_and_flushed_at_the_end():
    shown = run(OTEL_TRACES_EXPORTER="console").stdout
    assert '"name": "work"' in shown
    assert '"service.name": "gradbus-trainer"' in shown
    assert '"service.instance.id": "worker-a"' in shown
    assert "gradbus.wire.duration" not in shown, "metrics were not asked for"


def test_metrics_are_exported_and_flushed_at_the_end():
    shown = run(OTEL_METRICS_EXPORTER="console", OTEL_SERVICE_NAME="mine").stdout
    for name in ("gradbus.wire.items", "messaging.client.operation.duration", "gradbus.wire.payload", '"service.name": "mine"'):
        assert name in shown
    assert '"name": "work"' not in shown


def test_log_lines_are_exported_with_their_fields_and_their_trace():
    done = run(OTEL_LOGS_EXPORTER="console", OTEL_TRACES_EXPORTER="console")
    record = next(json.loads(found) for found in re.findall(r"^\{\n.*?^\}$", done.stdout, re.M | re.S) if '"body": "in_span"' in found)
    line = next(json.loads(text) for text in done.stderr.splitlines() if '"in_span"' in text)
    assert record["severity_text"] == "warning"
    assert record["attributes"] == {"module": "test", "run_id": "run-a", "groups": "[1, 2]"}
    assert record["trace_id"].removeprefix("0x") == line["trace_id"], "from a log to its trace and back"
    assert record["resource"]["attributes"]["service.instance.id"] == "worker-a"


def test_an_exporter_that_is_not_installed_is_said_and_the_service_runs():
    done = run(OTEL_TRACES_EXPORTER="of-nobody")
    assert done.stdout == "no SDK\n"
    assert '"event": "exporter_not_installed"' in done.stderr
    assert "of-nobody" in done.stderr


@pytest.mark.parametrize(("protocol", "package"), [("grpc", "otlp_proto_grpc"), ("http/protobuf", "otlp_proto_http")])
def test_an_endpoint_asks_for_otlp_by_the_standard_protocol(protocol, package):
    done = run(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    assert package in done.stderr or "no SDK" not in done.stdout, "either the package is installed, or it is named"
