"""Compares every operator of gradbus_kernels with naive torch: seconds and memory, as a table and as bars.

    OMP_NUM_THREADS=1 python benchmarks/kernels.py [--device cuda] [--quick] [--only linear_logprob sample]

Each module of `benchmarks/operators` measures one operator. Rows of operators that are not asked for stay as they were.
Writes results/kernels.json, .md and .svg; with --quick (small shapes: does it run at all?) nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import torch
from charts.kernels_chart import chart
from operators.rows import Row

RESULTS = Path(__file__).parent / "results"
HELPERS = {"rows"}


def benchmarks() -> list[str]:
    """The modules with a measurement."""
    return sorted(path.stem for path in (Path(__file__).parent / "operators").glob("*.py") if path.stem not in HELPERS)


def machine(device: str) -> str:
    """The machine and the versions of this measurement."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    threads = "" if device == "cuda" else f", {torch.get_num_threads()} threads"
    return f"{name}{threads}, Python {platform.python_version()}, torch {torch.__version__}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    features = {"amx_bf16", "avx512_bf16"} & set(" ".join(lines).split())
    return f"{name} ({', '.join(sorted(features)) or 'no bf16 instructions'}), {os.cpu_count()} cores"


def table(rows: list[Row]) -> str:
    """Markdown with each figure's ratio to naive torch."""
    lines = [
        "| operator | shape | dtype | implementation | seconds | of naive | extra MiB | of naive | |",
        "|---|---|---|---|---:|---:|---:|---:|---|",
    ]
    for _, group in groupby(rows, key=lambda row: (row.operator, row.shape, row.dtype)):
        same = list(group)
        naive = next((row for row in same if row.implementation == "naive"), None)
        lines += [_line(row, naive) for row in same]
    return "\n".join(lines)


def _line(row: Row, naive: Row | None) -> str:
    time_share = f"{row.seconds / naive.seconds:.2f}" if naive and naive.seconds > 0 else ""
    extra = "" if row.extra_bytes is None else f"{row.extra_bytes / 2**20:,.1f}"
    known = naive and naive.extra_bytes and row.extra_bytes is not None
    memory_share = f"{row.extra_bytes / naive.extra_bytes:.1%}" if known else ""
    seconds = "" if math.isnan(row.seconds) else f"{row.seconds:.3g}"
    cells = (row.operator, row.shape, row.dtype, row.implementation, seconds, time_share, extra, memory_share, row.note)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measures, prints the table and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=benchmarks(), default=benchmarks())
    options = parser.parse_args()
    measured: dict[str, list[Row]] = {}
    for name in options.only:
        measured[name] = importlib.import_module(f"operators.{name}").measure(options.device, options.quick)
        print(f"{table(measured[name])}\n", flush=True)
    if not options.quick:
        write(measured, options.device)


def write(measured: dict[str, list[Row]], device: str) -> None:
    """Writes the three files of this device and keeps older rows of other operators."""
    stem = "kernels" if device == "cpu" else f"kernels_{device}"
    path = RESULTS / f"{stem}.json"
    kept = json.loads(path.read_text())["operators"] if path.exists() else {}
    kept |= {name: {"machine": machine(device), "rows": [asdict(row) for row in rows]} for name, rows in measured.items()}
    path.write_text(json.dumps({"operators": dict(sorted(kept.items()))}, indent=1) + "\n")
    sections = [
        f"## {name}\n\n{found['machine']}\n\n{table([Row(**row) for row in found['rows']])}\n" for name, found in sorted(kept.items())
    ]
    (RESULTS / f"{stem}.md").write_text("# Kernels beside naive torch\n\n" + "\n".join(sections))
    (RESULTS / f"{stem}.svg").write_text(chart([Row(**row) for _, found in sorted(kept.items()) for row in found["rows"]]))


if __name__ == "__main__":
    main()
