"""Types and measurement of all operators' benchmarks: each implementation runs in a separate process, in turn.

A benchmark is a module of this folder with `measure(device, quick) -> list[Row]`, and for `compare` also with
`prepare(device, **case)`: it makes the inputs and returns the call to measure, which returns its outputs and gradients.
"""

from __future__ import annotations

import gc
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent.parent
Work = Callable[[], Iterable[torch.Tensor | None]]
"""One call of an operator; returns its outputs and gradients."""


@dataclass(frozen=True)
class Row:
    """One implementation at one shape."""

    operator: str
    shape: str
    """As `N=4,096 H=896`: sizes by name."""
    dtype: str
    implementation: str
    """"naive" is the baseline of the others."""
    seconds: float
    """Median. On a CPU the process's CPU-seconds, over all its threads; on a GPU between events."""
    extra_bytes: int | None
    """Peak memory beyond inputs, outputs and gradients; None if not measured."""
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Implementations of one operator at one shape."""

    module: str
    """Of this folder; its `prepare` makes the work."""
    operator: str
    shape: str
    dtype: str
    case: Mapping[str, Any]
    """Further arguments of `prepare`, as JSON."""
    implementations: Sequence[str]
    rounds: int = 3
    repeats: int = 1
    """Timed calls in each process, after one that is not timed; with 1 the first call is timed."""
    note: str = ""


def compare(comparison: Comparison, device: str) -> list[Row]:
    """Runs all implementations in turn, round by round. One that fails (e.g. out of memory) has NaN seconds and the reason in its note."""
    seconds: dict[str, list[float]] = {name: [] for name in comparison.implementations}
    extras: dict[str, list[int]] = {name: [] for name in comparison.implementations}
    notes = dict.fromkeys(comparison.implementations, comparison.note)
    for _ in range(comparison.rounds):
        for name in comparison.implementations:
            found = _in_process(comparison, name, device)
            if "error" in found:
                notes[name] = found["error"]
                continue
            seconds[name] += found["seconds"]
            extras[name].append(found["extra_bytes"])
    return [
        Row(
            comparison.operator,
            comparison.shape,
            comparison.dtype,
            name,
            statistics.median(seconds[name]) if seconds[name] else float("nan"),
            max(extras[name]) if extras[name] else None,
            notes[name],
        )
        for name in comparison.implementations
    ]


def _in_process(comparison: Comparison, implementation: str, device: str) -> dict[str, Any]:
    case = {**comparison.case, "device": device, "dtype": comparison.dtype, "implementation": implementation}
    order = json.dumps({"module": comparison.module, "repeats": comparison.repeats, "device": device, "case": case})
    done = subprocess.run([sys.executable, "-m", "operators.rows", order], cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": f"failed: {lines[-1][:160]}" if lines else f"killed ({done.returncode})"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _measured(order: Mapping[str, Any]) -> dict[str, Any]:
    """Measures one implementation, in the child process."""
    work: Work = importlib.import_module(f"operators.{order['module']}").prepare(**order["case"])
    gc.collect()
    memory = _GpuMemory() if order["device"] == "cuda" else _CpuMemory()
    kept = sum(tensor.nbytes for tensor in work() if tensor is not None) if order["repeats"] > 1 else None
    seconds = []
    for _ in range(order["repeats"]):
        stop = _gpu_clock() if order["device"] == "cuda" else _cpu_clock()
        left = work()
        seconds.append(stop())
        kept = sum(tensor.nbytes for tensor in left if tensor is not None)
        del left
    return {"seconds": seconds, "extra_bytes": max(0, memory.peak() - (kept or 0))}


def _cpu_clock() -> Callable[[], float]:
    begin = time.process_time()
    return lambda: time.process_time() - begin


def _gpu_clock() -> Callable[[], float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()

    def stop() -> float:
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return stop


class _CpuMemory:
    """Resident memory since it was made; Linux."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
        self._before = self._resident("VmRSS")

    def peak(self) -> int:
        return self._resident("VmHWM") - self._before

    @staticmethod
    def _resident(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


class _GpuMemory:
    """Of torch's allocator."""

    def __init__(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self._before


if __name__ == "__main__":
    print(json.dumps(_measured(json.loads(sys.argv[1]))))
