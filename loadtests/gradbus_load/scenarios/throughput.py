"""How many samples per second become durable? Groups of 64 as fast as the control plane accepts them.

The stubs take no time, so what limits is the product: a sample counts when its group is in the log, which the buffer has
synced to disk before it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gradbus_load.admissions import Admissions, watched
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.outcome import Finding, Outcome, percentile
from gradbus_load.processes import cpu_seconds
from gradbus_load.rig import Bench, Rig, rounded

_MOST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the measurement."""

    steps: int = 48
    groups: int = 32
    group_size: int = 64
    max_staleness: int = 4
    most_tokens: int = 640
    floor: float = 3000.0
    engine: EngineTiming = field(default_factory=lambda: EngineTiming(step_seconds=0.0, median_tokens=32.0))

    @property
    def rig(self) -> Rig:
        """The measured stack."""
        return Rig(self.engine, LearnerTiming())

    @property
    def samples(self) -> int:
        """Admissions of the whole run."""
        return self.steps * self.groups * self.group_size


async def measure(settings: Settings, bench: Bench) -> Outcome:
    """One run, observed from outside."""
    async with bench.clients() as (bus, buffer):
        warm = bench.spec("warm-up", **_sections(settings, 3))
        await bench.ends(await bench.submit(warm), _MOST_SECONDS)
        run_id = await bench.submit(bench.spec("throughput", **_sections(settings, settings.steps)))
        async with watched(bus, buffer, run_id) as seen:
            before = bench.usage()
            await bench.ends(run_id, _MOST_SECONDS)
            spent = cpu_seconds(before, bench.usage())
        steps = await bench.steps(run_id)
    return _outcome(settings, seen, spent, steps)


def _sections(settings: Settings, steps: int) -> dict[str, dict[str, Any]]:
    return {
        "rollout": {"slots": 1024, "group_size": settings.group_size, "max_new_tokens": settings.most_tokens},
        "schedule": {"max_staleness": settings.max_staleness, "groups_per_step": settings.groups, "steps": steps},
        "checkpoint": {"every": max(1, steps // 3)},
    }


def _outcome(settings: Settings, seen: Admissions, spent: dict[str, float], steps: Sequence[dict[str, Any]]) -> Outcome:
    waits = seen.latencies(settings.groups)
    rate = seen.rate() * settings.group_size
    kilo = settings.samples / 1000
    findings = [
        Finding(f"durable samples in groups of {settings.group_size}", rate, "samples/s", settings.floor),
        Finding("admission latency p50", 1000 * percentile(waits, 0.5), "ms"),
        Finding("admission latency p99", 1000 * percentile(waits, 0.99), "ms"),
        Finding("CPU of all processes", sum(spent.values()) / kilo, "s per 1000 samples"),
    ]
    rows = [(name, f"{seconds:.2f}", f"{seconds / kilo * 1000:.0f}") for name, seconds in spent.items()]
    data = {
        "settings": asdict(settings),
        "cpu_seconds": rounded(spent),
        "record_bytes": seen.record_bytes,
        "admitted": [round(moment - min(seen.admitted.values()), 3) for moment in sorted(seen.admitted.values())],
        "latency_ms": [round(1000 * wait, 1) for wait in waits],
        "steps": [rounded(step["seconds"]) for step in steps],
    }
    return Outcome("throughput", findings, ("process", "CPU s", "CPU µs a sample"), rows, data, plot)


def plot(data: Any, axes: Any) -> None:
    """Samples admitted over time, beside the floor."""
    size, moments = data["settings"]["group_size"], data["admitted"]
    axes.plot(moments, [size * (n + 1) for n in range(len(moments))], label="admitted")
    axes.plot([0, moments[-1]], [0, data["settings"]["floor"] * moments[-1]], linestyle="--", label=f"{data['settings']['floor']:.0f}/s")
    axes.set_xlabel("seconds")
    axes.set_ylabel("samples in the log")
    axes.legend()
