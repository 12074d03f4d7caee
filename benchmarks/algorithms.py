"""What each algorithm learns on the demo's task: held-out exact match by preset and staleness, as JSON and as a table.

    python benchmarks/algorithms.py [--presets grpo ppo ...] [--staleness 1 8] [--seeds 1] [--steps 300]

A run is deterministic, so its result does not depend on the machine's load. All have the demo's learning rate and as many samples a step; a
preset that needs fewer samples of a prompt than the demo's 8 is also run with its fewest, and with so many more prompts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from compare_trl import HERE, make_base
from gradbus_run import Json, addition_spec, measure, stack

from gradbus.embedded import StateFolder
from gradbus.spec import PRESETS
from gradbus.spec.presets import CRITICS

FEWEST: Final[Mapping[str, int]] = {"ppo": 1, "sao": 1, "reinforce_pp": 1, "remax": 2}
"""Samples of a prompt."""
_OTHER_RUNS: Final = ("opd", "gdpo")
"""Presets that need a teacher, or several rewards."""
_FIELDS: Final[Mapping[str, Json]] = {"dapo": {"overlong_penalty": 0.0}, "score_centering": {"centering": 8}}
"""The task's right answers fill the limit of their tokens, and its vocabulary has 56."""
_CRITIC: Final = {"learning_rate": 1e-3, "warmup_steps": 0}
_GROUPS: Final = 32
_LAST: Final = 20


@dataclass(frozen=True)
class Case:
    """One run."""

    preset: str
    group_size: int
    staleness: int
    seed: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """How it ended; means are over the last 20 steps."""

    before: float
    after: float
    reward: float
    entropy: float
    bounded: float
    """Share of tokens that the trust region bounded, below or above."""
    explained_variance: float | None


def spec_of(case: Case, base: Path) -> Json:
    """The demo's spec with another algorithm."""
    spec = addition_spec(base, case.steps, case.seed, evaluate_every=case.steps)
    spec["name"] = f"{case.preset}-{case.group_size}-lag-{case.staleness}".replace("_", "-")
    spec["algorithm"] = {"name": case.preset, "entropy": spec["algorithm"]["entropy"], **_FIELDS.get(case.preset, {})}
    spec["rollout"]["group_size"] = case.group_size
    spec["schedule"] |= {"groups_per_step": _GROUPS * 8 // case.group_size, "max_staleness": case.staleness}
    if case.preset in CRITICS:
        spec["trainer"]["critic"] = _CRITIC
    return spec


def run(case: Case, base: Path, folder: StateFolder) -> Outcome:
    """Trains, on a stack that is there."""
    seen = measure(folder, spec_of(case, base))
    steps = [event["data"] for event in seen.of_type("metrics")][-_LAST:]
    accuracies = [event["data"]["accuracy"] for event in seen.of_type("evaluation")]

    def mean(name: str) -> float:
        return statistics.fmean(step[name] for step in steps)

    explained = mean("explained_variance") if "explained_variance" in steps[0] else None
    return Outcome(accuracies[0], accuracies[-1], mean("reward"), mean("entropy"), mean("clip_low") + mean("clip_high"), explained)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All runs, those of a seed together, for they share a base model."""
    for seed, staleness, preset in product(range(options.seeds), options.staleness, options.presets):
        yield Case(preset, 8, staleness, seed, options.steps)
        if preset in FEWEST:
            yield Case(preset, FEWEST[preset], staleness, seed, options.steps)


def table(results: list[dict[str, Any]]) -> str:
    """A row for each preset, its samples a prompt, staleness and steps, medians over seeds."""
    lines = ["# Algorithms on the demo's task", ""]
    columns = (
        "preset",
        "samples a prompt",
        "staleness",
        "steps",
        "seeds",
        "before",
        "after",
        "reward",
        "entropy",
        "bounded tokens",
        "explained variance",
    )
    lines += ["Steps of 256 samples, the demo's base model and learning rate of 1e-3, which is also that of PPO's critic.", ""]
    lines += [
        "Before and after: held-out exact match, medians over the seeds; in brackets the least and the largest.",
        "Rows of equal steps and an equal `before` can be compared: others began with another base model.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    rows: dict[tuple[str, int, int, int], list[dict[str, Any]]] = {}
    for result in results:
        case = result["case"]
        rows.setdefault((case["preset"], case["group_size"], case["staleness"], case["steps"]), []).append(result["outcome"])
    for (preset, size, staleness, steps), outcomes in rows.items():

        def median(name: str, outcomes: list[dict[str, Any]] = outcomes) -> float:
            return statistics.median(outcome[name] for outcome in outcomes)

        explained = "" if outcomes[0]["explained_variance"] is None else f"{median('explained_variance'):.3f}"
        after = [outcome["after"] for outcome in outcomes]
        spread = f" ({min(after):.3f} … {max(after):.3f})" if len(after) > 1 else ""
        shown = f"{median('before'):.3f} | {median('after'):.3f}{spread} | {median('reward'):.3f} | {median('entropy'):.3f}"
        shown += f" | {median('bounded'):.4f}"
        lines.append(f"| `{preset}` | {size} | {staleness} | {steps} | {len(outcomes)} | {shown} | {explained} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs all cases and writes both files after each; a case that is in the file already is not run again."""
    trained = [name for name in PRESETS if name not in _OTHER_RUNS]
    parser = argparse.ArgumentParser(description="Algorithms on the demo's task.")
    parser.add_argument("--presets", nargs="+", choices=trained, default=trained)
    parser.add_argument("--staleness", nargs="+", type=int, default=[1])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    file = options.out / "algorithms.json"
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    there = [result["case"] for result in results]
    with tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        for case in cases(options):
            if asdict(case) in there:
                continue
            results.append(result := {"case": asdict(case), "outcome": asdict(run(case, make_base(case.seed), folder))})
            print(f"{case}: {result['outcome']}", flush=True)
            file.write_text(json.dumps(results, indent=1) + "\n")
            file.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
