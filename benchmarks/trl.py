"""The demo's run in TRL: the same base model, data, reward and settings in one process; prints one line of JSON.

python benchmarks/trl.py [--steps 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# This file has the name of the package that it measures, so its folder must leave the path; the examples' folder is added.
sys.path.remove(str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch
from addition import make_model
from datasets import Dataset
from tiny_models import MADE, SPECIAL, held_out
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GROUPS_PER_STEP = 32
GROUP_SIZE = 8
EOS = SPECIAL.index("<eos>")


class StepClock(TrainerCallback):
    """Wall and CPU seconds of every optimiser step, and the mean reward that TRL logs."""

    def __init__(self) -> None:
        self.wall = [time.monotonic()]
        self.cpu = [cpu_seconds()]
        self.rewards: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Called by TRL."""
        self.wall.append(time.monotonic())
        self.cpu.append(cpu_seconds())

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        """Called by TRL."""
        if "reward" in logs:
            self.rewards.append(float(logs["reward"]))


def cpu_seconds() -> float:
    """CPU seconds of this process and its reaped children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
    """The reward of addition.toml: half for correct positions, half for an exact answer that ended."""
    scores = []
    for text, ids, right in zip(completions, completion_ids, answer, strict=True):
        digits = sum(given == wanted for given, wanted in zip(text, right, strict=False)) / len(right)
        exact = float(text == right and EOS in ids)
        scores.append(0.5 * digits + 0.5 * exact)
    return scores


def configuration(steps: int, seed: int, folder: str) -> GRPOConfig:
    """addition.toml as TRL's settings; everything that costs time and is not the algorithm is off."""
    return GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=steps,
        per_device_train_batch_size=GROUPS_PER_STEP * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        steps_per_generation=1,
        num_iterations=1,
        max_completion_length=make_model.ANSWER_TOKENS,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        learning_rate=1e-3,
        lr_scheduler_type="linear",
        warmup_steps=10,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        epsilon=0.2,
        entropy_coef=0.003,
        loss_type="dapo",
        scale_rewards="group",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )


def measure(steps: int, seed: int, base: Path, threads: int) -> dict[str, Any]:
    """Runs `steps` steps; rates leave out the first fifth (warm-up)."""
    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(base / "model", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(base / "model", dtype=torch.float32)
    rows = [json.loads(line) for line in (base / "train.jsonl").read_text().splitlines()]
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=configuration(steps, seed, folder),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    warm = len(clock.wall) // 5
    counted = len(clock.wall) - 1 - warm
    evaluation = [row for row in make_model.problems() if held_out(row["prompt"])]
    return {
        "system": "TRL" if threads == 1 else f"TRL, {threads} threads",
        "steps": steps,
        "seed": seed,
        "steps_per_second": counted / (clock.wall[-1] - clock.wall[warm]),
        "cpu_seconds_per_step": (clock.cpu[-1] - clock.cpu[warm]) / counted,
        "wall_seconds": clock.wall[-1] - clock.wall[0],
        "cpu_seconds": clock.cpu[-1] - clock.cpu[0],
        "reward": sum(clock.rewards[-20:]) / len(clock.rewards[-20:]),
        "accuracy": make_model.exact_match(model, make_model.answer_tokens(tokenizer, evaluation)),
        "rewards": clock.rewards,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The demo's run in TRL.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, help="folder made by examples/addition/make_model.py")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    options = parser.parse_args()
    base = options.base or make_model.make(MADE / "addition", make_model.Settings(seed=options.seed))
    print(json.dumps(measure(options.steps, options.seed, base, options.threads)))
