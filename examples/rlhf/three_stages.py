"""The three stages of RLHF on two-digit addition, in one command: imitation, a reward model, PPO.

python examples/rlhf/three_stages.py [--seed 0] [--steps 250 500 200]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from addition.make_model import answer_tokens, exact_match, problems
from demo import STATE, chapter, console, stack
from rlhf.make_data import Settings, make
from tiny_models import character_tokenizer, held_out
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from gradbus.client import Client, load_spec
from gradbus.errors import GradbusError
from gradbus.resources.runs import RunResource

FOLDER: Final = Path(__file__).resolve().parent
POINTS: Final = 8
"""Of a curve."""


@dataclass(frozen=True)
class Stage:
    """A run of the three, and the numbers of its steps to show."""

    title: str
    spec: str
    steps: int
    shown: tuple[str, ...]


def main() -> int:
    """Makes the data, starts the stack, and runs the stages one after the other. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Imitation, a reward model and PPO on two-digit addition, through the services.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, nargs=3, default=(250, 500, 200), help="of each stage")
    options = parser.parse_args()
    begun, (sft, reward, ppo) = time.monotonic(), options.steps
    stages = (
        Stage("Imitation of right answers (sft)", "sft.toml", sft, ("loss",)),
        Stage("A reward model from pairs of answers (reward_model)", "reward_model.toml", reward, ("loss", "accuracy")),
        Stage("Reinforcement learning by its scores (ppo)", "ppo.toml", ppo, ("reward", "explained_variance")),
    )
    data = make(STATE / f"rlhf-{options.seed}", Settings(options.seed))
    logging.disable_progress_bar()
    try:
        with stack() as client:
            for number, stage in enumerate(stages, start=2):
                chapter(str(number), stage.title)
                run = train(client, stage, data, options.seed)
                if run.state != "succeeded":
                    console.print(f"the run is {run.state}: {run.reason}", style="red")
                    return 1
                if stage.spec != "reward_model.toml":
                    folder = STATE / "export" / run.id
                    client.export(run.id, folder)
                    console.print(f"  held-out sums right: [bold]{accuracy(folder):.0%}[/]")
    except GradbusError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    console.print(f"\n[dim]{time.monotonic() - begun:.0f} s in all, seed {options.seed}[/]")
    return 0


def train(client: Client, stage: Stage, data: Path, seed: int) -> RunResource:
    """The run of a stage once it is over; shows the curve of its numbers."""
    spec = FOLDER / stage.spec
    changes: dict[str, Any] = {"seed": seed, "schedule.steps": stage.steps}
    body = load_spec(spec, [f"{name}={value}" for name, value in changes.items()])
    for section, field in (("model", "path"), ("data", "train"), ("data", "eval")):
        if field in body[section]:
            body[section][field] = str(data / Path(body[section][field]).name)
    console.print(f"  the same as: gradbus run {spec.relative_to(FOLDER.parents[1])} --follow")
    run_id = client.submit(body, FOLDER).id
    with console.status("training") as status:
        while (run := client.run(run_id)).finished_at is None:
            status.update(f"step {run.progress.step} of {stage.steps}")
            time.sleep(0.5)
    steps = [event.data for event in client.events(run_id) if event.type == "metrics"]
    for step in steps[:: max(1, len(steps) // POINTS)] + steps[-1:]:
        console.print(f"  step {step['step'] + 1:>4}  " + "  ".join(f"{name} {step[name]:.3f}" for name in stage.shown))
    return run


def accuracy(folder: Path) -> float:
    """Share of the held-out sums that the model in `folder` answers correctly by greedy decoding."""
    rows = [row for row in problems() if held_out(row["prompt"])]
    return exact_match(AutoModelForCausalLM.from_pretrained(folder), answer_tokens(character_tokenizer(), rows))


if __name__ == "__main__":
    sys.exit(main())
