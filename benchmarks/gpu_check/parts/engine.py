"""Part 4: the embedded engine on the device: the trainer's log-probabilities, equal bits, and tokens a second beside the roofline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from gpu_check.context import Context
from gpu_check.random_models import HALF_BILLION, LARGER, TINY, parameters, write_model
from gpu_check.sampled import GROUP, MISMATCH, differences, drawn, mismatch, prompt_groups
from gpu_check.timing import wall
from gradbus.formats.model_config import read_model_config
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig

_FP32_NATS: Final = 1e-4


def run(context: Context) -> None:
    """The tiny model in both dtypes, then speeds in bfloat16."""
    tiny = write_model(context.folder / "tiny", TINY, context.device)
    _beside_the_trainer(context, tiny)
    if context.dry:
        return _speed(context, "tiny", tiny, (8,), 12, 4)
    _speed(context, "0.5B", write_model(context.folder / "0.5B", HALF_BILLION, context.device, torch.bfloat16), (64, 256), 960, 64)
    return _speed(context, "1.7B", write_model(context.folder / "1.7B", LARGER, context.device, torch.bfloat16), (64,), 960, 32)


def _engine(folder: Path, context: Context, slots: int, new: int, dtype: torch.dtype) -> TorchEngine:
    name = "bfloat16" if dtype == torch.bfloat16 else "float32"
    config = TorchEngineConfig(slots=slots, max_new_tokens=new, device=context.device, dtype=name)  # type: ignore[arg-type]
    engine = TorchEngine.from_folder(folder, config)
    asyncio.run(engine.load([folder / "model.safetensors"], 0))
    return engine


def _beside_the_trainer(context: Context, folder: Path) -> None:
    """Log-probabilities of what was sampled, computed again by the trainer's forward pass; a second run gives the same samples."""
    for dtype in (torch.float32, torch.bfloat16):
        name, groups = str(dtype).removeprefix("torch."), prompt_groups(TINY["vocab_size"], 6, 40)
        engine = _engine(folder, context, 16, 24, dtype)
        first, again = (asyncio.run(engine.generate(groups)) for _ in range(2))
        asyncio.run(engine.close())
        context.holds(f"{name}: the same samples twice, to the bit", drawn(first) == drawn(again))
        apart = differences(folder, groups, first, dtype, context.device)
        if dtype == torch.float32:
            context.correct(f"{name}: log-probabilities beside the trainer's", float(apart.max()), _FP32_NATS, "nats")
        else:
            context.correct(f"{name}: mean ratio to the trainer's, minus 1", mismatch(apart), MISMATCH)


def _speed(context: Context, name: str, folder: Path, slots: Sequence[int], prompt: int, new: int) -> None:
    """Decoded tokens a second without the prefill: by a long and a short generation from the same prompts."""
    for count in slots:
        groups = prompt_groups(read_model_config(folder).vocab_size, count // GROUP, prompt)
        long, short = (_seconds(context, folder, groups, tokens) for tokens in (new, new // 4))
        step = max(1e-9, (long - short) / (new - new // 4))
        rate = count * context.ceilings["copy"] / _bytes_of_step(folder, count, prompt + new)
        context.speed(f"{name}, {count} slots: decoding", count / step, "tokens/s", ("the roofline of weights and keys", rate), 0.25)
        prefill = max(1e-9, short - step * (new // 4))
        tokens = sum(len(group.prompt_ids) for group in groups)
        peak = context.ceilings["gemm_bf16"] / (2 * parameters(folder)[0])
        context.speed(f"{name}, {count} slots: prefill", tokens / prefill, "tokens/s", ("gemm_bf16", peak))


def _seconds(context: Context, folder: Path, groups: Sequence[PromptGroup], new: int) -> float:
    """Of the second generation; all samples run side by side."""
    engine = _engine(folder, context, GROUP * len(groups), new, torch.bfloat16)
    asyncio.run(engine.generate(groups))
    took = wall(lambda: asyncio.run(engine.generate(groups)), context.device)
    asyncio.run(engine.close())
    return took


def _bytes_of_step(folder: Path, slots: int, context_length: int) -> float:
    """Bfloat16 weights, of which the embedding counts once, and the keys and values of all slots."""
    total, embedding = parameters(folder)
    config = read_model_config(folder)
    weights = total if config.tied else total - embedding
    return 2.0 * (weights + slots * context_length * config.kv_width * config.layers)
