"""Is memory flat? Resident memory of every process over a run of minutes, and its slope with a confidence interval."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradbus.client import document
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.outcome import Finding, Outcome
from gradbus_load.rig import Bench, Json, Rig

_MIB = 1 << 20
_SUBMITTED_STEPS = 1_000_000
_END_SECONDS = 60.0
_RESAMPLES = 2000
_BLOCKS = 12
_LONG_MINUTES = 30.0
"""A shorter run is only warm-up, without a verdict."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the measurement."""

    minutes: float = 1.5
    every_seconds: float = 1.0
    warm_up: float = 0.4
    """Fraction of the time left out as warm-up: caches fill, allocators reach their size."""
    tolerance_mib_an_hour: float = 64.0
    """A process's memory is flat when the interval of its slope reaches below this."""
    checkpoint_every: int = 20
    engine: EngineTiming = field(default_factory=lambda: EngineTiming(step_seconds=0.0005, median_tokens=16.0))
    learner: LearnerTiming = field(default_factory=lambda: LearnerTiming(step_seconds=0.05))

    @property
    def rig(self) -> Rig:
        """The measured stack."""
        return Rig(self.engine, self.learner)


async def measure(settings: Settings, bench: Bench) -> Outcome:
    """A run that trains until the time is over and is then cancelled."""
    run_id = await bench.submit(_body(bench, settings))
    await bench.trains(run_id, _END_SECONDS)
    seconds, sizes = await _sampled(bench, settings)
    run = document(await asyncio.to_thread(bench.client.run, run_id))
    await asyncio.to_thread(bench.client.cancel, run_id)
    return _outcome(settings, seconds, sizes, run["progress"]["step"])


def _body(bench: Bench, settings: Settings) -> Json:
    return bench.spec(
        "memory",
        rollout={"slots": 64, "group_size": 8, "max_new_tokens": 256},
        schedule={"max_staleness": 1, "groups_per_step": 16, "steps": _SUBMITTED_STEPS},
        checkpoint={"every": settings.checkpoint_every},
        algorithm={"filter": "none"},
    )


async def _sampled(bench: Bench, settings: Settings) -> tuple[list[float], dict[str, list[int]]]:
    began = time.monotonic()
    seconds: list[float] = []
    sizes: dict[str, list[int]] = {name: [] for name in bench.pids()}
    while (now := time.monotonic() - began) < 60 * settings.minutes:
        found = bench.usage()
        seconds.append(now)
        for name, values in sizes.items():
            values.append(found[name].rss_bytes if name in found else values[-1])
        await asyncio.sleep(settings.every_seconds)
    return seconds, sizes


def slope(seconds: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Change a second by least squares, and its 95 % interval.

    Neighbouring samples depend on each other: residuals are drawn again in blocks (Kunsch 1989, moving block bootstrap).
    """
    centred = seconds - seconds.mean()
    weights = centred / (centred @ centred)
    fitted = float(weights @ values)
    residuals = values - values.mean() - fitted * centred
    length = max(1, len(values) // _BLOCKS)
    draw = np.random.default_rng(0)
    starts = draw.integers(0, len(values) - length + 1, (_RESAMPLES, -(-len(values) // length)))
    drawn = residuals[(starts[:, :, None] + np.arange(length)).reshape(_RESAMPLES, -1)[:, : len(values)]]
    low, high = np.percentile(fitted + (drawn - drawn.mean(axis=1, keepdims=True)) @ weights, [2.5, 97.5])
    return fitted, float(low), float(high)


def _outcome(settings: Settings, seconds: list[float], sizes: dict[str, list[int]], steps: int) -> Outcome:
    first = int(settings.warm_up * len(seconds))
    times = np.array(seconds[first:])
    hour = 3600 / _MIB
    rows, worst, total = [], -np.inf, 0.0
    for name, values in sorted(sizes.items(), key=lambda item: -item[1][-1]):
        fitted, low, high = (hour * part for part in slope(times, np.array(values[first:], dtype=np.float64)))
        worst, total = max(worst, low), total + values[-1] / _MIB
        flat = "flat" if low <= settings.tolerance_mib_an_hour else "grows"
        rows.append((name, f"{values[-1] / _MIB:.0f}", f"{fitted:+.1f}", f"{low:+.1f} to {high:+.1f}", flat))
    floor = settings.tolerance_mib_an_hour if settings.minutes >= _LONG_MINUTES else None
    findings = [
        Finding("memory, all processes", total, "MiB"),
        Finding("fastest certain growth of a process", float(worst), "MiB/h", floor, "less"),
        Finding("steps in that time", steps, "steps"),
    ]
    data = {"settings": asdict(settings), "seconds": [round(second, 1) for second in seconds], "rss_bytes": sizes, "steps": steps}
    return Outcome("memory", findings, ("process", "MiB", "MiB/h", "95 %", "says"), rows, data, plot)


def plot(data: Any, axes: Any) -> None:
    """Memory of each process over time."""
    for name, values in data["rss_bytes"].items():
        axes.plot(data["seconds"], [value / _MIB for value in values], label=name)
    axes.axvline(data["settings"]["warm_up"] * data["seconds"][-1], color="grey", linestyle=":")
    axes.set_xlabel("seconds")
    axes.set_ylabel("resident MiB")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
