"""Telemetry never hurts: a run on a stack whose collector takes every connection and answers nothing."""

import socket
from contextlib import closing

import pytest


@pytest.fixture
def silent():
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow  # tests/integration/telemetry/test_collectors.py has such a collector beside one process
def test_a_run_ends_with_the_same_weights_and_the_stack_stops(silent, stack, lab_on, lab, spec):
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": silent,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_BSP_MAX_QUEUE_SIZE": "32",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "GRADBUS_TRACE_GROUPS": "1",
    }
    wanted = spec(name="silence")
    with stack(**settings) as state, lab_on(state) as unheard:
        digest = unheard.final_digest(unheard.train(wanted))
    assert digest == lab.final_digest(lab.train(wanted))
