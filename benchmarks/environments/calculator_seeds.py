"""Seeds of the calculator, and its ablations: held-out products right along each run, with the CPU time of the whole stack.

python benchmarks/environments/calculator_seeds.py [--seeds 0 1 2] [--steps 100] [--tools off wrong] [--note TEXT]

Results of other seeds and tools are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from calculator.demo_tools import LIES, body
from calculator.make_model import TOOLS, Settings, make
from compare_trl import HERE, machine, source
from gradbus_run import Measured, measure, stack

CALCULATOR = HERE.parent / "examples" / "calculator"


def one_seed(seed: int, steps: int, tools: list[str]) -> Iterator[dict[str, Any]]:
    """Warm-up and training of one seed, then the trained model with a tool that is `wrong`, then a training with one that is `off`."""
    with tempfile.TemporaryDirectory() as state, stack(Path(state) / "stack") as folder:
        data = make(Path(state) / "data", Settings(seed))
        warm = measure(folder, submitted("warm_up", data, seed, "on", {}))
        changes = {"model.run": warm.run["id"], "schedule.steps": steps}
        trained = measure(folder, submitted("calculator", data, seed, "on", changes))
        yield row(seed, "on", warm, trained)
        if "wrong" in tools:
            lies = {"model.run": trained.run["id"], **LIES}
            yield row(seed, "wrong", measure(folder, submitted("calculator", data, seed, "wrong", lies)))
        if "off" in tools:
            yield row(seed, "off", warm, measure(folder, submitted("calculator", data, seed, "off", changes)))


def row(seed: int, tool: str, *seen: Measured) -> dict[str, Any]:
    """What the last of some runs learned, and what all of them cost."""
    shown = curve(seen[-1])
    return {
        "seed": seed,
        "tool": tool,
        "source": source(),
        "curve": shown,
        "before": shown[0][1],
        "after": shown[0 if tool == "wrong" else -1][1],
        "wall_seconds": sum(one.times[-1] - one.times[0] for one in seen),
        "cpu_seconds": sum(sum(one.cpu_between(one.times[0], one.times[-1]).values()) for one in seen),
    }


def submitted(name: str, data: Path, seed: int, tool: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The spec of a file of the example, with its environment as a source."""
    made = body(f"{name}.toml", data, seed, tool, changes)
    if "environment" in made:
        made["environment"]["source"] = (CALCULATOR / made["environment"].pop("file")).read_text()
    return made


def curve(seen: Measured) -> list[tuple[int, float]]:
    """(version, share of held-out products right) of a run."""
    found = (event["data"] for event in seen.of_type("evaluation"))
    return sorted((one["version"], one["accuracy"]) for one in found if one.get("accuracy") is not None)


def summary(results: list[dict[str, Any]], steps: int, note: str) -> str:
    """The table."""
    lines = ["# The calculator over seeds", "", f"{machine()}. {note}"]
    lines += [f"A warm-up, then {steps} steps of 16 groups of 8 episodes of two turns.", ""]
    lines += ["| tool | seed | held-out before | after | CPU seconds | seconds | commit, day |", "|---|---|---|---|---|---|---|"]
    for one in results:
        shares = f"{one['before']:.3f} | {one['after']:.3f}"
        cost = f"{one['cpu_seconds']:.0f} | {one['wall_seconds']:.0f} | {one['source']}"
        lines.append(f"| {one['tool']} | {one['seed']} | {shares} | {cost} |")
    lines += [
        "",
        "Seconds are those of the runs without the start of the stack; CPU seconds are of all its processes.",
    ]
    lines += ["`off`: trained with a tool that knows nothing. `wrong`: the trained model, played with results that are wrong by 111,111."]
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs the seeds, prints the table and writes two files."""
    parser = argparse.ArgumentParser(description="The calculator over several seeds, and its ablations.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tools", nargs="*", default=["off", "wrong"], help="the ablations")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    stored = options.out / "calculator.json"
    found = json.loads(stored.read_text())["results"] if stored.exists() else []
    results = {(one["tool"], one["seed"]): one for one in found}
    for seed in options.seeds:
        for one in one_seed(seed, options.steps, options.tools):
            results[one["tool"], seed] = one
            print(f"{one['tool']}, seed {seed}: {one['before']:.3f} -> {one['after']:.3f}", flush=True)
            ordered = sorted(results.values(), key=lambda one: (TOOLS.index(one["tool"]), one["seed"]))
            stored.write_text(json.dumps({"machine": machine(), "results": ordered}, indent=1) + "\n")
            stored.with_suffix(".md").write_text(summary(ordered, options.steps, options.note))
    print(f"\n{summary(ordered, options.steps, options.note)}")


if __name__ == "__main__":
    main()
