"""Which engine samples a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gradbus.spec import LoraSpec, RunSpec
from gradbus_rollout.engines.base import Engine
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings
from gradbus_rollout.settings import Settings
from gradbus_rollout.tasks.prompts import PromptEncoder


class EngineFactory:
    """Opens the engine that a spec names, shaped by the run's model folder and without weights."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def open(self, folder: Path, spec: RunSpec, encoder: PromptEncoder) -> Engine:
        """The engine of one run. Raises ModelError."""
        if spec.rollout.engine == "sglang":
            return await self._sglang(folder, spec, encoder)
        return await asyncio.to_thread(self._torch, folder, spec, encoder, spec.trainer.lora)

    async def open_base(self, folder: Path, spec: RunSpec, encoder: PromptEncoder) -> Engine:
        """One that holds the base model itself, for a run whose versions are adapters. Raises ModelError."""
        return await asyncio.to_thread(self._torch, folder, spec, encoder, None)

    def _torch(self, folder: Path, spec: RunSpec, encoder: PromptEncoder, lora: LoraSpec | None) -> Engine:
        from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig  # noqa: PLC0415 - only this engine needs torch

        rollout = spec.rollout
        config = TorchEngineConfig(
            slots=rollout.slots,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop_token_ids=encoder.stop_token_ids,
            max_prompt_tokens=rollout.max_prompt_tokens,
            threads=rollout.threads,
            device=self._settings.device,
            numerics=spec.numerics,
        )
        return TorchEngine.from_folder(folder, config, lora)

    async def _sglang(self, folder: Path, spec: RunSpec, encoder: PromptEncoder) -> Engine:
        rollout = spec.rollout
        config = SGLangConfig(
            slots=rollout.slots,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop_token_ids=encoder.stop_token_ids,
            max_prompt_tokens=rollout.max_prompt_tokens,
            pause=rollout.pause,
            lora=spec.trainer.lora,
        )
        cache = self._settings.cache_dir / "sglang" / self._settings.worker_id
        engine = SGLangEngine(folder, config, SGLangSettings(), cache)
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            raise
        return engine
