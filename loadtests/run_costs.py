"""What runs cost before a change and with it: `python loadtests/run_costs.py TREE [--points 100x32] [--rounds 2]`.

TREE is a checkout of the version before. The scenario `workers` runs with its services and with those of this checkout in turn, on one
machine in the same minutes; workers and trainers are this checkout's both times. CPU seconds and numbers of writes can be compared where
other work takes the processor, times less so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from gradbus_load import probes

HERE: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = HERE / "loadtests" / "results" / "run_costs.json"
SHOWN: Final = {
    "conductor, cores": ("cores", "conductor"),
    "NATS, cores": ("cores", "nats"),
    "weight store, cores": ("cores", "weight_store"),
    "gateway, cores": ("cores", "gateway"),
    "writes a second: runs": ("writes_per_second", "runs"),
    "writes a second: leases": ("writes_per_second", "leases"),
    "writes a second: heads": ("writes_per_second", "heads"),
    "syncs of NATS a second": ("syncs_per_second",),
    "a version is told to all, s": ("told_seconds", "last"),
    "a death is noticed, s": ("death_seconds",),
    "its work is shared out, s": ("shared_seconds",),
    "all runs train, s": ("assigned_seconds",),
}
Json = dict[str, Any]


def measured(tree: Path, points: str) -> list[Json]:
    """The points of one run of the scenario with the services of a checkout."""
    sources = [HERE / "loadtests", tree / "libs", tree / "kernels", *sorted((tree / "services").iterdir())]
    with tempfile.TemporaryDirectory(prefix="gradbus-costs-") as folder:
        subprocess.run(
            [sys.executable, "-m", "gradbus_load", "--only", "workers", "--points", points, "--results", folder],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sources))},
            stdout=subprocess.DEVNULL,
            check=False,  # a missed floor is a result too
        )
        found: list[Json] = json.loads((Path(folder) / "workers.json").read_text())["data"]["points"]
    return found


def value(point: Json, path: tuple[str, ...]) -> float:
    """What is shown of a point."""
    found: Any = point
    for name in path:
        found = found[name]
    return float(found)


def table(rounds: list[dict[str, Json]]) -> list[str]:
    """The medians of the rounds at one point, before and with the change."""
    workers, runs = rounds[0]["now"]["workers"], rounds[0]["now"]["runs"]
    lines = [f"| {workers} workers, {runs} runs | before | now |", "|---|---|---|"]
    for name, path in SHOWN.items():
        cells = [f"{statistics.median(value(one[which], path) for one in rounds):.3g}" for which in ("before", "now")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path, help="a checkout of the version before")
    parser.add_argument("--points", default="100x32")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    load_before = probes.load_average()
    trees = {"before": options.tree.resolve(), "now": HERE}
    rounds = [{name: measured(tree, options.points) for name, tree in trees.items()} for _ in range(options.rounds)]
    by_point = [[{name: points[at] for name, points in one.items()} for one in rounds] for at in range(len(rounds[0]["now"]))]
    print("\n".join(line for one in by_point for line in table(one)))
    machine = probes.machine() | {"load average before": load_before, "load average after": probes.load_average()}
    RESULTS.write_text(json.dumps({"machine": machine, "points": by_point}) + "\n")


if __name__ == "__main__":
    main()
