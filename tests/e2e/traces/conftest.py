"""A stack that exports its spans to a collector in this process, over OTLP and a real gRPC server."""

import threading
import time
from concurrent import futures
from dataclasses import dataclass, field

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer, add_TraceServiceServicer_to_server

WAIT_SECONDS = 240.0


@dataclass(frozen=True)
class Received:
    """One span."""

    name: str
    service: str
    instance: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    attributes: dict
    links: list
    error: str

    @classmethod
    def of(cls, resource, span):
        error = (span.status.message or "error") if span.status.code == 2 else ""
        links = [link.trace_id.hex() for link in span.links]
        ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        times = span.start_time_unix_nano, span.end_time_unix_nano
        return cls(
            span.name, resource["service.name"], resource["service.instance.id"], *ids, *times, values(span.attributes), links, error
        )


def values(attributes):
    return {pair.key: value(pair.value) for pair in attributes}


def value(given):
    if given.HasField("array_value"):
        return [value(one) for one in given.array_value.values]
    return getattr(given, given.WhichOneof("value"))


@dataclass
class Collector(TraceServiceServicer):
    """What was received. Spans come in the order of their ends at best, and those of several processes in any."""

    spans: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(self, request, context):  # noqa: N802 - named by OTLP
        found = []
        for batch in request.resource_spans:
            resource = values(batch.resource.attributes)
            found += [Received.of(resource, span) for scope in batch.scope_spans for span in scope.spans]
        with self.lock:
            self.spans += found
        return ExportTraceServiceResponse()

    def of_run(self, run_id):
        """The spans of every trace that the run is named in."""
        with self.lock:
            traces = {span.trace for span in self.spans if span.attributes.get("gradbus.run.id") == run_id}
            return [span for span in self.spans if span.trace in traces]

    def until(self, condition):
        """What `condition` gives, once it is true."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, sorted({span.name for span in self.spans})
            time.sleep(0.1)
        return found

    def gives_time(self, condition, seconds=60.0):
        """Returns once `condition` is true, or after so long: a test that needs it says better what is missing."""
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.1)


@pytest.fixture(scope="module")
def collector():
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(collector, server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector
    server.stop(None)


@pytest.fixture(scope="module")
def traced(stack, lab_on, collector):
    """A lab whose runs are traced whole."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "GRADBUS_TRACE_GROUPS": "1",
    }
    with stack("--rollouts", "2", **environment) as state, lab_on(state) as lab:
        yield lab
