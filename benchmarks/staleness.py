"""What old samples cost, by trust region: held-out exact match of the demo's task at equal samples, for several `max_staleness`.

    python benchmarks/staleness.py [--regions clip band ...] [--staleness 0 2 4 8] [--seeds 3] [--steps 300]

All runs are GRPO with the demo's learning rate and differ in the field of their region alone. A run is deterministic, so its result
does not depend on the machine's load.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

from compare_trl import HERE, make_base
from gradbus_run import Json, addition_spec, measure, stack

from gradbus.embedded import StateFolder

REGIONS: Final[Mapping[str, Json]] = {
    "clip": {"trust_region": "clip"},
    "cap": {"trust_region": "cap"},
    "band": {"trust_region": "band"},
    "mass": {"trust_region": "mass"},
    "soft": {"trust_region": "soft"},
    "decoupled": {"importance": "decoupled"},
    "none": {"trust_region": "none"},
    "second_moment": {"trust_region": "none", "second_moment": 0.04},
    "mass_drift": {"trust_region": "mass", "drift": 1e-3},
    "cap_centred": {"trust_region": "cap", "clip": [1.0, 1.0], "centering": 8},
    "band_centred": {"trust_region": "band", "centering": 8},
    "centred": {"importance": "none", "trust_region": "none", "centering": 8},
}
"""With the bounds that each has where a spec does not set them; the second moment and the drift are those of M2PO and prime-rl, and the
bounds beside score centring by 8 of the task's 56 tokens are its preset's."""
LOST: Final = 0.05
"""What a run with old samples may lose of the result without them."""
_LAST: Final = 20


def one_run(region: str, staleness: int, seed: int, steps: int, folder: StateFolder) -> Json:
    """Trains, on a stack that is there; means are over the last 20 steps."""
    spec = addition_spec(make_base(seed), steps, seed, evaluate_every=steps)
    spec["name"] = f"{region}-lag-{staleness}-seed-{seed}".replace("_", "-")
    spec["algorithm"] = {"name": "grpo", "entropy": spec["algorithm"]["entropy"], **REGIONS[region]}
    spec["schedule"]["max_staleness"] = staleness
    seen = measure(folder, spec)
    last = [event["data"] for event in seen.of_type("metrics")][-_LAST:]
    return {
        "region": region,
        "staleness": staleness,
        "seed": seed,
        "steps": steps,
        "after": [event["data"]["accuracy"] for event in seen.of_type("evaluation")][-1],
        "entropy": statistics.fmean(step["entropy"] for step in last),
        "bounded": statistics.fmean(step["clip_low"] + step["clip_high"] for step in last),
        "largest_ratio": max(event["data"]["ratio_max"] for event in seen.of_type("metrics")),
    }


def table(results: list[Json]) -> str:
    """A row for each region and a column for each staleness: medians over seeds."""
    cells: dict[tuple[str, int], list[Json]] = defaultdict(list)
    for result in results:
        cells[result["region"], result["staleness"]].append(result)
    regions = list(dict.fromkeys(region for region, _ in cells))
    lags = sorted({lag for _, lag in cells})
    steps, seeds = results[0]["steps"], max(len(runs) for runs in cells.values())
    lines = ["# Staleness on the demo's task", ""]
    lines += [f"{steps} steps of 256 samples with GRPO; held-out exact match after them, median of {seeds} seeds. In brackets the share of"]
    lines += ["tokens that the region bounded in the last 20 steps. The field of each region is in `benchmarks/staleness.py`.", ""]
    heads = [*(f"k = {lag}" for lag in lags), f"k = {lags[-1]} beside k = 0"]
    lines += [f"| region | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for region in regions:
        found = [cells.get((region, lag)) for lag in lags]
        shown = [f"{_median(runs, 'after'):.3f} ({_median(runs, 'bounded'):.4f})" if runs else "" for runs in found]
        lines.append(f"| `{region}` | {' | '.join(shown)} | {_kept(found[0], found[-1])} |")
    return "\n".join([*lines, ""])


def _median(runs: list[Json], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def _kept(fresh: list[Json] | None, stale: list[Json] | None) -> str:
    if not fresh or not stale:
        return ""
    ratio = _median(stale, "after") / _median(fresh, "after")
    return f"{ratio:.3f}, {'kept' if ratio >= 1.0 - LOST else 'lost'}"


def main() -> None:
    """Runs all cases and writes both files after each; a case that is in the file already is not run again."""
    parser = argparse.ArgumentParser(description="What old samples cost, by trust region.")
    parser.add_argument("--regions", nargs="+", choices=tuple(REGIONS), default=list(REGIONS))
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    file = options.out / "staleness.json"
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    there = {(run["region"], run["staleness"], run["seed"], run["steps"]) for run in results}
    with tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        for seed, staleness, region in product(range(options.seeds), sorted(options.staleness, reverse=True), options.regions):
            if (region, staleness, seed, options.steps) in there:
                continue
            results.append(one_run(region, staleness, seed, options.steps, folder))
            print(results[-1], flush=True)
            file.write_text(json.dumps(results, indent=1) + "\n")
            file.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
