"""Runs a spec on a real embedded stack, through REST, and measures it from outside."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sampled_stacks import service_of

from gradbus.client import Client, document, load_spec
from gradbus.embedded import StackConfig, StateFolder
from gradbus.embedded.supervisor import start_detached

ADDITION = Path(__file__).resolve().parents[1] / "examples" / "addition"
Json = dict[str, Any]


@dataclass
class Measured:
    """Measurements of one run."""

    run: Json
    times: list[float] = field(default_factory=list)
    """Of the measurements, twice a second, in seconds since 1970."""
    cpu: list[dict[str, float]] = field(default_factory=list)
    """CPU seconds by service, at `times`."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Peak resident memory by service, in bytes: the sum of its processes' own peaks."""
    events: list[Json] = field(default_factory=list)

    def of_type(self, kind: str) -> list[Json]:
        """The events of a type, oldest first."""
        return [event for event in self.events if event["type"] == kind]

    def cpu_between(self, start: float, end: float) -> dict[str, float]:
        """CPU seconds by service between two times; values between measurements are interpolated."""
        spent = {}
        for name in self.cpu[-1]:
            at = np.interp([start, end], self.times, [seconds.get(name, 0.0) for seconds in self.cpu])
            spent[name] = float(at[1] - at[0])
        return spent

    def look(self, folder: StateFolder) -> None:
        """Measures now."""
        self.times.append(time.time())
        cpu, peaks = usage(folder.read("stack.json")["pid"])
        self.cpu.append(cpu)
        self.peaks |= {name: max(peak, self.peaks.get(name, 0)) for name, peak in peaks.items()}


def addition_spec(base: Path, steps: int, seed: int, evaluate_every: int, dtype: str = "fp32") -> Json:
    """addition.toml with another base folder, number of steps, seed and `trainer.dtype`."""
    changes = {
        "seed": seed,
        "model.path": base / "model",
        "data.train": base / "train.jsonl",
        "data.eval": base / "eval.jsonl",
        "schedule.steps": steps,
        "evaluation.every": evaluate_every,
        "trainer.dtype": dtype,
    }
    return load_spec(ADDITION / "addition.toml", [f"{name}={value}" for name, value in changes.items()])


@contextmanager
def stack(state: Path) -> Iterator[StateFolder]:
    """Runs an embedded stack inside the block."""
    start_detached(StackConfig(state, port=0))
    folder = StateFolder(state)
    try:
        yield folder
    finally:
        if owner := folder.owner():
            os.kill(owner, signal.SIGTERM)
        while folder.owner():
            time.sleep(0.1)


def measure(folder: StateFolder, spec: Json, watch: Callable[[Json], None] = lambda _: None) -> Measured:
    """Submits the spec over REST and measures until the run ends; `watch` sees the run twice a second."""
    with Client.discover(folder.root) as client:
        seen = Measured(document(client.submit(spec, ADDITION)))
        while seen.run["finished_at"] is None:
            seen.look(folder)
            time.sleep(0.5)
            seen.run = document(client.run(seen.run["id"]))
            watch(seen.run)
        seen.look(folder)
        seen.events = list(events_of(client, seen.run["id"]))
    if seen.run["state"] != "succeeded":
        raise RuntimeError(f"run {seen.run['id']} ended as {seen.run['state']}: {seen.run['reason']}")
    return seen


def rates(seen: Measured) -> dict[str, float]:
    """Steps per second and CPU seconds per step, without the first fifth of the steps (warm-up)."""
    times = step_ends(seen)
    warm = len(times) // 5
    counted = len(times) - 1 - warm
    return {
        "steps_per_second": counted / (times[-1] - times[warm]),
        "cpu_seconds_per_step": sum(seen.cpu_between(times[warm], times[-1]).values()) / counted,
        "wall_seconds": times[-1] - times[0],
        "cpu_seconds": sum(seen.cpu_between(seen.times[0], seen.times[-1]).values()),
    }


def step_ends(seen: Measured) -> list[float]:
    """When each optimiser step ended, in seconds since 1970."""
    return [datetime.fromisoformat(event["created_at"]).timestamp() for event in seen.of_type("metrics")]


def events_of(client: Client, run_id: str) -> Iterator[Json]:
    """A run's events, oldest first."""
    after: str | None = "0"
    while after is not None:
        page = document(client.events_page(run_id, int(after), limit=1000))
        yield from page["data"]
        after = page["next_after"]


def services(supervisor: int) -> dict[int, str]:
    """The service of each process of the stack; a helper process belongs to the service that started it."""
    names: dict[int, str] = {supervisor: "supervisor"}
    for child in psutil.Process(supervisor).children(recursive=True):  # parents come first
        try:
            names[child.pid] = service_of(" ".join(child.cmdline())) or names.get(child.ppid(), "supervisor")
        except psutil.NoSuchProcess:
            continue
    return names


def usage(supervisor: int) -> tuple[Counter[str], Counter[str]]:
    """CPU seconds, including those of ended processes, and peak resident memory in bytes; both by service."""
    cpu, peaks = Counter[str](), Counter[str]()
    for pid, name in services(supervisor).items():
        try:
            process = psutil.Process(pid)
            spent, peak = sum(process.cpu_times()[:4]), _peak(process)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue  # reaped by its parent, so its time is counted there
        cpu[name] += spent
        peaks[name] += peak
    return cpu, peaks


def _peak(process: psutil.Process) -> int:
    """Peak resident memory in bytes; 0 for a process that has ended."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
