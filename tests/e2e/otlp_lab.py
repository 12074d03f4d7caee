"""An OTLP/gRPC receiver that stores exports, and serves the metrics with the names of Prometheus's own OTLP receiver."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

_UNITS = {"s": "seconds", "By": "bytes", "1": "ratio"}
_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}


def family_name(name, unit, kind):
    """`UnderscoreEscapingWithSuffixes`: words joined by `_`, then the unit, then `_total` for a counter."""
    words = [word for word in re.split(r"[^a-zA-Z0-9]+", name) if word]
    suffix = _UNITS.get(unit, "")
    if suffix and suffix not in words and (unit != "1" or kind == "gauge"):
        words.append(suffix)
    if kind == "counter":
        words = [word for word in words if word != "total"] + ["total"]
    return "_".join(words)


def series_names(metric):
    """Prometheus's series names of a metric of the registry."""
    family = family_name(metric.name, metric.unit, metric.instrument)
    return {family + suffix for suffix in _SUFFIXES.get(metric.instrument, ("",))}


def label(name):
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


class Received(metrics_grpc.MetricsServiceServicer, trace_grpc.TraceServiceServicer):
    """The newest metrics of each process; `page` is the answer to a scrape."""

    def __init__(self):
        self._server = grpc.server(ThreadPoolExecutor(4))
        metrics_grpc.add_MetricsServiceServicer_to_server(self, self._server)
        trace = type("Traces", (trace_grpc.TraceServiceServicer,), {"Export": lambda *_: trace_pb.ExportTraceServiceResponse()})()
        trace_grpc.add_TraceServiceServicer_to_server(trace, self._server)
        self.address = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._newest = {}
        self._lock = threading.Lock()
        self.emitted = defaultdict(set)
        """Service to (metric, kind, unit, attribute names) of all its exports."""
        self._pages = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.pages = f"127.0.0.1:{self._pages.server_port}"

    def __enter__(self):
        self._server.start()
        threading.Thread(target=self._pages.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.stop(1).wait()
        self._pages.shutdown()

    def Export(self, request, context):  # noqa: N802 - named by gRPC
        for resource in request.resource_metrics:
            known = {one.key: one.value.string_value for one in resource.resource.attributes}
            metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
            service = known["service.name"].removeprefix("gradbus-")
            with self._lock:
                self._newest[f"gradbus/{known['service.name']}", known["service.instance.id"]] = metrics
                for metric in metrics:
                    kind, points = read(metric)
                    self.emitted[service] |= {
                        (metric.name, kind, metric.unit, frozenset(one.key for one in point.attributes)) for point in points
                    }
        return metrics_pb.ExportMetricsServiceResponse()

    def page(self):
        families = defaultdict(list)
        with self._lock:
            newest = list(self._newest.items())
        for (job, instance), metrics in newest:
            for metric in metrics:
                kind, points = read(metric)
                name = family_name(metric.name, metric.unit, kind)
                for point in points:
                    labels = {"job": job, "instance": instance}
                    labels |= {label(one.key): one.value.string_value for one in point.attributes}
                    families[kind, name].extend(samples(kind, name, labels, point))
        lines = []
        for (kind, name), found in families.items():
            shown = {"up_down_counter": "gauge"}.get(kind, kind)
            lines += [f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {shown}", *found]
        return "\n".join([*lines, "# EOF"]) + "\n"

    def _handler(self):
        received = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self):
                body = received.page().encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Page


def read(metric):
    """The kind of a metric, as in the registry, and its points."""
    match metric.WhichOneof("data"):
        case "histogram":
            return "histogram", metric.histogram.data_points
        case "gauge":
            return "gauge", metric.gauge.data_points
        case "sum":
            return ("counter" if metric.sum.is_monotonic else "up_down_counter"), metric.sum.data_points
    raise AssertionError(metric.WhichOneof("data"))


def samples(kind, name, labels, point):
    if kind != "histogram":
        value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
        return [f"{name}{braced(labels)} {value}"]
    lines, below = [], 0
    bounds = [*point.explicit_bounds, float("inf")]
    for at, (bound, count) in enumerate(zip(bounds, point.bucket_counts, strict=True)):
        below += count
        lower = bounds[at - 1] if at else float("-inf")
        inside = [one for one in point.exemplars if one.trace_id and lower < one.as_double <= bound]
        shown = f' # {{trace_id="{inside[-1].trace_id.hex()}"}} {inside[-1].as_double}' if inside else ""
        lines.append(f"{name}_bucket{braced(labels | {'le': '+Inf' if bound == float('inf') else f'{bound:g}'})} {below}{shown}")
    return [*lines, f"{name}_count{braced(labels)} {point.count}", f"{name}_sum{braced(labels)} {point.sum}"]


def braced(labels):
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
