"""Seeds of the guessing game: letters found along each run, greedily, with the CPU time of the whole stack.

python benchmarks/environments/guess_seeds.py [--seeds 0 1 2 3 4] [--set schedule.steps=400 ...] [--note TEXT]

Results of other seeds are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from compare_trl import HERE, machine, source
from gradbus_run import measure, stack
from guess.make_model import LETTERS, Settings, make

from gradbus.client import load_spec

GUESS: Final = HERE.parent / "examples" / "guess"
TARGET: Final = 0.85
Json = dict[str, Any]


def one_seed(seed: int, changes: list[str]) -> Json:
    """A run from random weights: what it learned and what it cost."""
    with tempfile.TemporaryDirectory() as state, stack(Path(state) / "stack") as folder:
        spec = spec_of(make(Path(state) / "data", Settings(seed)), seed, changes)
        seen = measure(folder, spec)
    found = (event["data"] for event in seen.of_type("evaluation"))
    return {
        "seed": seed,
        "steps": spec["schedule"]["steps"],
        "source": source(),
        "curve": sorted((one["version"], one["accuracy"]) for one in found if one.get("accuracy") is not None),
        "wall_seconds": seen.times[-1] - seen.times[0],
        "cpu_seconds": sum(seen.cpu_between(seen.times[0], seen.times[-1]).values()),
    }


def spec_of(data: Path, seed: int, changes: list[str]) -> Json:
    """The spec of the example with this data and seed, and its environment as a source."""
    places = [f"seed={seed}", f"model.path={data / 'model'}", *(f"data.{name}={data / 'letters.jsonl'}" for name in ("train", "eval"))]
    made: Json = load_spec(GUESS / "guess.toml", [*places, *changes])
    made["environment"]["source"] = (GUESS / made["environment"].pop("file")).read_text()
    return made


def summary(results: list[Json], note: str) -> str:
    """The table."""
    count = len(LETTERS)
    lines = ["# The guessing game over seeds", "", f"{machine()}. {note}"]
    lines += [f"15 groups of 8 episodes a step, trained twice in two parts, from random weights; {count} letters.", ""]
    lines += ["| seed | steps | found before | after | best | CPU seconds | seconds | commit, day |", "|---|---|---|---|---|---|---|---|"]
    for one in results:
        shares = [share for _, share in one["curve"]]
        shown = [one["seed"], one["steps"], *(f"{share:.3f}" for share in (shares[0], shares[-1], max(shares)))]
        shown += [f"{one['cpu_seconds']:.0f}", f"{one['wall_seconds']:.0f}", one["source"]]
        lines.append("| " + " | ".join(map(str, shown)) + " |")
    reached = sum(one["curve"][-1][1] >= TARGET for one in results)
    lines += ["", f"{reached} of {len(results)} end at {TARGET} or more. Who ignores the answers finds 4 of {count}, 0.267."]
    lines += ["Seconds are those of the runs without the start of the stack; CPU seconds are of all its processes."]
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs the seeds, prints the table and writes two files."""
    parser = argparse.ArgumentParser(description="The guessing game over several seeds.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", nargs="*", default=[], dest="changes", help="changes of the spec, for example trainer.learning_rate=1e-3")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    stored = options.out / "guess.json"
    known = json.loads(stored.read_text())["results"] if stored.exists() else []
    results = {one["seed"]: one for one in known}
    for seed in options.seeds:
        results[seed] = one_seed(seed, options.changes)
        print(f"seed {seed}: {results[seed]['curve']}, {results[seed]['wall_seconds']:.0f} s", flush=True)
        ordered = sorted(results.values(), key=lambda one: int(one["seed"]))
        stored.write_text(json.dumps({"machine": machine(), "results": ordered}, indent=1) + "\n")
        stored.with_suffix(".md").write_text(summary(ordered, options.note))
    print(f"\n{summary(ordered, options.note)}")


if __name__ == "__main__":
    main()
