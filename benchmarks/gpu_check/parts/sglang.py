"""Part 9: a real SGLang server on the device: versions arrive, are attested, and its log-probabilities are the trainer's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from gpu_check.context import Context, SkipPartError
from gpu_check.random_models import TINY, Config, write_model
from gpu_check.sampled import MISMATCH, differences, mismatch, prompt_groups
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings

_START_SECONDS: Final = 100.0
_SMALL: Final[Config] = TINY | {"vocab_size": 4096, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024}
"""Heads of 64, which the attention kernels of servers take."""


def run(context: Context) -> None:
    """Three versions; the first again at the end, which must be the first in everything."""
    if not os.environ.get("GRADBUS_SGLANG_PYTHON"):
        raise SkipPartError("GRADBUS_SGLANG_PYTHON is not set; set it to the Python of an environment with SGLang to check that engine")
    folder = write_model(context.folder / "model", _SMALL, context.device, torch.bfloat16)
    asyncio.run(_served(context, folder))


async def _served(context: Context, folder: Path) -> None:
    config = SGLangConfig(slots=16, max_new_tokens=24)
    engine = SGLangEngine(folder, config, SGLangSettings(start_seconds=_START_SECONDS), context.folder / "cache")
    try:
        await engine.start()
        context.fact("versions", {"sglang": engine.name})
        for step, version in ((0, 0), (1, 1), (2, 0)):
            model = _version(context, folder, version)
            attested = await engine.load([model / "model.safetensors"], step)
            context.holds(
                f"load {step}: the digest of version {version}", attested == weights_digest(load_file(model / "model.safetensors"))
            )
            groups = prompt_groups(_SMALL["vocab_size"], 4, 60)
            found = await engine.generate(groups)
            apart = differences(model, groups, found, torch.bfloat16, context.device)
            context.correct(f"load {step}: mean ratio to the trainer's, minus 1", mismatch(apart), MISMATCH)
    finally:
        await engine.close()


def _version(context: Context, folder: Path, version: int) -> Path:
    """The model with matrices that grow from version to version."""
    model = context.folder / f"version-{version}"
    if not model.exists():
        model.mkdir()
        (model / "config.json").write_text((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        save_file({name: tensor * (1 + 0.2 * version * ("proj" in name)) for name, tensor in tensors.items()}, model / "model.safetensors")
    return model
