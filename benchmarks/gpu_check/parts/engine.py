"""Part 4: the embedded engine on the device: the trainer's log-probabilities, equal bits, and tokens a second beside the roofline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from gpu_check.context import Context
from gpu_check.random_models import HALF_BILLION, LARGER, TINY, parameters, write_model
from gpu_check.sampled import GROUP, MISMATCH, differences, drawn, mismatch, prompt_groups
from gpu_check.timing import wall
from gradbus.formats.model_config import read_model_config
from gradbus_rollout.engines.base import GroupCompletion, PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig

_FP32_NATS: Final = 1e-4
_NEW: Final = 48
"""Tokens of the samples whose bits are compared."""


def run(context: Context) -> None:
    """The tiny model in both dtypes, then speeds in bfloat16."""
    tiny = write_model(context.folder / "tiny", TINY, context.device)
    _beside_the_trainer(context, tiny)
    _bits(context, "tiny", tiny, 16)
    _other_weights(context, tiny)
    if context.dry:
        return _speed(context, "tiny", tiny, (8,), 12, 4)
    half = write_model(context.folder / "0.5B", HALF_BILLION, context.device, torch.bfloat16)
    for slots in (64, 256):
        _bits(context, "0.5B", half, slots)
    _speed(context, "0.5B", half, (64, 256), 960, 64)
    larger = write_model(context.folder / "1.7B", LARGER, context.device, torch.bfloat16)
    _bits(context, "1.7B", larger, 64)
    return _speed(context, "1.7B", larger, (64,), 960, 32)


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


def _bits(context: Context, name: str, folder: Path, slots: int) -> None:
    """A prompt's samples alone are those among others, those computed without graphs, and those whose engine lost the device meanwhile.

    The cache has 256 positions at first, so it grows while the first samples are decoded.
    """
    vocabulary, what = read_model_config(folder).vocab_size, f"{name}, {slots} slots: a sample's bits"
    probe, others = prompt_groups(vocabulary, 1, 240)[0], prompt_groups(vocabulary, slots // GROUP + 2, 360)
    engine = _engine(folder, context, slots, _NEW, torch.bfloat16)
    alone = drawn(asyncio.run(engine.generate([probe])))
    context.holds(f"{what} alone and first among others", drawn(asyncio.run(engine.generate([probe, *others]))[:1]) == alone)
    context.holds(f"{what} alone and last among others", drawn(asyncio.run(engine.generate([*others, probe]))[-1:]) == alone)
    context.holds(f"{what} after a release while it ran", drawn(asyncio.run(_interrupted(engine, folder, probe))) == alone)
    asyncio.run(engine.close())
    eager = _engine(folder, context, slots, _NEW, torch.bfloat16)
    for graph in eager._scheduler._graphs:  # no setting of a run switches them off
        graph.uses_graph = False
    context.holds(f"{what} by graphs and kernel by kernel", drawn(asyncio.run(eager.generate([probe]))) == alone)
    asyncio.run(eager.close())


def _other_weights(context: Context, folder: Path) -> None:
    """Weights that are loaded between two calls are those that the second call computes with."""
    probe, changed = prompt_groups(TINY["vocab_size"], 1, 40), folder / "changed.safetensors"
    save_file({name: 1.25 * tensor for name, tensor in load_file(folder / "model.safetensors").items()}, changed)
    used, fresh = (_engine(folder, context, 16, _NEW, torch.float32) for _ in range(2))
    before = drawn(asyncio.run(used.generate(probe)))
    for engine in (used, fresh):
        asyncio.run(engine.load([changed], 1))
    found, expected = (drawn(asyncio.run(engine.generate(probe))) for engine in (used, fresh))
    context.holds("samples of weights that were loaded between two calls", found == expected != before)
    for engine in (used, fresh):
        asyncio.run(engine.close())


async def _interrupted(engine: TorchEngine, folder: Path, group: PromptGroup) -> list[GroupCompletion]:
    """The group's samples, with a release and a load after some tokens."""
    before = await engine.progress()
    running = asyncio.create_task(engine.generate([group]))
    while await engine.progress() < before + 30 and not running.done():  # noqa: ASYNC110 - chunks of the prompt, and some tokens
        await asyncio.sleep(0.001)
    await engine.release()
    await engine.load([folder / "model.safetensors"], 0)
    return await running


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
    """Of the fastest of three generations after the first; all samples run side by side."""
    engine = _engine(folder, context, GROUP * len(groups), new, torch.bfloat16)
    asyncio.run(engine.generate(groups))
    took = min(wall(lambda: asyncio.run(engine.generate(groups)), context.device) for _ in range(3))
    asyncio.run(engine.close())
    return took


def _bytes_of_step(folder: Path, slots: int, context_length: int) -> float:
    """Bfloat16 weights, of which the embedding counts once, and the keys and values of all slots."""
    total, embedding = parameters(folder)
    config = read_model_config(folder)
    weights = total if config.tied else total - embedding
    return 2.0 * (weights + slots * context_length * config.kv_width * config.layers)
