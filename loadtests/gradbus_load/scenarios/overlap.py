"""Does generation overlap training? Compares step time with an ideal loop, by schedule and staleness.

T_gen    what the engine takes for a step's samples, from its calibration: in `fixed_lag` from the first token to the
         last, for the next version begins with empty slots; in `free`, unless on-policy, with slots always full
T_train  what the learner takes for a step, from its calibration
bound    (T_gen + T_train) / max(T_gen, T_train): the speed-up of perfect overlap over doing one after the other
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gradbus.ids import sample_seed
from gradbus.plan.loop import makespan
from gradbus_load.calibration import EngineTiming, LearnerTiming, kept_full, response_tokens
from gradbus_load.outcome import Finding, Outcome
from gradbus_load.rig import Bench, Rig

Mode = Literal["fixed_lag", "free"]
_SECONDS_A_STEP = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the measurement."""

    modes: tuple[Mode, ...] = ("fixed_lag", "free")
    staleness: tuple[int, ...] = (0, 1, 2)
    steps: int = 14
    warm_up: int = 3
    """Number of first steps left out."""
    groups: int = 32
    group_size: int = 16
    slots: int = 32
    most_tokens: int = 760
    engine: EngineTiming = field(default_factory=lambda: EngineTiming(step_seconds=0.001, prefill_seconds=0.0001, median_tokens=38.0))
    learner: LearnerTiming = field(default_factory=lambda: LearnerTiming(step_seconds=1.0))

    @property
    def rig(self) -> Rig:
        """The measured stack."""
        return Rig(self.engine, self.learner)

    def generation(self, mode: Mode, lag: int) -> float:
        """T_gen in seconds: mean over the measured steps, for the same seeds."""
        steps = [self._seconds(step) for step in range(self.warm_up, self.steps)]
        alone = makespan if mode == "fixed_lag" or lag == 0 else kept_full
        return statistics.fmean(alone(seconds, self.slots) for seconds in steps)

    def _seconds(self, step: int) -> list[float]:
        indexes = range(step * self.groups, (step + 1) * self.groups)
        seeds = [sample_seed(0, "train", index, n) for index in indexes for n in range(self.group_size)]
        lengths = [response_tokens(seed, self.engine.median_tokens, self.most_tokens) for seed in seeds]
        return [self.engine.seconds(_PROMPT_TOKENS, length) for length in lengths]


_PROMPT_TOKENS = 30


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    mode: Mode
    staleness: int
    generate: float
    train: float
    step: float
    """Mean seconds of the measured steps."""
    mean_staleness: float

    @property
    def ideal(self) -> float:
        """Seconds of an ideal step."""
        return self.generate + self.train if self.staleness == 0 else max(self.generate, self.train)

    @property
    def bound(self) -> float:
        """Speed-up of perfect overlap."""
        return (self.generate + self.train) / self.ideal

    @property
    def speed_up(self) -> float:
        """Speed-up over a sequential loop."""
        return (self.generate + self.train) / self.step

    @property
    def share(self) -> float:
        """Fraction of the bound that was reached."""
        return self.ideal / self.step


async def measure(settings: Settings, bench: Bench) -> Outcome:
    """Runs of every schedule and staleness, one after the other."""
    rows = [await _run(bench, settings, mode, lag) for mode in settings.modes for lag in settings.staleness]
    last = max(settings.staleness)
    findings = [
        Finding(f"overlap achieved, {row.mode}, staleness {last}", 100 * row.share, "% of the bound", 95.0 if last >= 2 else None)
        for row in rows
        if row.staleness == last
    ]
    header = ("schedule", "staleness", "T_gen s", "T_train s", "bound x", "step s", "achieved x", "% of bound", "mean staleness")
    return Outcome("overlap", findings, header, [_line(row) for row in rows], {"settings": asdict(settings), "rows": _json(rows)}, plot)


async def _run(bench: Bench, settings: Settings, mode: Mode, lag: int) -> Row:
    body = bench.spec(
        f"overlap-{mode.replace('_', '-')}-{lag}",
        rollout={"slots": settings.slots, "group_size": settings.group_size, "max_new_tokens": settings.most_tokens},
        schedule={"mode": mode, "max_staleness": lag, "groups_per_step": settings.groups, "steps": settings.steps},
        checkpoint={"every": settings.steps},
        algorithm={"filter": "none"},
    )
    run_id = await bench.submit(body)
    await bench.ends(run_id, settings.steps * _SECONDS_A_STEP)
    steps = await bench.steps(run_id)
    measured = steps[settings.warm_up :]
    seconds = (steps[-1]["at"] - steps[settings.warm_up - 1]["at"]) / len(measured)
    stale = statistics.fmean(step["staleness_mean"] for step in measured)
    return Row(mode, lag, settings.generation(mode, lag), settings.learner.step_seconds, seconds, stale)


def _line(row: Row) -> tuple[Any, ...]:
    values = (row.generate, row.train, row.bound, row.step, row.speed_up)
    return (row.mode, row.staleness, *(f"{value:.2f}" for value in values), f"{100 * row.share:.1f}", f"{row.mean_staleness:.2f}")


def _json(rows: list[Row]) -> list[dict[str, Any]]:
    return [asdict(row) | {"ideal": row.ideal, "bound": row.bound, "speed_up": row.speed_up, "share": row.share} for row in rows]


def plot(data: Any, axes: Any) -> None:
    """Speed-up beside its bound, by staleness."""
    for mode in data["settings"]["modes"]:
        rows = [row for row in data["rows"] if row["mode"] == mode]
        lags = [row["staleness"] for row in rows]
        (line,) = axes.plot(lags, [row["speed_up"] for row in rows], marker="o", label=f"{mode}, measured")
        axes.plot(lags, [row["bound"] for row in rows], linestyle="--", color=line.get_color(), label=f"{mode}, bound")
    axes.set_xticks(sorted({row["staleness"] for row in data["rows"]}))
    axes.set_xlabel("max_staleness")
    axes.set_ylabel("speed-up over one after the other")
    axes.set_ylim(bottom=0.9)
    axes.legend()
