"""Seeds of the ledger, without and with faults, and without the tool's help: held-out answers right, and whether weights agree.

python benchmarks/environments/ledger_seeds.py [--seeds 0 1] [--steps 300] [--kinds faults off] [--note TEXT]

Results of other seeds and kinds are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from compare_trl import HERE, machine
from gradbus_run import Measured, measure, stack
from ledger.demo_faults import SPEC, Kills, body, digest, served
from ledger.make_model import Settings, make
from ledger.server import LedgerServer

from gradbus.client import Client
from gradbus.embedded import StateFolder

KINDS: Final = ("calm", "faults", "off")
FAULTS: Final = 0.1
Json = dict[str, Any]


def one_seed(seed: int, steps: int, kinds: list[str]) -> Iterator[Json]:
    """A run without faults; one in a world that fails, whose services are killed; one with a tool that knows nothing."""
    with tempfile.TemporaryDirectory() as state, stack(Path(state) / "stack") as folder:
        data = make(Path(state) / "data", Settings(seed))
        given = body(data, seed, steps)
        yield row(folder, seed, "calm", measure(folder, with_source(given)))
        if "faults" in kinds:
            with LedgerServer(0, FAULTS) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                seen = measure(folder, served(given, server.url), Kills(folder))
                server.shutdown()
            yield row(folder, seed, "faults", seen) | {"failed_attempts": dict(server.failed)}
        if "off" in kinds:
            yield row(folder, seed, "off", measure(folder, with_source(body(data, seed, steps, "off"))))


def with_source(given: Json) -> Json:
    """The spec with its environment as a source."""
    world = {name: value for name, value in given["environment"].items() if name != "file"}
    return given | {"environment": world | {"source": (SPEC.parent / given["environment"]["file"]).read_text()}}


def row(folder: StateFolder, seed: int, kind: str, seen: Measured) -> Json:
    """What a run learned, what it cost and in which weights it ended."""
    found = (event["data"] for event in seen.of_type("evaluation"))
    with Client.discover(folder.root) as client:
        weights = digest(client, seen.run)
    return {
        "seed": seed,
        "kind": kind,
        "curve": sorted((one["version"], one["accuracy"]) for one in found if one.get("accuracy") is not None),
        "masked": sum(event["data"]["masked"] for event in seen.of_type("metrics")),
        "digest": weights,
        "wall_seconds": seen.times[-1] - seen.times[0],
        "cpu_seconds": sum(seen.cpu_between(seen.times[0], seen.times[-1]).values()),
    }


def summary(results: list[Json], steps: int, note: str) -> str:
    """The table."""
    digests = {one["seed"]: one["digest"] for one in results if one["kind"] == "calm"}
    lines = ["# The ledger over seeds", "", f"{machine()}. {note}", f"{steps} steps of 20 groups of 8 episodes, from random weights.", ""]
    lines += ["| run | seed | held-out before | after | attempts that failed | samples masked | weights | CPU seconds | seconds |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for one in results:
        weights = "" if one["kind"] != "faults" else "the same" if one["digest"] == digests[one["seed"]] else "others"
        failed = sum(one.get("failed_attempts", {}).values())
        shown = [one["kind"], one["seed"], f"{one['curve'][0][1]:.3f}", f"{one['curve'][-1][1]:.3f}", f"{failed:,}", one["masked"], weights]
        lines.append("| " + " | ".join(map(str, [*shown, f"{one['cpu_seconds']:.0f}", f"{one['wall_seconds']:.0f}"])) + " |")
    lines += ["", "Seconds are those of the runs without the start of the stack; CPU seconds are of all its processes."]
    lines += ["`faults`: a server fails 10 % of all first attempts (error, lost connection, hang), and four services are killed."]
    lines += ["`off`: trained with a tool that knows nothing."]
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs the seeds, prints the table and writes two files."""
    parser = argparse.ArgumentParser(description="The ledger over several seeds, with faults, and without its tool.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kinds", nargs="*", default=["faults", "off"], help="the runs beside the calm one")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    stored = options.out / "ledger.json"
    found = json.loads(stored.read_text())["results"] if stored.exists() else []
    results = {(one["kind"], one["seed"]): one for one in found}
    for seed in options.seeds:
        for one in one_seed(seed, options.steps, options.kinds):
            results[one["kind"], seed] = one
            print(f"{one['kind']}, seed {seed}: {one['curve'][0][1]:.3f} -> {one['curve'][-1][1]:.3f}", flush=True)
            ordered = sorted(results.values(), key=lambda one: (KINDS.index(one["kind"]), one["seed"]))
            stored.write_text(json.dumps({"machine": machine(), "results": ordered}, indent=1) + "\n")
            stored.with_suffix(".md").write_text(summary(ordered, options.steps, options.note))
    print(f"\n{summary(ordered, options.steps, options.note)}")


if __name__ == "__main__":
    main()
