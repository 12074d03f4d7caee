"""Measures the cost of tracing: the demo's run with and without it, side by side on separate stacks.

python benchmarks/telemetry.py [--pairs 5] [--steps 100] [--modes default]

The two runs of a pair go on at the same time, so that whatever else the machine does slows both; which starts first changes from
pair to pair. CPU seconds are those of every process of the stack; the collector is this process and is not counted.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
from compare_trl import HERE, machine, make_base
from gradbus_run import addition_spec, measure, rates, stack
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer, add_TraceServiceServicer_to_server

from gradbus.embedded import StateFolder

COLUMNS = ("cpu_seconds_per_step", "steps_per_second")
MODES: dict[str, dict[str, str]] = {
    "off": {},
    "off again": {"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"},
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
def listening(mode: str, collector: Collector) -> Iterator[dict[str, str]]:
    """The environment of a mode, with a collector that accepts its spans."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    if mode != "refusal":  # a server without the method refuses the export
        add_TraceServiceServicer_to_server(collector, server)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if mode == "no answer" else server.add_insecure_port("127.0.0.1:0")
        server.start()
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_METRICS_EXPORTER": "none"}
        yield {} if mode == "off" else endpoint | MODES[mode]
        server.stop(None)


@contextmanager
def started(mode: str, collector: Collector) -> Iterator[StateFolder]:
    """Runs a stack in a mode."""
    with listening(mode, collector) as variables, tempfile.TemporaryDirectory() as state, ExitStack() as owned:
        os.environ.update(variables)
        try:
            folder = owned.enter_context(stack(Path(state)))
        finally:
            for name in variables:
                del os.environ[name]
        yield folder


def pair(modes: Sequence[str], base: Path, steps: int) -> dict[str, dict[str, float]]:
    """Rates and spans per step of each mode, from runs side by side."""
    collectors = {mode: Collector() for mode in modes}
    with ExitStack() as owned, futures.ThreadPoolExecutor(len(modes)) as pool:
        folders = {mode: owned.enter_context(started(mode, collectors[mode])) for mode in modes}
        spec = addition_spec(base, steps, 0, evaluate_every=steps)
        seen = dict(zip(modes, pool.map(lambda mode: measure(folders[mode], spec), modes), strict=True))
    return {mode: rates(run) | {"spans_per_step": collectors[mode].spans / steps} for mode, run in seen.items()}


def compared(mode: str, base: Path, pairs: int, steps: int) -> str:
    """A row of the table."""
    found = [pair(("off", mode) if number % 2 == 0 else (mode, "off"), base, steps) for number in range(pairs)]
    cells = [mode, f"{statistics.median(one[mode]['spans_per_step'] for one in found):.1f}"]
    for column in COLUMNS:
        ratios = [one[mode][column] / one["off"][column] - 1 for one in found]
        print(mode, column, [f"{ratio:+.1%}" for ratio in ratios], flush=True)
        base_line = statistics.median(one["off"][column] for one in found)
        cells += [f"{base_line:.4f}", f"{statistics.median(ratios):+.1%} ({min(ratios):+.1%} to {max(ratios):+.1%})"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs the pairs, prints the table and writes it."""
    parser = argparse.ArgumentParser(description="What tracing costs.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--modes", nargs="+", default=["default"], choices=[name for name in MODES if name != "off"])
    parser.add_argument("--note", default="", help="What else the machine did.")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    base = make_base(0)
    lines = [
        "# What tracing costs",
        "",
        f"{machine()}. The demo's run, {options.steps} steps, {options.pairs} pairs a row, the two side by side;",
        "",
    ]
    lines[2] += " medians of the pairs' differences, and their range. " + options.note
    lines += ["| tracing | spans a step | CPU s a step without | with | steps/s without | with |", "|---|---|---|---|---|---|"]
    lines += [compared(mode, base, options.pairs, options.steps) for mode in options.modes]
    text = "\n".join([*lines, ""])
    print(f"\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "telemetry.md").write_text(text)


if __name__ == "__main__":
    main()
