"""Five seeds of the demo in float32 and in bfloat16: held-out exact match along each run, as JSON and as a picture.

python benchmarks/demo_seeds.py [--seeds 5] [--steps 700] [--dtypes fp32 bf16]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from charts.curves import chart
from compare_trl import HERE, machine, make_base
from gradbus_run import addition_spec, measure, rates, stack

TARGET = 0.75


def one_seed(seed: int, steps: int, dtype: str) -> dict[str, Any]:
    """The curve of one seed, and its cost."""
    base = make_base(seed)
    with tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        seen = measure(folder, addition_spec(base, steps, seed, evaluate_every=50, dtype=dtype))
    curve = sorted((event["data"]["version"], event["data"]["accuracy"]) for event in seen.of_type("evaluation"))
    drift = [event["data"]["logprob_diff"] for event in seen.of_type("metrics") if "logprob_diff" in event["data"]]
    return {
        "seed": seed,
        "dtype": dtype,
        "logprob_diff": statistics.median(drift),
        "curve": curve,
        "before": curve[0][1],
        "after": curve[-1][1],
        **rates(seen),
    }


def summary(results: list[dict[str, Any]], steps: int) -> str:
    """The table, and a line for each dtype."""
    lines = ["# The demo over seeds", "", f"{machine()}. {steps} steps each.", "", "![curves](demo_seeds.svg)", ""]
    lines += [
        "| `trainer.dtype` | seed | held-out before | after | log-prob diff | steps/s | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        held_out = f"{result['before']:.2f} | {result['after']:.2f} | {result['logprob_diff']:.4f}"
        speed = f"{result['steps_per_second']:.1f} | {result['wall_seconds']:.0f}"
        lines.append(f"| {result['dtype']} | {result['seed']} | {held_out} | {speed} |")
    lines.append("")
    for dtype in dict.fromkeys(result["dtype"] for result in results):
        after = [result["after"] for result in results if result["dtype"] == dtype]
        reached = sum(value >= TARGET for value in after)
        lines.append(f"{dtype}: median {statistics.median(after):.3f}; {reached} of {len(after)} reach {TARGET}.")
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs the seeds, prints the table and writes three files."""
    parser = argparse.ArgumentParser(description="The demo over several seeds.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    results = []
    for seed, dtype in product(range(options.seeds), options.dtypes):
        results.append(one_seed(seed, options.steps, dtype))
        print(f"{dtype}, seed {seed}: {results[-1]['before']:.2f} -> {results[-1]['after']:.2f}", flush=True)
    curves = {f"{result['dtype']}, seed {result['seed']}": result["curve"] for result in results}
    text = summary(results, options.steps)
    print(f"\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "demo_seeds.json").write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    (options.out / "demo_seeds.md").write_text(text)
    (options.out / "demo_seeds.svg").write_text(chart("Two-digit addition, held-out exact match", "optimiser step", curves, TARGET))


if __name__ == "__main__":
    main()
