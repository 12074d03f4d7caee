"""`make demo-tools`: a model learns to use a calculator, through the services on this machine.

python examples/calculator/demo_tools.py [--seed 0] [--steps 100] [--tool on|off|wrong]
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share modules, and are no package

from calculator.make_model import TOOLS, Settings, make
from demo import STATE, chapter, console, stack
from training import Trained, cancel_left, show_curve, show_episodes, train

from gradbus.client import Client, load_spec
from gradbus.errors import GradbusError

FOLDER: Final = Path(__file__).resolve().parent
STEPS: Final = 100
LIES: Final = {"schedule.steps": 1, "schedule.groups_per_step": 4, "evaluation.every": 1, "checkpoint.every": 1}
"""Of the run that only plays the trained model with a tool that is wrong."""

Json = dict[str, Any]


def main() -> int:
    """Makes the data, starts the stack, runs the warm-up and the training. Returns the exit status."""
    parser = argparse.ArgumentParser(description="A language model learns to use a calculator, through the services on this machine.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimiser steps of the training (default {STEPS})")
    parser.add_argument(
        "--tool",
        choices=TOOLS,
        default="on",
        help="off: train with a tool that knows nothing; wrong: train, then play with a tool whose results are wrong",
    )
    options = parser.parse_args()
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raises SystemExit, so that the stack is stopped
    chapter("0", "A model with random weights, 8,000 products to learn from and 512 that it never sees")
    data = make(STATE / f"calculator-{options.seed}", Settings(options.seed))
    try:
        with stack() as client:
            cancel_left(client)
            learn(client, data, options.seed, options.steps, options.tool)
    except GradbusError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    console.print(f"\n[dim]{time.monotonic() - begun:.0f} s in all, seed {options.seed}[/]")
    return 0


def learn(client: Client, data: Path, seed: int, steps: int, tool: str) -> Trained:
    """Warm-up and training, shown as they go. Raises GradbusError if a run fails."""
    chapter("2", "A warm-up by imitation of somebody clumsy, whose calls and answers are right 45 times in a hundred")
    warm = train(client, FOLDER / "warm_up.toml", body("warm_up.toml", data, seed))
    chapter("3", f"Reinforcement learning: {steps} steps of GRPO, 16 products a step, 8 episodes of two turns to each")
    of_training = "off" if tool == "off" else "on"
    changes = {"model.run": warm.run["id"], "schedule.steps": steps}
    trained = train(client, FOLDER / "calculator.toml", body("calculator.toml", data, seed, of_training, changes))
    show_curve(trained.curve)
    before, after = trained.curve[0][1], trained.curve[-1][1]
    console.print(f"  held-out products right, greedily: [bold]{before:.1%}[/] before, [bold green]{after:.1%}[/] after")
    show_episodes(client, trained.run)
    if tool == "wrong":
        chapter("4", "The same model with a tool whose results are wrong by 111,111")
        changes = {"model.run": trained.run["id"], **LIES}
        lies = train(client, FOLDER / "calculator.toml", body("calculator.toml", data, seed, "wrong", changes))
        console.print(f"  held-out products right, greedily: [bold]{lies.curve[0][1]:.1%}[/]: the answer is what the tool says")
        show_episodes(client, lies.run)
    return trained


def body(spec: str, data: Path, seed: int, tool: str = "on", changes: Json | None = None) -> Json:
    """The spec of a file with this data and seed."""
    changes = {"seed": seed, **(changes or {})}
    made: Json = load_spec(FOLDER / spec, [f"{name}={value}" for name, value in changes.items()])
    for section, field in (("model", "path"), ("data", "train"), ("data", "eval")):
        if field in made[section]:
            name = Path(made[section][field])
            made[section][field] = str(data / (name.name if tool == "on" else f"{name.stem}-{tool}{name.suffix}"))
    return made


if __name__ == "__main__":
    sys.exit(main())
