"""Compares Gradbus with TRL: the same base model, data, reward and settings, measured in alternating rounds.

    python benchmarks/compare_trl.py [--size demo|5m|27m|60m|150m|450m] [--dtype fp32|bf16] [--device cuda] [--staleness 1]
        [--steps N] [--rounds 5]

Gradbus is the whole embedded stack, asked through REST, with one thread in the rollout worker, and in the trainer one for the demo and
two for the other models; CPU seconds are those of all its processes. TRL is one process. Every setting of TRL's is tried once, and the
one with the fewest wall seconds takes part in the rounds, and that with the fewest CPU seconds if it is another. On a GPU both have that
one GPU for sampling and training.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from comparison import models
from comparison.results import OURS, Row, document, store
from gradbus_run import ADDITION, Measured, addition_spec, measure, rates, stack, step_ends

HERE = Path(__file__).resolve().parent
DEMO: Final = "demo"
_PRECISIONS: Final = {"fp32": ("fp32",), "bf16": ("autocast", "bf16")}
_TRIAL_STEPS: Final = {DEMO: 40}
_HOPELESS: Final = 4
_NAMES: Final = {"fp32": "float32", "autocast": "bf16 autocast", "bf16": "bf16 weights"}


@dataclass(frozen=True)
class Job:
    """What both systems train."""

    size: str
    dtype: str
    steps: int
    """Counted steps of a random model; all steps of the demo, whose rates leave out the first fifth."""
    seed: int
    base: Path
    device: str = "cpu"
    staleness: int = 1
    """How many versions behind the newest Gradbus may sample."""

    @property
    def is_demo(self) -> bool:
        """Whether the model is the demo's."""
        return self.size == DEMO


@dataclass(frozen=True)
class TrlSettings:
    """Settings among which TRL's best is chosen."""

    threads: int
    precision: str
    batching: bool

    @property
    def name(self) -> str:
        """For the tables."""
        generation = "continuous batching" if self.batching else "generate"
        return f"TRL, {_NAMES[self.precision]}, {generation}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def run_gradbus(job: Job) -> Row:
    """One run on a fresh stack."""
    # A random model's first step waits for the first samples, and beside its last one nothing is sampled: neither is counted.
    spec = _demo_spec(job) if job.is_demo else models.run_spec(job.base, job.steps + 2, job.seed, job.dtype)
    spec["schedule"]["max_staleness"] = job.staleness
    with tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        seen = measure(folder, spec)
    measured = _demo_rates(seen) if job.is_demo else _steady_rates(seen)
    peaks = {name: peak / 2**30 for name, peak in seen.peaks.items()}
    rewards = [event["data"]["reward"] for event in seen.of_type("metrics")]
    return (
        {"system": OURS, "steps": job.steps, "seed": job.seed}
        | measured
        | {"peak_gib": peaks["trainer"], "peak_gib_by_service": peaks, "reward": statistics.fmean(rewards[-20:]), "rewards": rewards}
    )


def run_trl(job: Job, settings: TrlSettings, steps: int, limit: float | None = None) -> Row:
    """One run in its own process, stopped after `limit` seconds.

    Raises TimeoutExpired if it was stopped, and CalledProcessError if TRL cannot do it with these settings.
    """
    command = [sys.executable, str(HERE / "trl_run.py"), "--size", job.size, "--base", str(job.base), "--seed", str(job.seed)]
    # The first step of a random model is not counted.
    command += ["--steps", str(steps + (not job.is_demo)), "--threads", str(settings.threads), "--precision", settings.precision]
    command += ["--device", job.device, *(["--batching"] if settings.batching else [])]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit)
    row: Row = {"system": settings.name, "steps": steps, "seed": job.seed} | json.loads(answer.stdout.splitlines()[-1])
    row["trained_tokens_per_second"] = row["steps_per_second"] * row["response_tokens"] * (256 if job.is_demo else 64)
    return row | {"peak_gib": row.pop("peak_bytes") / 2**30}


def tried(job: Job) -> list[tuple[TrlSettings, Row]]:
    """A short run with each of TRL's settings; one that fails, or is far slower than another, has `failure` instead of rates."""
    found, limit = [], None
    for precision, batching, threads in product(_PRECISIONS[job.dtype], (False, True), (1, 2) if job.device == "cpu" else (1,)):
        settings, began = TrlSettings(threads, precision, batching), time.monotonic()
        try:
            row = run_trl(job, settings, _TRIAL_STEPS.get(job.size, 1), limit)
            limit = min(limit or math.inf, _HOPELESS * (time.monotonic() - began))
        except subprocess.TimeoutExpired:
            row = {"system": settings.name, "failure": f"stopped after {_HOPELESS} times the seconds of the fastest"}
        except subprocess.CalledProcessError as error:
            row = {"system": settings.name, "failure": f"fails: {(error.stderr.splitlines() or ['no message'])[-1]}"}
        found.append((settings, row))
        _report("trial", row)
    return found


