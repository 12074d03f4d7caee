"""Compares Gradbus with TRL: the same base model, task and settings, measured in alternating rounds.

    python benchmarks/compare_trl.py [--steps 300] [--rounds 3]

Gradbus is the whole embedded stack, asked through REST; CPU seconds are those of all its processes. TRL is one process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from gradbus_run import ADDITION, addition_spec, measure, rates, stack

HERE = Path(__file__).resolve().parent
COLUMNS = ("steps_per_second", "cpu_seconds_per_step", "wall_seconds", "cpu_seconds", "reward", "accuracy")


def run_gradbus(steps: int, seed: int, base: Path) -> dict[str, Any]:
    """One run on a fresh stack, evaluated before and after only."""
    with tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        seen = measure(folder, addition_spec(base, steps, seed, evaluate_every=steps))
    rewards = [event["data"]["reward"] for event in seen.of_type("metrics")]
    return {
        "system": "Gradbus",
        "steps": steps,
        "seed": seed,
        **rates(seen),
        "reward": statistics.fmean(rewards[-20:]),
        "accuracy": seen.of_type("evaluation")[-1]["data"]["accuracy"],
        "rewards": rewards,
    }


def run_trl(steps: int, seed: int, base: Path, threads: int = 1) -> dict[str, Any]:
    """One run in its own process."""
    command = [sys.executable, str(HERE / "trl.py"), "--steps", str(steps), "--seed", str(seed), "--base", str(base)]
    command += ["--threads", str(threads)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def make_base(seed: int) -> Path:
    """The demo's base model."""
    command = [sys.executable, str(ADDITION / "make_model.py"), "--seed", str(seed)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(answer.stdout.splitlines()[-1])


def table(results: list[dict[str, Any]]) -> str:
    """Medians over the rounds, and their ratio."""
    systems = list(dict.fromkeys(result["system"] for result in results))
    medians = {
        system: {column: statistics.median(result[column] for result in results if result["system"] == system) for column in COLUMNS}
        for system in systems
    }
    ours, others = medians[systems[0]], systems[1:]
    heads = [*systems, *(f"{systems[0]} / {other}" for other in others)]
    lines = [f"| median of the rounds | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for column in COLUMNS:
        values = [f"{medians[system][column]:.3f}" for system in systems]
        ratios = [f"{ours[column] / medians[other][column]:.2f}" for other in others]
        lines.append(f"| {column.replace('_', ' ')} | {' | '.join(values + ratios)} |")
    return "\n".join(lines)


def machine() -> str:
    """The machine and the versions of this measurement."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "gradbus"))
    return f"{psutil.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}, {packages}"


def main() -> None:
    """Runs the rounds, prints the table and writes both files."""
    parser = argparse.ArgumentParser(description="Gradbus beside TRL on the demo's task.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    base = make_base(options.seed)
    results = []
    for number in range(options.rounds):
        for run in (run_gradbus, run_trl, partial(run_trl, threads=2)):
            results.append(run(options.steps, options.seed, base))
            shown = {key: round(results[-1][key], 3) for key in COLUMNS}
            print(f"round {number + 1}, {results[-1]['system']}: {shown}", flush=True)
    text = f"# Gradbus beside TRL\n\n{machine()}. {options.rounds} rounds of {options.steps} steps, in turn.\n\n{table(results)}\n"
    print(f"\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "trl.md").write_text(text)
    (options.out / "trl.json").write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
