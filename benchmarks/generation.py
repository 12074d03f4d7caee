"""Tokens per second of the embedded engine beside `model.generate`, in turns, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/generation.py [--size demo|5m|27m|60m|150m] [--dtype fp32|bf16] [--rounds 15]

The demo's model has hidden size 64, 2 layers, 4 heads and 86 thousand parameters; the others are those of `compare_trl.py`. Prompts of
8 tokens and 32 new ones; then, in float32, what a training step of the demo asks for: 32 groups of 8, prompts of 6 to 9 tokens, 5 new
ones, 256 slots. Both take turns in one process; medians of CPU time of the process, and of wall time beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch
from comparison import models
from transformers import LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gradbus_kernels.models.dtypes import DTYPES
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig

PROMPT, NEW, GROUP = 8, 32, 8
SLOTS: Final = (16, 64, 256)


def make_model(size: str) -> Qwen2ForCausalLM | LlamaForCausalLM:
    """A model with random weights in float32."""
    if size != "demo":
        return models.random_llama(models.SHAPES[size], models.word_tokenizer())
    config = Qwen2Config(
        vocab_size=56,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def save(model: Qwen2ForCausalLM | LlamaForCausalLM, folder: Path) -> None:
    """Saves the model. The tokenizer is a placeholder, because only token ids are used."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")


def clocks() -> np.ndarray:
    """CPU seconds and wall-clock seconds, `[2]`."""
    return np.array([time.process_time(), time.perf_counter()])


def time_generate(model: Qwen2ForCausalLM | LlamaForCausalLM, slots: int) -> np.ndarray:
    """Seconds, `[2]`, for `slots` samples through transformers."""
    prompts = torch.randint(0, model.config.vocab_size, (slots, PROMPT))
    begin = clocks()
    with torch.inference_mode():
        out = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, max_new_tokens=NEW, min_new_tokens=NEW
        )
    seconds = clocks() - begin
    assert out.shape == (slots, PROMPT + NEW)
    return seconds


async def time_engine(engine: TorchEngine, lengths: list[int]) -> np.ndarray:
    """Seconds, `[2]`, for groups of 8 with prompts of these lengths."""
    prompts = [torch.randint(0, 56, (length,)).tolist() for length in lengths]
    groups = [PromptGroup(str(i), tuple(ids), tuple(range(i * GROUP, (i + 1) * GROUP))) for i, ids in enumerate(prompts)]
    begin = clocks()
    await engine.generate(groups)
    return clocks() - begin


async def measure(size: str, dtype: str, slots: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Median tokens per second of CPU and of wall: (transformers, engine)."""
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), make_model(size).to(DTYPES[dtype])
        save(model, folder)
        config = TorchEngineConfig(slots=slots, max_new_tokens=NEW, dtype="bfloat16" if dtype == "bf16" else "float32")
        engine = TorchEngine.from_folder(folder, config)
        await engine.load([folder / "model.safetensors"], 0)
        theirs, ours = [], []
        for _ in range(rounds + 1):
            theirs.append(time_generate(model, slots))
            ours.append(await time_engine(engine, [PROMPT] * (slots // GROUP)))
        await engine.close()
    # The first round is a warm-up.
    return slots * NEW / np.median(theirs[1:], axis=0), slots * NEW / np.median(ours[1:], axis=0)


async def measure_step(rounds: int) -> float:
    """Median CPU seconds of one demo step's 256 samples."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(make_model("demo"), folder)
        engine = TorchEngine.from_folder(folder, TorchEngineConfig(slots=256, max_new_tokens=5))
        await engine.load([folder / "model.safetensors"], 0)
        times = [await time_engine(engine, [6 + number % 4 for number in range(32)]) for _ in range(rounds + 1)]
        await engine.close()
    return float(np.median(times[1:], axis=0)[0])


def main() -> None:
    """Prints a table with one line for each batch size, then the demo's step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("demo", *models.SHAPES), default="demo")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.size}, {options.dtype}:\n")
    print("| slots | generate, tokens/CPU s | engine, tokens/CPU s | ratio | ratio of wall times |\n|---:|---:|---:|---:|---:|")
    for slots in SLOTS:
        theirs, ours = asyncio.run(measure(options.size, options.dtype, slots, options.rounds))
        cpu, wall = ours / theirs
        print(f"| {slots} | {theirs[0]:,.0f} | {ours[0]:,.0f} | {cpu:.2f} | {wall:.2f} |", flush=True)
    if options.size == "demo" and options.dtype == "fp32":
        print(f"\nA step of the demo, 256 samples at 256 slots: {1000 * asyncio.run(measure_step(options.rounds)):.1f} ms of CPU.")


if __name__ == "__main__":
    main()
