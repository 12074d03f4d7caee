"""A run in TRL: the same base model, data, reward and settings as Gradbus's, in one process; prints one line of JSON.

    python benchmarks/trl_run.py [--size demo|5m|27m|60m|150m|450m] [--steps 100] [--threads 1] [--precision fp32|autocast|bf16]
                                 [--batching] [--device cuda]

`autocast` is TRL's `bf16 = True` over float32 weights; `bf16` loads and trains the model in bfloat16, moments too.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch
from addition import make_model
from comparison import even_words, models
from datasets import Dataset
from tiny_models import MADE, SPECIAL, held_out
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

EOS = SPECIAL.index("<eos>")


@dataclass(frozen=True)
class Settings:
    """One of the ways in which TRL can do the same work."""

    threads: int = 1
    precision: Literal["fp32", "autocast", "bf16"] = "fp32"
    batching: bool = False
    """Generates by transformers' continuous batching instead of `generate`."""
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True)
class Task:
    """What is trained: a folder with `model/` and `train.jsonl`, the reward, and TRL's settings for it."""

    base: Path
    reward: Callable[..., list[float]]
    settings: dict[str, Any] = field(default_factory=dict)


class StepClock(TrainerCallback):
    """Wall and CPU seconds of every optimiser step, and the mean reward and length that TRL logs."""

    def __init__(self) -> None:
        self.wall = [time.monotonic()]
        self.cpu = [cpu_seconds()]
        self.rewards: list[float] = []
        self.lengths: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Called by TRL."""
        self.wall.append(time.monotonic())
        self.cpu.append(cpu_seconds())

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        """Called by TRL."""
        if "reward" in logs:
            self.rewards.append(float(logs["reward"]))
            self.lengths.append(float(logs["completions/mean_length"]))


def cpu_seconds() -> float:
    """CPU seconds of this process and its reaped children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def addition_reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
    """The reward of addition.toml: half for correct positions, half for an exact answer that ended."""
    scores = []
    for text, ids, right in zip(completions, completion_ids, answer, strict=True):
        digits = sum(given == wanted for given, wanted in zip(text, right, strict=False)) / len(right)
        exact = float(text == right and EOS in ids)
        scores.append(0.5 * digits + 0.5 * exact)
    return scores


def even_words_reward(completions: list[str], **_: Any) -> list[float]:
    """The grader that Gradbus runs."""
    return [even_words.grade({"output_text": text}, {}) for text in completions]


def addition(base: Path) -> Task:
    """The demo: addition.toml as TRL's settings."""
    settings = {
        "per_device_train_batch_size": 32 * 8,
        "num_generations": 8,
        "max_completion_length": make_model.ANSWER_TOKENS,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 10,
        "entropy_coef": 0.003,
    }
    return Task(base, addition_reward, settings)


def random_model(base: Path) -> Task:
    """The random models: `models.run_spec` as TRL's settings."""
    settings = {
        "per_device_train_batch_size": models.GROUPS * models.GROUP_SIZE,
        "num_generations": models.GROUP_SIZE,
        "max_completion_length": models.NEW_TOKENS,
        "learning_rate": models.LEARNING_RATE,
        "lr_scheduler_type": "constant",
    }
    return Task(base, even_words_reward, settings)


def configuration(task: Task, steps: int, seed: int, settings: Settings, folder: str) -> GRPOConfig:
    """Gradbus's settings as TRL's; everything that costs time and is not the algorithm is off."""
    return GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=steps,
        steps_per_generation=1,
        num_iterations=1,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        epsilon=0.2,
        loss_type="dapo",
        scale_rewards="group",
        use_cpu=settings.device == "cpu",
        bf16=settings.precision == "autocast",
        use_transformers_continuous_batching=settings.batching,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        **task.settings,
    )


def train(task: Task, steps: int, seed: int, settings: Settings) -> tuple[StepClock, GRPOTrainer]:
    """Runs `steps` steps."""
    torch.set_num_threads(settings.threads)
    tokenizer = AutoTokenizer.from_pretrained(task.base / "model", padding_side="left")
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(task.base / "model", dtype=dtype)
    rows = [json.loads(line) for line in (task.base / "train.jsonl").read_text().splitlines()]
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=task.reward,
            args=configuration(task, steps, seed, settings, folder),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock, trainer


def measured(clock: StepClock, warm: int) -> dict[str, Any]:
    """The rates after the first `warm` steps."""
    counted = len(clock.wall) - 1 - warm
    seconds = (clock.wall[-1] - clock.wall[warm]) / counted
    lengths = clock.lengths[warm:]
    return {
        "steps_per_second": 1 / seconds,
        "seconds_per_step": seconds,
        "cpu_seconds_per_step": (clock.cpu[-1] - clock.cpu[warm]) / counted,
        "wall_seconds": clock.wall[-1] - clock.wall[0],
        "cpu_seconds": clock.cpu[-1] - clock.cpu[0],
        "response_tokens": sum(lengths) / len(lengths),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "reward": sum(clock.rewards[-20:]) / len(clock.rewards[-20:]),
        "rewards": clock.rewards,
    }


def accuracy(trainer: GRPOTrainer) -> float:
    """Held-out exact match of the demo's model."""
    evaluation = [row for row in make_model.problems() if held_out(row["prompt"])]
    return make_model.exact_match(trainer.model, make_model.answer_tokens(trainer.processing_class, evaluation))


def main() -> None:
    """Runs, and prints the measurements."""
    parser = argparse.ArgumentParser(description="A run in TRL.")
    parser.add_argument("--size", choices=("demo", *models.SHAPES), default="demo")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, help="folder made by examples/addition/make_model.py or comparison/models.py")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--precision", choices=("fp32", "autocast", "bf16"), default="fp32")
    parser.add_argument("--batching", action="store_true", help="continuous batching")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    settings = Settings(options.threads, options.precision, options.batching, options.device)
    if options.size == "demo":
        base = options.base or make_model.make(MADE / "addition", make_model.Settings(seed=options.seed))
        clock, trainer = train(addition(base), options.steps, options.seed, settings)
        print(json.dumps(measured(clock, (options.steps + 1) // 5) | {"accuracy": accuracy(trainer)}))
    else:
        clock, _ = train(random_model(options.base or models.make(options.size)), options.steps, options.seed, settings)
        print(json.dumps(measured(clock, 1)))


if __name__ == "__main__":
    main()
