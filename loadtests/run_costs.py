"""What runs cost before a change and with it: `python loadtests/run_costs.py TREE [--points 200x64] [--sync-ms 20]`.

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
from collections.abc import Sequence
from functools import reduce
from operator import getitem
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


def measured(tree: Path, options: Sequence[str]) -> list[Json]:
    """The points of one run of the scenario with the services of a checkout."""
    sources = [HERE / "loadtests", tree / "libs", tree / "kernels", *sorted((tree / "services").iterdir())]
    with tempfile.TemporaryDirectory(prefix="gradbus-costs-") as folder:
        subprocess.run(
            [sys.executable, "-m", "gradbus_load", "--only", "workers", *options, "--results", folder],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sources))},
            stdout=subprocess.DEVNULL,
            check=False,  # a missed floor is a result too
        )
        found: list[Json] = json.loads((Path(folder) / "workers.json").read_text())["data"]["points"]
    return found


def median(rounds: Sequence[Json], path: Sequence[str]) -> str:
    """Of what is shown of a point; nothing if it was not measured."""
    found = [reduce(getitem, path, one) for one in rounds]
    return "" if None in found else f"{statistics.median(found):.3g}"


def table(rounds: list[dict[str, Json]]) -> list[str]:
    """The medians of the rounds at one point, before and with the change."""
    workers, runs = rounds[0]["now"]["workers"], rounds[0]["now"]["runs"]
    lines = [f"| {workers} workers, {runs} runs | before | now |", "|---|---|---|"]
    for name, path in SHOWN.items():
        cells = [median([one[which] for one in rounds], path) for which in ("before", "now")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path, help="a checkout of the version before")
    parser.add_argument("--points", default="200x64")
    parser.add_argument("--sync-ms", default="0", help="by how much NATS's syncs are slower; needs strace")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    load_before = probes.load_average()
    trees = {"before": options.tree.resolve(), "now": HERE}
    given = ["--points", options.points, "--sync-ms", options.sync_ms]
    rounds = [{name: measured(tree, given) for name, tree in trees.items()} for _ in range(options.rounds)]
    by_point = [[{name: points[at] for name, points in one.items()} for one in rounds] for at in range(len(rounds[0]["now"]))]
    print("\n".join(line for one in by_point for line in table(one)))
    machine = probes.machine() | {"load average before": load_before, "load average after": probes.load_average()}
    options.results.write_text(json.dumps({"machine": machine, "sync_ms": float(options.sync_ms), "points": by_point}) + "\n")


if __name__ == "__main__":
    main()
