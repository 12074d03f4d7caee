"""Telemetry never affects the work: whatever the collector does, memory is bounded and dropped spans are counted."""

import json
import os
import socket
import subprocess
import sys
from concurrent import futures
from contextlib import closing, contextmanager

import grpc
import pytest

SPANS, QUEUE, BATCH = 4000, 512, 16  # sending the queue in batches of ten seconds each would take minutes
PROGRAM = f"""
import gc
from gradbus.process import ProcessSettings, run_process
from gradbus.telemetry import TimedSpan, group_trace, record

async def main(process):
    from opentelemetry.sdk.trace import ReadableSpan
    for index in range({SPANS}):
        record(TimedSpan("group", 1, 2, own=group_trace("run", index)))
    gc.collect()
    held = sum(isinstance(one, ReadableSpan) for one in gc.get_objects())
    print("held", held, flush=True)

raise SystemExit(run_process("conductor", ProcessSettings(worker_id="worker-a"), main))
"""


@contextmanager
def absent():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    yield port


@contextmanager
def hanging():
    """Accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


@contextmanager
def refusing():
    class Refusal(grpc.GenericRpcHandler):
        def service(self, details):
            def refuse(_request, context):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Refusal()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


def run(port):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_METRICS_EXPORTER": "console",
        "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(BATCH),
    }
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def counted(shown, name):
    """Points of a counter by error type."""
    resources = json.loads(shown[shown.index("{") :])["resource_metrics"]
    metrics = [metric for resource in resources for scope in resource["scope_metrics"] for metric in scope["metrics"]]
    return {
        point["attributes"].get("error.type", ""): point["value"]
        for metric in metrics
        if metric["name"] == name
        for point in metric["data"]["data_points"]
    }


@pytest.mark.parametrize("collector", [absent, hanging, refusing])
def test_a_collector_that_fails_costs_nothing_but_its_spans(collector):
    with collector() as port:
        done = run(port)
    assert done.returncode == 0, done.stderr
    assert '"event": "stopped"' in done.stderr
    kept = int(done.stdout.split()[1])
    assert kept <= QUEUE + 4 * BATCH, "more is kept than the queue and what is on its way"
    handled = counted(done.stdout, "otel.sdk.processor.span.processed")
    assert sum(handled.values()) <= SPANS
    refused = counted(done.stdout, "otel.sdk.exporter.span.exported")
    assert "" not in refused
    assert handled.get("queue_full", 0) + sum(refused.values()) >= SPANS - QUEUE - 4 * BATCH, "what is dropped is counted"
    if collector is refusing:
        assert sum(refused.values()) > 0
