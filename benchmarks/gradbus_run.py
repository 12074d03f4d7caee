"""Runs the demo's spec on a real embedded stack, through REST, and measures it from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from gradbus.client import Client, load_spec
from gradbus.embedded import StackConfig, StateFolder
from gradbus.embedded.supervisor import start_detached

ADDITION = Path(__file__).resolve().parents[1] / "examples" / "addition"
Json = dict[str, Any]


@dataclass
class Measured:
    """Measurements of one run."""

    run: Json
    samples: list[tuple[float, int]] = field(default_factory=list)
    """(CPU seconds of all processes of the stack, step), once a second."""
    events: list[Json] = field(default_factory=list)

    def of_type(self, kind: str) -> list[Json]:
        """The events of a type, oldest first."""
        return [event for event in self.events if event["type"] == kind]


def addition_spec(base: Path, steps: int, seed: int, evaluate_every: int) -> Json:
    """addition.toml with another base folder, number of steps and seed."""
    changes = {
        "seed": seed,
        "model.path": base / "model",
        "data.train": base / "train.jsonl",
        "data.eval": base / "eval.jsonl",
        "schedule.steps": steps,
        "evaluation.every": evaluate_every,
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


def measure(folder: StateFolder, spec: Json) -> Measured:
    """Submits the spec over REST and measures until the run ends."""
    with Client.discover(folder.root) as client:
        seen = Measured(client.submit(spec, ADDITION))
        while seen.run["finished_at"] is None:
            time.sleep(1.0)
            seen.run = client.run(seen.run["id"])
            seen.samples.append((_cpu_seconds(folder), seen.run["progress"]["step"]))
        seen.events = list(_events(client, seen.run["id"]))
    if seen.run["state"] != "succeeded":
        raise RuntimeError(f"run {seen.run['id']} ended as {seen.run['state']}: {seen.run['reason']}")
    return seen


def rates(seen: Measured) -> dict[str, float]:
    """Steps per second and CPU seconds per step, without the first fifth of the steps (warm-up)."""
    times = [datetime.fromisoformat(event["created_at"]).timestamp() for event in seen.of_type("metrics")]
    warm = len(times) // 5
    counted = [sample for sample in seen.samples if warm <= sample[1] < len(times)]
    (first_cpu, first_step), (last_cpu, last_step) = counted[0], counted[-1]
    return {
        "steps_per_second": (len(times) - 1 - warm) / (times[-1] - times[warm]),
        "cpu_seconds_per_step": (last_cpu - first_cpu) / (last_step - first_step),
        "wall_seconds": times[-1] - times[0],
        "cpu_seconds": seen.samples[-1][0] - seen.samples[0][0],
    }


def _events(client: Client, run_id: str) -> Iterator[Json]:
    after: str | None = "0"
    while after is not None:
        page = client.events(run_id, int(after), limit=1000)
        yield from page["data"]
        after = page["next_after"]


def _cpu_seconds(folder: StateFolder) -> float:
    """CPU seconds of the supervisor and all its descendants, including ended ones."""
    supervisor = psutil.Process(folder.read("stack.json")["pid"])
    total = 0.0
    for process in (supervisor, *supervisor.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue  # reaped by its parent, so its time is counted there
    return total
