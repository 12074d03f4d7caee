"""Runs on given responses beside TRL: the same random Llama, rows and settings, measured in turn.

    python benchmarks/given_responses.py [--kind sft|dpo] [--size 5m] [--steps 6] [--rounds 3]

Gradbus is the whole embedded stack, asked through REST; CPU seconds are those of all its processes. TRL is one process. Both train with one
thread and with two.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from comparison import models
from comparison.results import OURS, Row, store
from gradbus_run import measure, stack, step_ends

HERE: Final = Path(__file__).resolve().parent
ROWS: Final = 16
"""A step; DPO trains as many pairs."""
WORDS: Final = 128
_DATA: Final = 256


def make(size: str, folder: Path) -> None:
    """Writes `model/` and `rows.jsonl`: prompts of about 64 tokens, and responses of 128 to them, none of which is likely."""
    tokenizer = models.word_tokenizer()
    tokenizer.eos_token = str(models.VOCABULARY - 1)  # one that the model has
    models.random_llama(models.SHAPES[size], tokenizer).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))


def rows() -> Iterator[dict[str, str]]:
    """Rows with a completion, and the same as the chosen of a pair."""
    draw = random.Random(0)
    for prompt in list(models.prompts())[:_DATA]:
        first, second = (" ".join(map(str, draw.choices(range(1, models.VOCABULARY - 1), k=WORDS - 1))) for _ in range(2))
        yield prompt | {"completion": first, "chosen": first, "rejected": second}


def run_gradbus(kind: str, base: Path, steps: int, threads: int) -> Row:
    """Rates after the first step."""
    spec: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "model": {"path": str(base / "model")},
        "data": {"train": str(base / "rows.jsonl")},
        "schedule": {"groups_per_step": ROWS, "steps": steps + 1},
        "trainer": {"learning_rate": models.LEARNING_RATE, "threads": threads},
        "checkpoint": {"every": steps + 1},
    }
    with tempfile.TemporaryDirectory() as state, stack(Path(state)) as folder:
        seen = measure(folder, spec)
    ends = step_ends(seen)
    spent = sum(seen.cpu_between(ends[0], ends[-1]).values())
    losses = [event["data"]["loss"] for event in seen.of_type("metrics")]
    return {
        "system": f"{OURS}, {threads} thread{'s' if threads > 1 else ''}",
        "seconds_per_step": (ends[-1] - ends[0]) / steps,
        "cpu_seconds_per_step": spent / steps,
        "peak_gib": seen.peaks["trainer"] / 2**30,
        "first_loss": losses[0],
    }


def run_trl(kind: str, base: Path, steps: int, threads: int) -> Row:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--trl", str(base), "--kind", kind, "--steps", str(steps), "--threads", str(threads)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    found: Row = json.loads(answer.stdout.splitlines()[-1])
    return {"system": f"TRL, {threads} thread{'s' if threads > 1 else ''}"} | found


def trl_process(kind: str, base: Path, steps: int, threads: int) -> Row:
    """Trains by TRL in this process."""
    import torch  # noqa: PLC0415 - of the child alone
    from datasets import Dataset  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback  # noqa: PLC0415
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # noqa: PLC0415
    from trl_run import StepClock  # noqa: PLC0415

    torch.set_num_threads(threads)
    columns = ("prompt", "completion") if kind == "sft" else ("prompt", "chosen", "rejected")
    data = [json.loads(line) for line in (base / "rows.jsonl").read_text().splitlines()]
    settings: dict[str, Any] = {
        "max_steps": steps + 1,
        "per_device_train_batch_size": ROWS,
        "learning_rate": models.LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "max_length": None,
    }
    clock = StepClock()
    trainer_of, config_of = (SFTTrainer, SFTConfig) if kind == "sft" else (DPOTrainer, DPOConfig)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(
            model=AutoModelForCausalLM.from_pretrained(base / "model", dtype=torch.float32),
            args=config_of(output_dir=folder, **settings),
            train_dataset=Dataset.from_list([{name: row[name] for name in columns} for row in data]),
            processing_class=AutoTokenizer.from_pretrained(base / "model"),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return {
        "seconds_per_step": (clock.wall[-1] - clock.wall[1]) / steps,
        "cpu_seconds_per_step": (clock.cpu[-1] - clock.cpu[1]) / steps,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "first_loss": trainer.state.log_history[0]["loss"],
    }


def main() -> None:
    """Runs the rounds in turn, and writes the medians to `results/given_responses.*`."""
    parser = argparse.ArgumentParser(description="Runs on given responses beside TRL.")
    parser.add_argument("--kind", choices=("sft", "dpo"), default="sft")
    parser.add_argument("--size", choices=tuple(models.SHAPES), default="5m")
    parser.add_argument("--steps", type=int, default=6, help="counted ones, after the first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--trl", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trl is not None:
        print(json.dumps(trl_process(options.kind, options.trl, options.steps, options.threads)))
        return
    results: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        make(options.size, Path(name))
        for _ in range(options.rounds):
            for threads in (1, 2):
                for run in (run_gradbus, run_trl):
                    results.append(run(options.kind, Path(name), options.steps, threads))
                    print(json.dumps(results[-1]), flush=True)
    file = HERE / "results" / "given_responses.json"
    key = f"{options.kind}, {options.size}, {ROWS} rows a step, {options.rounds} rounds of {options.steps} steps"
    file.with_suffix(".md").write_text(document(store(file, key, {"results": results})))


def document(sections: dict[str, Row]) -> str:
    """All sections as Markdown: medians over the rounds, least to most."""
    lines = ["# Runs on given responses beside TRL", ""]
    columns = {
        "seconds_per_step": "seconds a step",
        "cpu_seconds_per_step": "CPU seconds a step",
        "peak_gib": "peak memory of the trainer, GiB",
    }
    for key, section in sections.items():
        lines += [f"## {key}", "", f"| | {' | '.join(columns.values())} |", "|---" * (1 + len(columns)) + "|"]
        for system in dict.fromkeys(row["system"] for row in section["results"]):
            found = [[row[column] for row in section["results"] if row["system"] == system] for column in columns]
            cells = [f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})" for values in found]
            lines.append(f"| {system} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
