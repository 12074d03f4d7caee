"""Samples groups on the server: one request a sample, sent again from the tokens so far when it was aborted or failed."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from gradbus.aio.tasks import cancel_and_wait, gather_or_cancel
from gradbus.errors import EngineError, ModelError
from gradbus.telemetry import Interval
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup
from gradbus_rollout.engines.server.slots import Slots
from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.loader import WeightLoader
from gradbus_rollout.engines.sglang.partial_sample import PartialSample, began_with
from gradbus_rollout.engines.sglang.recovery import Recovery
from gradbus_rollout.engines.sglang.server import Server

_FAILURES: Final = 6
"""Failures of one sample, whatever other samples do: a prompt that kills the server must not keep its group for ever."""
_SHARED_PREFIX_TOKENS: Final = 64
"""Prompts of at least this length are prefilled once, before the samples of their group ask for them."""
_ABORTS_SECONDS: Final = 2.0


class GroupSampler:
    """Every sample in flight, of all `generate` calls."""

    def __init__(
        self, config: SGLangConfig, settings: SGLangSettings, server: Server, slots: Slots, loader: WeightLoader, recovery: Recovery
    ) -> None:
        self._config = config
        self._settings = settings
        self._server = server
        self._slots = slots
        self._loader = loader
        self._recovery = recovery
        self._tasks: set[asyncio.Task[Any]] = set()
        self._end_reason = ""

    async def generate(self, groups: Sequence[PromptGroup]) -> list[GroupCompletion]:
        """Samples checked groups. Raises EngineError when the server fails again and again, ModelError when the engine broke."""
        call = asyncio.create_task(gather_or_cancel([self._group(group) for group in groups]), name="generate")
        self._track(call)
        try:
            return await call
        except asyncio.CancelledError:
            self.refuse_if_ended()
            raise

    def refuse_if_ended(self) -> None:
        """Raises ModelError once the engine broke or was closed."""
        if self._end_reason:
            raise ModelError(self._end_reason)

    async def close(self) -> None:
        """Ends all calls with ModelError. Returns when they have ended and their samples are aborted on the server."""
        self._end("the engine is closed; start another")
        await cancel_and_wait(*self._tasks)
        if self._tasks:  # the aborts of the cancelled samples
            await asyncio.wait(self._tasks, timeout=_ABORTS_SECONDS)

    async def _group(self, group: PromptGroup) -> GroupCompletion:
        prefill: Interval | None = None
        if len(group.seeds) > 1 and len(group.prompt_ids) >= _SHARED_PREFIX_TOKENS:
            prefill = await self._share_prefix(group)
        completions = tuple(await gather_or_cancel([self._sample(group, n) for n in range(len(group.seeds))]))
        return GroupCompletion(group.key, completions, prefill, None if group.is_greedy(0) else self._config.routes)

    async def _share_prefix(self, group: PromptGroup) -> Interval:
        """Puts the prompt into the server's prefix cache; otherwise each sample would prefill the prompt for itself."""
        body = {"input_ids": group.prompt_ids, "sampling_params": {"max_new_tokens": 0}, "extra_key": self._loader.cache_key}
        began = time.time_ns()
        with contextlib.suppress(EngineError):  # the samples meet the same failure, and repair the server
            async with self._slots.taken():
                began = time.time_ns()
                with self._loader.adapter() as adapter:
                    await self._server.api.generate(body | {"lora_path": adapter}, self._settings.sample_seconds)
        return began, time.time_ns()

    async def _sample(self, group: PromptGroup, n: int) -> Completion:
        partial, began, failures = PartialSample(group, n, self._config), 0, 0
        while True:
            try:
                async with self._slots.taken():
                    loads, began = self._loader.loads, began or time.time_ns()
                    completion = await self._request(partial)
            except EngineError as error:
                failures += 1
                if failures > _FAILURES:
                    raise self._server.diagnosed(error) from error
                await self._recovery.repair(error, loads)
                continue
            except ModelError as error:
                self._end(f"the engine broke: {error}")
                raise ModelError(self._end_reason) from error
            self._recovery.sample_completed()
            self._server.replies += 1
            if completion is not None:
                return replace(completion, times=(began, time.time_ns()))

    async def _request(self, partial: PartialSample) -> Completion | None:
        """Asks for the rest of a sample; None when the sample is not complete yet."""
        request_id, label = uuid.uuid4().hex, self._loader.label
        with self._loader.adapter() as adapter:
            adapter_version = None if adapter is None else self._loader.adapters.version(adapter)
            body = partial.request(request_id, self._loader.cache_key, adapter)
            try:
                reply = await self._server.api.generate(body, self._settings.sample_seconds)
            except asyncio.CancelledError:
                self._track(asyncio.create_task(self._abort(request_id), name="abort"))
                raise
            # Read after the reply, which may carry a label that was given while it was under way.
            versions = self._loader.versions_by_label(adapter_version)
        first = began_with(reply)
        if self._config.pause == "in_place" and first != label and first in self._loader.versions_by_label(None):
            return None  # it waited over a load, so the old weights may have computed its prompt: ask again
        return partial.take(reply, versions)

    async def _abort(self, request_id: str) -> None:
        with contextlib.suppress(EngineError):  # a server that is gone samples nothing
            await self._server.api.abort(request_id)

    def _track(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        for task in self._tasks:
            task.cancel()
