"""`make demo-faults`: a model learns to look up what is hidden, and learns the same bits from a world that fails.

python examples/ledger/demo_faults.py [--seed 0] [--steps 300] [--tool on|off] [--faults 0.1]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share modules, and are no package

from demo import STATE, chapter, console, stack
from ledger.make_model import TOOLS, Settings, make
from ledger.server import LedgerServer
from training import Trained, cancel_left, show_curve, show_episodes, train

from gradbus.client import Client, load_spec
from gradbus.embedded import StateFolder
from gradbus.errors import GradbusError

SPEC: Final = Path(__file__).resolve().with_name("ledger.toml")
STEPS: Final = 300
STEP_SECONDS: Final = 10.0
"""Of the run with faults: what hangs holds its episode for no longer. On a busy machine 3 s masked a sample: it was late thrice."""
KILLED: Final = ("environment", "rollout-0", "environment", "conductor")
"""Whom the run with faults loses, at equal distances."""

Json = dict[str, Any]


@dataclass
class Kills:
    """Kills services of the stack as a run goes on."""

    folder: StateFolder
    left: list[str] = field(default_factory=lambda: list(KILLED))

    def __call__(self, run: Json) -> None:
        """Kills the next one if its time has come."""
        due = run["steps"] * (len(KILLED) - len(self.left) + 1) // (len(KILLED) + 1)
        if self.left and run["progress"]["step"] >= due:
            name = self.left.pop(0)
            os.kill(self.folder.read("stack.json")["processes"][name]["pid"], signal.SIGKILL)
            console.print(f"  step {run['progress']['step']:>4}  [red]{name} is killed[/]")


def main() -> int:
    """Makes the data, starts the stack, trains, and trains again with faults. Returns the exit status."""
    parser = argparse.ArgumentParser(description="A language model learns by a tool that fails, through the services on this machine.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimiser steps of each run (default {STEPS})")
    parser.add_argument("--tool", choices=TOOLS, default="on", help="off: train with a tool that knows nothing, once and without faults")
    parser.add_argument("--faults", type=float, default=0.1, help="share of the episodes whose first attempt fails; 0: train once")
    options = parser.parse_args()
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raises SystemExit, so that the stack is stopped
    chapter("0", "A model with random weights, and ten pages to begin with; what stands on them is in no prompt")
    data = make(STATE / f"ledger-{options.seed}", Settings(options.seed))
    is_same = True
    try:
        with stack() as client:
            cancel_left(client)
            chapter("2", f"Reinforcement learning: {options.steps} steps of GRPO, 20 ledgers a step, 8 episodes to each")
            calm = train(client, SPEC, body(data, options.seed, options.steps, options.tool))
            show_curve(calm.curve)
            show_episodes(client, calm.run)
            if options.faults and options.tool == "on":
                chapter("3", f"The same in a world that fails: {options.faults:.0%} of all first attempts, and services are killed")
                is_same = learn_again(client, calm, body(data, options.seed, options.steps), options.faults)
    except GradbusError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    console.print(f"\n[dim]{time.monotonic() - begun:.0f} s in all, seed {options.seed}[/]")
    return 0 if is_same else 1


def learn_again(client: Client, calm: Trained, given: Json, faults: float) -> bool:
    """Trains in a world with faults; whether the weights are those of the run without."""
    with LedgerServer(0, faults) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        failing = train(client, SPEC, served(given, server.url), Kills(StateFolder(STATE)))
        server.shutdown()
    show_curve(failing.curve)
    failed = ", ".join(f"{count:,} by {kind}" for kind, count in server.failed.most_common())
    console.print(f"  attempts that failed: {failed}; samples that failed for good, and are not trained: {masked(client, failing.run)}")
    digests = [digest(client, one.run) for one in (calm, failing)]
    is_same = digests[0] == digests[1] and calm.curve == failing.curve
    console.print(f"  weights without faults {digests[0]}\n  weights with faults    {digests[1]}")
    console.print("  [bold green]the same bits and the same curve[/]" if is_same else "  [bold red]they differ[/]")
    return is_same


def body(data: Path, seed: int, steps: int, tool: str = "on") -> Json:
    """The spec of the example with this data and seed."""
    made: Json = load_spec(SPEC, [f"seed={seed}", f"schedule.steps={steps}"])
    for section, field_name in (("model", "path"), ("data", "train"), ("data", "eval")):
        name = Path(made[section][field_name])
        made[section][field_name] = str(data / (name.name if tool == "on" else f"{name.stem}-{tool}{name.suffix}"))
    made["model"]["path"] = str(data / "model")
    return made


def served(given: Json, url: str) -> Json:
    """The spec with the world of a server in place of the file's."""
    world = {name: value for name, value in given["environment"].items() if name != "file"}
    return given | {"environment": world | {"service": url, "step_seconds": STEP_SECONDS}}


def digest(client: Client, run: Json) -> str:
    """Of the weights in which a run ended."""
    return list(client.versions(run["id"], run["steps"] - 1))[-1].digest


def masked(client: Client, run: Json) -> int:
    """Samples that were not trained: their environment failed in every attempt."""
    return sum(event.data["masked"] for event in client.events(run["id"]) if event.type == "metrics")


if __name__ == "__main__":
    sys.exit(main())
