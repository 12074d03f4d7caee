"""What tracing costs: the demo's run with it and without it in turn, on stacks of their own.

python benchmarks/telemetry.py [--pairs 3] [--steps 150] [--modes default]

Each mode is measured beside `off` in pairs, the order changing from pair to pair. CPU seconds are those of every process of the
stack; the collector is this process and is not counted.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
from compare_trl import HERE, machine, make_base
from gradbus_run import addition_spec, measure, rates, stack
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer, add_TraceServiceServicer_to_server

COLUMNS = ("cpu_seconds_per_step", "steps_per_second")
MODES: dict[str, dict[str, str]] = {
    "off": {},
    "default": {},
    "every group": {"GRADBUS_TRACE_GROUPS": "1"},
    "no answer": {},
    "refusal": {},
}


class Collector(TraceServiceServicer):
    """Counts spans."""

    def __init__(self) -> None:
        self.spans = 0

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:  # noqa: ARG002, N802
        """See OTLP."""
        self.spans += sum(len(scope.spans) for batch in request.resource_spans for scope in batch.scope_spans)
        return ExportTraceServiceResponse()


@contextmanager
def environment(mode: str, collector: Collector) -> Iterator[None]:
    """The variables of a mode, and somebody who listens."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    if mode != "refusal":  # a server without the method says so
        add_TraceServiceServicer_to_server(collector, server)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if mode == "no answer" else server.add_insecure_port("127.0.0.1:0")
        server.start()
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_METRICS_EXPORTER": "none"}
        variables = {} if mode == "off" else endpoint | MODES[mode]
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                os.environ.pop(name, None)
            server.stop(None)


def one(mode: str, base: Path, steps: int) -> dict[str, float]:
    """A run's rates, and its spans a step."""
    collector = Collector()
    with environment(mode, collector), tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        seen = measure(folder, addition_spec(base, steps, 0, evaluate_every=steps))
    return rates(seen) | {"spans_per_step": collector.spans / steps}


def compared(mode: str, base: Path, pairs: int, steps: int) -> str:
    """A row of the table."""
    found: dict[str, list[dict[str, float]]] = {"off": [], mode: []}
    for pair in range(pairs):
        for name in list(found) if pair % 2 == 0 else reversed(list(found)):
            found[name].append(one(name, base, steps))
            print(mode, name, {column: round(value, 4) for column, value in found[name][-1].items()}, flush=True)
    cells = [mode, f"{statistics.median(one['spans_per_step'] for one in found[mode]):.1f}"]
    for column in COLUMNS:
        ratios = [on[column] / off[column] - 1 for off, on in zip(found["off"], found[mode], strict=True)]
        base_line = statistics.median(one[column] for one in found["off"])
        cells += [f"{base_line:.4f}", f"{statistics.median(ratios):+.1%} ({min(ratios):+.1%} to {max(ratios):+.1%})"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs the pairs, prints the table, writes it."""
    parser = argparse.ArgumentParser(description="What tracing costs.")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--modes", nargs="+", default=["default"], choices=[name for name in MODES if name != "off"])
    parser.add_argument("--note", default="", help="What else the machine did.")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    base = make_base(0)
    lines = ["# What tracing costs", "", f"{machine()}. The demo's run, {options.steps} steps, {options.pairs} pairs a row; medians of", ""]
    lines[2] += " the pairs' differences, and their range. " + options.note
    lines += ["| tracing | spans a step | CPU s a step without | with | steps/s without | with |", "|---|---|---|---|---|---|"]
    lines += [compared(mode, base, options.pairs, options.steps) for mode in options.modes]
    text = "\n".join([*lines, ""])
    print(f"\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "telemetry.md").write_text(text)


if __name__ == "__main__":
    main()
