"""An engine with a progress watchdog.

A worker that waits for a stuck device keeps its claims, so nobody else samples its groups. The watchdog ends every call to an
engine without progress, and the process ends with it: nothing less frees the device. Its supervisor starts the process again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gradbus.aio.tasks import run_to_end
from gradbus.errors import EngineHungError
from gradbus_rollout.engines.base import Engine, ExpectedLogprobs, GroupCompletion, PromptGroup
from gradbus_rollout.engines.generation_metrics import GenerationMetrics
from gradbus_rollout.engines.progress_watch import ProgressWatch

_CLOSE_SECONDS = 10.0


class WatchedEngine:
    """`Engine` around another engine. Calls raise EngineHungError once it has made no progress for `limit` seconds."""

    def __init__(self, engine: Engine, limit: float) -> None:
        self._engine = engine
        self._metrics = GenerationMetrics(engine.name)
        self._watch = ProgressWatch(engine, limit)

    @property
    def name(self) -> str:
        """See `Engine.name`."""
        return self._engine.name

    @property
    def version(self) -> int | None:
        """See `Engine.version`."""
        return self._engine.version

    async def progress(self) -> int:
        """See `Engine.progress`."""
        return await self._engine.progress()

    async def load(self, weights: Sequence[Path], version: int, probe: ExpectedLogprobs | None = None) -> str:
        """See `Engine.load`."""
        self._watch.is_released = False
        async with self._watch.over(f"a load of version {version}"):
            return await self._engine.load(weights, version, probe)

    async def generate(self, groups: Sequence[PromptGroup]) -> Sequence[GroupCompletion]:
        """See `Engine.generate`."""
        async with self._watch.over(f"{len(groups)} groups"):
            with self._metrics.measured(groups) as generated:
                generated.completions = await self._engine.generate(groups)
            return generated.completions

    async def release(self) -> None:
        """See `Engine.release`. Calls in flight have no deadline until the next load."""
        async with self._watch.over("a release of the device"):
            await self._engine.release()
        self._watch.is_released = True

    async def close(self) -> None:
        """See `Engine.close`; a hung engine is left to the end of the process.

        A cancelled caller waits for the close too: the next run's engine must not meet this engine's server.
        """
        await run_to_end(self._close())

    async def _close(self) -> None:
        await self._watch.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._engine.close()
        except TimeoutError:
            raise EngineHungError(f"{self.name} did not close in {_CLOSE_SECONDS:.0f} s; the worker ends: start it again") from None