def best(trial: list[tuple[TrlSettings, Row]]) -> list[TrlSettings]:
    """The settings with the fewest seconds and with the fewest CPU seconds, which may be the same."""
    able = [(settings, row) for settings, row in trial if "failure" not in row]
    chosen = [min(able, key=lambda tried: tried[1][column])[0] for column in ("seconds_per_step", "cpu_seconds_per_step")]
    return list(dict.fromkeys(chosen))


def make_base(seed: int) -> Path:
    """The demo's base model."""
    command = [sys.executable, str(ADDITION / "make_model.py"), "--seed", str(seed)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(answer.stdout.splitlines()[-1])


def machine(device: str = "cpu") -> str:
    """The machine and the versions of this measurement."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "gradbus"))
    gpu = f"{torch.cuda.get_device_name()}, " if device == "cuda" else ""
    return f"{gpu}{psutil.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}, {packages}"


def source() -> str:
    """The commit of the measured source, and the day."""
    asked = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(asked, cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()
    return f"{commit}, {time.strftime('%Y-%m-%d', time.gmtime())}"


def protocol(job: Job, rounds: int) -> str:
    """What was measured."""
    if job.is_demo:
        what = f"{rounds} rounds of {job.steps} steps in turn, the first fifth not counted; groups of 8, 32 a step."
    else:
        what = (
            f"{rounds} rounds of {job.steps} counted steps in turn; prompts of 56 to 72 tokens, {models.NEW_TOKENS} new ones, "
            f"{models.GROUPS} groups of {models.GROUP_SIZE}."
        )
    behind = "the version before the newest" if job.staleness == 1 else f"a version at most {job.staleness} before the newest"
    return f"{what} {OURS} samples with {behind} (staleness {job.staleness}), TRL with the newest."


def _demo_spec(job: Job) -> dict[str, Any]:
    return addition_spec(job.base, job.steps, job.seed, evaluate_every=job.steps, dtype=job.dtype)


def _demo_rates(seen: Measured) -> Row:
    """Evaluated before and after only."""
    measured = rates(seen)
    ends, events = step_ends(seen), seen.of_type("metrics")
    warm = len(ends) // 5
    return measured | _window(seen, warm, len(events) - 1) | {"accuracy": seen.of_type("evaluation")[-1]["data"]["accuracy"]}


def _steady_rates(seen: Measured) -> Row:
    return _window(seen, 0, len(step_ends(seen)) - 2)


def _window(seen: Measured, first: int, last: int) -> Row:
    """Rates from the end of step `first` to the end of step `last`."""
    ends, tokens = step_ends(seen), [event["data"]["tokens"] for event in seen.of_type("metrics")]
    counted, seconds = last - first, ends[last] - ends[first]
    by_service = {name: spent / counted for name, spent in seen.cpu_between(ends[first], ends[last]).items()}
    return {
        "steps_per_second": counted / seconds,
        "seconds_per_step": seconds / counted,
        "cpu_seconds_per_step": sum(by_service.values()),
        "cpu_by_service": by_service,
        "trained_tokens_per_second": sum(tokens[first + 1 : last + 1]) / seconds,
    }


def _report(when: str, row: Row) -> None:
    shown = {key: round(row[key], 3) for key in ("seconds_per_step", "cpu_seconds_per_step", "peak_gib") if key in row}
    print(f"{when}, {row['system']}: {row.get('failure') or shown}", flush=True)


def main() -> None:
    """Tries TRL's settings, runs the rounds, prints the tables and writes both files."""
    parser = argparse.ArgumentParser(description="Gradbus beside TRL.")
    parser.add_argument("--size", choices=(DEMO, *models.SHAPES), default=DEMO)
    parser.add_argument("--dtype", choices=tuple(_PRECISIONS), default="fp32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--staleness", type=int, default=1, help="`schedule.max_staleness` of Gradbus")
    parser.add_argument("--steps", type=int, help="of a run: 300 for the demo, 4 counted ones for the others")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    is_demo = options.size == DEMO
    os.environ["GRADBUS_DEVICE"] = options.device
    base = make_base(options.seed) if is_demo else models.make(options.size)
    job = Job(options.size, options.dtype, options.steps or (300 if is_demo else 4), options.seed, base, options.device, options.staleness)
    trial = tried(job)
    chosen, results = best(trial), []
    for number in range(options.rounds):
        results.append(run_gradbus(job))
        _report(f"round {number + 1}", results[-1])
        for settings in chosen:
            results.append(run_trl(job, settings, job.steps))
            _report(f"round {number + 1}", results[-1])
    file = options.out / ("trl_gpu.json" if job.device == "cuda" else "trl.json" if is_demo else "trl_sizes.json")
    section = {
        "machine": machine(job.device),
        "protocol": protocol(job, options.rounds),
        "trial": [row for _, row in trial],
        "results": results,
    }
    key = f"{job.size}, {job.dtype}" + (f", staleness {job.staleness}" if job.staleness != 1 else "")
    text = document(store(file, key, section))
    file.with_suffix(".md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
