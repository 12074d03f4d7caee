"""Selects the engine that a spec names. To add one, write its `Engine`, its `EngineTraits` and an `_open_` method here."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from gradbus.aio.threads import in_run_thread
from gradbus.errors import SettingsError
from gradbus.formats.model_config import read_model_config
from gradbus.process.limits import check_threads
from gradbus.spec import LoraSpec, RunSpec
from gradbus.spec.engine_traits import ENGINES, EngineName
from gradbus_rollout.engines.base import Engine, RouteShape
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings
from gradbus_rollout.settings import Settings

_Open = Callable[[Path, RunSpec, frozenset[int]], Awaitable[Engine]]


class EngineFactory:
    """Opens engines of the shape of a model folder, without weights."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: Mapping[EngineName, _Open] = {"torch": self._open_torch, "sglang": self._open_sglang}

    @staticmethod
    def preload() -> None:
        """Imports torch, where it is installed, so that no run waits for it."""
        if find_spec("torch") is not None:
            import gradbus_rollout.engines.torch  # noqa: F401, PLC0415 - a worker of a server engine has no torch

    @staticmethod
    def release() -> None:
        """Frees what torch keeps of an engine that is closed."""
        if find_spec("torch") is not None:
            from gradbus_kernels.models.loading import return_device_memory  # noqa: PLC0415 - see `preload`

            return_device_memory()

    async def open(self, folder: Path, spec: RunSpec, stop_token_ids: frozenset[int]) -> Engine:
        """The engine of one run. Raises ModelError, SettingsError and, for a server that does not start, EngineError."""
        return await self._open[spec.rollout.engine](folder, spec, stop_token_ids)

    async def open_base(self, folder: Path, spec: RunSpec, stop_token_ids: frozenset[int]) -> Engine:
        """An embedded engine for the base model, whatever the run trains. Raises ModelError and SettingsError."""
        return await in_run_thread(lambda: self._torch_engine(folder, spec, stop_token_ids, None), "open engine")

    def broadcast_python(self, engine: EngineName) -> str:
        """A Python that has torch, for the process that takes part in weight broadcasts: the worker's own, or the server's."""
        return sys.executable if ENGINES[engine].embedded else SGLangSettings().python

    async def _open_torch(self, folder: Path, spec: RunSpec, stop_token_ids: frozenset[int]) -> Engine:
        return await in_run_thread(lambda: self._torch_engine(folder, spec, stop_token_ids, spec.trainer.lora), "open engine")

    def _torch_engine(self, folder: Path, spec: RunSpec, stop_token_ids: frozenset[int], lora: LoraSpec | None) -> Engine:
        from gradbus_kernels.models.device_memory import limit_memory_share  # noqa: PLC0415 - only this engine needs torch
        from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig  # noqa: PLC0415 - the same

        rollout = spec.rollout
        limit_memory_share(self._settings.device, rollout.engine_memory or 1.0)
        check_threads(rollout.threads, "rollout.threads")
        config = TorchEngineConfig(
            slots=rollout.slots,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop_token_ids=stop_token_ids,
            max_prompt_tokens=rollout.max_prompt_tokens,
            threads=rollout.threads,
            device=self._settings.device,
            # Merged into bfloat16 weights, what adapters learn first would be rounded away.
            dtype="bfloat16" if spec.trainer.dtype == "bf16" and lora is None else "float32",
            numerics=spec.numerics,
            kept_bytes=self._settings.kept_prefix_mib << 20 if spec.environment is not None else 0,
        )
        return TorchEngine.from_folder(folder, config, lora)

    async def _open_sglang(self, folder: Path, spec: RunSpec, stop_token_ids: frozenset[int]) -> Engine:
        rollout = spec.rollout
        config = SGLangConfig(
            slots=rollout.slots,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop_token_ids=stop_token_ids,
            max_prompt_tokens=rollout.max_prompt_tokens,
            pause=rollout.pause,
            lora=spec.trainer.lora,
            memory_fraction=rollout.engine_memory,
            takes_turns=rollout.placement == "timed",
            routes=RouteShape.of(read_model_config(folder)) if rollout.routing_replay else None,
        )
        settings = SGLangSettings()
        if config.takes_turns and settings.url:
            raise SettingsError(
                'rollout.placement = "timed" needs a server that the worker may end to free its memory; unset GRADBUS_SGLANG_URL, '
                'or set rollout.placement = "separate"'
            )
        cache = self._settings.cache_dir / "sglang" / self._settings.worker_id
        engine = SGLangEngine(folder, config, settings, cache)
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            raise
        return engine
