"""An engine that is not waited for when it no longer gets anywhere.

A worker that waits for a stuck device goes on claiming its groups, so nobody else samples them. Here every call ends, and
with it the process: nothing less frees the device, and its supervisor starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gradbus.aio.tasks import background, until_done
from gradbus.errors import EngineHungError
from gradbus_rollout.engines.base import Engine, GroupCompletion, PromptGroup, VersionProbe
from gradbus_rollout.engines.generation_metrics import GenerationMetrics

_LOOKS = 8
_CLOSE_SECONDS = 10.0


class WatchedEngine:
    """`Engine` around another. Calls raise EngineHungError once that one has made no progress for `limit` seconds."""

    def __init__(self, engine: Engine, limit: float) -> None:
        self._engine = engine
        self._limit = limit
        self._generation = GenerationMetrics(engine.name)

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

    async def load(self, weights: Sequence[Path], version: int, probe: VersionProbe | None = None) -> str:
        """See `Engine.load`."""
        async with self._watch(f"version {version} to be loaded"):
            return await self._engine.load(weights, version, probe)

    async def generate(self, groups: Sequence[PromptGroup]) -> Sequence[GroupCompletion]:
        """See `Engine.generate`."""
        async with self._watch(f"{len(groups)} groups"):
            with self._generation.measured(groups) as generated:
                generated.completions = await self._engine.generate(groups)
            return generated.completions

    async def close(self) -> None:
        """See `Engine.close`; a hung one is left to the end of the process.

        Whoever is cancelled closes it to the end all the same: the next run's engine must not meet its server.
        """
        await until_done(self._closed())

    async def _closed(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._engine.close()
        except TimeoutError:
            raise EngineHungError(f"{self.name} did not close in {_CLOSE_SECONDS:.0f} s; the worker ends: start it again") from None

    @asynccontextmanager
    async def _watch(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limit) as deadline, background(self._postpone(deadline), "engine progress"):
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            raise EngineHungError(
                f"{self.name} has {what} to do and got nowhere for {self._limit:.0f} s; the worker ends and is to be started again: "
                "look at the device, or raise GRADBUS_ENGINE_PROGRESS_SECONDS for a slow one"
            ) from None

    async def _postpone(self, deadline: asyncio.Timeout) -> None:
        clock = asyncio.get_running_loop().time
        seen = await self._engine.progress()
        while True:
            await asyncio.sleep(self._limit / _LOOKS)
            if (progress := await self._engine.progress()) != seen:
                seen = progress
                deadline.reschedule(clock() + self._limit)
