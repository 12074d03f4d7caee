"""`Engine` on an SGLang server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gradbus.aio.threads import in_run_thread
from gradbus.errors import EngineError, ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus_rollout.engines.base import ExpectedLogprobs, GroupCompletion, GroupLimits, PromptGroup, check_group
from gradbus_rollout.engines.server.slots import Slots
from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.loader import WeightLoader
from gradbus_rollout.engines.sglang.recovery import Recovery
from gradbus_rollout.engines.sglang.sampler import GroupSampler
from gradbus_rollout.engines.sglang.server import Server
from gradbus_rollout.engines.sglang.version_folders import VersionFolders

_UNLOAD_SECONDS: Final = 2.0


class SGLangEngine:
    """`Engine` on an SGLang server, which starts at `start` or at the first `load` and is started again when it fails."""

    def __init__(self, model: Path, config: SGLangConfig, settings: SGLangSettings, cache: Path) -> None:
        """`cache` is this worker's own folder. Raises ModelError for a folder that is not a model."""
        self._config = config
        self._info = check_model_folder(model)
        self._folders = VersionFolders(model, config, settings, cache)
        self.server = Server(model, config, settings, cache / "server.log")
        slots = Slots(config.slots)
        self._loader = WeightLoader(config, settings, self.server, slots, self._folders)
        self._recovery = Recovery(self.server, self._loader, self._folders)
        self._sampler = GroupSampler(config, settings, self.server, slots, self._loader, self._recovery)
        self._healthy_answers = 0

    @property
    def name(self) -> str:
        """Engine, version, device and dtype, e.g. `sglang 0.5.21 cuda bfloat16`."""
        return self._recovery.name

    @property
    def version(self) -> int | None:
        """The version loaded; None before the first load."""
        return self._recovery.current.version if self._recovery.current else None

    @property
    def limits(self) -> GroupLimits:
        """What it takes."""
        info, config = self._info, self._config
        return GroupLimits(info.context_length, info.vocab_size, config.max_new_tokens, config.max_prompt_tokens)

    async def progress(self) -> int:
        """See `Engine.progress`: replies to samples, and each time that the server generates a token when asked for its health.

        Starts and loads have deadlines of their own, `start_seconds` and `load_seconds`, and count as progress until then.
        """
        if self._recovery.is_working or self._loader.is_released or await self.server.api.healthy():
            self._healthy_answers += 1
        return self._healthy_answers + self.server.replies

    async def start(self) -> None:
        """Starts the server, unless it has been started. Raises EngineError."""
        await self._recovery.start()

    async def load(self, weights: Sequence[Path], version: int, probe: ExpectedLogprobs | None = None) -> str:
        """See `Engine.load`. Also raises AttestationError when the weights did not arrive, EngineError when no server comes up."""
        self._sampler.refuse_if_ended()
        prepared = await in_run_thread(lambda: self._folders.prepare(weights, version, probe), "prepare version")
        await self._recovery.load(prepared)
        return prepared.digest

    async def generate(self, groups: Sequence[PromptGroup]) -> list[GroupCompletion]:
        """See `Engine.generate`. Also raises EngineError when the server fails again and again."""
        self._sampler.refuse_if_ended()
        if self._recovery.current is None:
            raise ModelError("the engine has no weights yet; load a version first")
        for group in groups:
            check_group(group, self.limits)
        return await self._sampler.generate(groups)

    async def release(self) -> None:
        """See `Engine.release`. Samples in flight keep the tokens that they have; their prefixes are computed again."""
        self._sampler.refuse_if_ended()
        await self._recovery.release()

    async def close(self) -> None:
        """See `Engine.close`. May be called again."""
        await self._sampler.close()
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_UNLOAD_SECONDS):
                await self._loader.adapters.unload_all(self.server.api)
        await self.server.close()
        self._recovery.current = None
        self._loader.adapters.clear()
        self._folders.keep(set())
