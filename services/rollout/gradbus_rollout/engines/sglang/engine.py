"""The engine: samples within the slots, versions between them, and a server that is brought back when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gradbus.aio.tasks import cancel_and_wait, gathered
from gradbus.errors import EngineError, ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.safetensors import read_headers
from gradbus.telemetry import Interval, get_logger
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup, VersionProbe, check_group
from gradbus_rollout.engines.server.slots import Slots
from gradbus_rollout.engines.server.version_folder import drop_version_folder, drop_version_folders, make_version_folder, model_tensors
from gradbus_rollout.engines.sglang.adapters import make_adapter_folder, stored_adapters
from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.installer import Installer, LoadedVersion
from gradbus_rollout.engines.sglang.loaded_adapters import LoadedAdapters
from gradbus_rollout.engines.sglang.partial_sample import PartialSample, began_with
from gradbus_rollout.engines.sglang.server import Server
from gradbus_rollout.engines.sglang.tensors import check_fit, digest

_log = get_logger(__name__)
_REPAIRS: Final = 3
"""Repairs in a row, with no sample completed between them, before the failure is the worker's trouble."""
_FAILURES: Final = 6
"""Of one sample, whatever others do meanwhile: a prompt that the server dies of must not hold its group for good."""
_LABELS: Final = 64
_BASE: Final = -1
_SHARED_PREFIX_TOKENS: Final = 64
"""Prompts from this length on are prefilled once, before their group's samples ask for them."""
_ABORT_AGAIN_SECONDS: Final = 0.2
_FLUSH_AGAIN_SECONDS: Final = 0.02
_ABORTS_SECONDS: Final = 2.0


class SGLangEngine:
    """`Engine` on an SGLang server. The server starts at `start`, or at the first `load`."""

    def __init__(self, model: Path, config: SGLangConfig, settings: SGLangSettings, cache: Path) -> None:
        """Raises ModelError for a folder that is not a model."""
        self._model = model
        self._info = check_model_folder(model)
        self._tensors = model_tensors(model)
        self._config = config
        self._settings = settings
        # A folder of this worker's own, also where several share one: what it finds there it left when it was killed.
        self._versions = settings.weights_dir / cache.name if settings.weights_dir else cache
        drop_version_folders(self._versions)
        self._slots = Slots(config.slots)
        self._name = "sglang"
        self._held: LoadedVersion | None = None
        self._installer = Installer()
        self._adapters = LoadedAdapters()
        self._proven_life = 0
        """Life of the server in which the base model was proven, where versions are adapters."""
        self._labels: dict[str, int] = {}
        self._label = ""
        self._lock = asyncio.Lock()
        self._installs = 0
        self._repairs = 0
        self._progress = 0
        self._over = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._folders: set[Path] = set()
        self.server = Server(model, config, settings, cache / "server.log")

    @property
    def name(self) -> str:
        """Engine, version, device and dtype, e.g. `sglang 0.5.21 cuda bfloat16`."""
        return self._name

    @property
    def version(self) -> int | None:
        """The version held; None before the first load."""
        return self._held.version if self._held else None

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that leaves room for the response."""
        room = self._info.context_length - self._config.max_new_tokens
        return room if self._config.max_prompt_tokens is None else min(room, self._config.max_prompt_tokens)

    async def progress(self) -> int:
        """See `Engine.progress`: answers; while there are none, a server that generates a token when asked for its health.

        Starts and loads have deadlines of their own, `start_seconds` and `load_seconds`, and count as progress until then.
        """
        if self._lock.locked() or await self.server.api.healthy():
            self._progress += 1
        return self._progress

    async def start(self) -> None:
        """Brings the server up, unless it is. Raises EngineError."""
        async with self._lock:
            await self._up()

    async def load(self, weights: Sequence[Path], version: int, probe: VersionProbe | None = None) -> str:
        """See `Engine.load`. Also raises AttestationError when the weights did not arrive, EngineError when no server comes up."""
        self._refuse_when_over()
        held = await asyncio.to_thread(self._prepared, weights, version, probe)
        try:
            async with self._lock:
                await self._bring(held)
                self._held = held
                self._folders.add(held.folder)
                await asyncio.to_thread(self._drop_folders)
        except BaseException:
            if self._held is not held:
                drop_version_folder(held.folder)
            raise
        return held.digest

    async def generate(self, groups: Sequence[PromptGroup]) -> list[GroupCompletion]:
        """See `Engine.generate`. Also raises EngineError when the server fails again and again."""
        self._refuse_when_over()
        if self._held is None:
            raise ModelError("the engine holds no weights yet; load a version first")
        for group in groups:
            check_group(group, self.max_prompt_tokens, self._info.vocab_size)
        call = asyncio.create_task(gathered([self._group(group) for group in groups]), name="generate")
        self._keep(call)
        try:
            return await call
        except asyncio.CancelledError:
            self._refuse_when_over()
            raise

    async def close(self) -> None:
        """See `Engine.close`. May be called again."""
        self._end("the engine is closed; start another")
        await asyncio.gather(*(cancel_and_wait(task) for task in list(self._tasks)))
        if self._tasks:  # what the cancelled left: aborts on their way
            await asyncio.wait(self._tasks, timeout=_ABORTS_SECONDS)
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_ABORTS_SECONDS):
                await self._adapters.leave(self.server.api)
        await self.server.close()
        self._held = None
        self._adapters.clear()
        self._drop_folders()

    def _adapter(self) -> AbstractContextManager[str | None]:
        """What a request names inside the block; nothing where versions are weights."""
        return nullcontext() if self._config.lora is None else self._adapters.used()

    def _prepared(self, weights: Sequence[Path], version: int, probe: VersionProbe | None) -> LoadedVersion:
        """The version as a folder, checked against the model: nothing has changed when this raises ModelError."""
        tensors, lora, copy = read_headers(weights), self._config.lora, self._settings.copy_weights
        if lora is not None:
            check_fit(tensors, stored_adapters(self._tensors, lora))
            return LoadedVersion(version, digest(tensors), make_adapter_folder(self._versions, self._tensors, lora, weights, copy), probe)
        check_fit(tensors, {name: tensor.shape for name, tensor in self._tensors.items()})
        return LoadedVersion(version, digest(tensors), make_version_folder(self._versions, self._model, weights, copy), probe)

    def _drop_folders(self) -> None:
        """Removes those of versions that are neither held nor named by a request."""
        kept = self._adapters.folders | ({self._held.folder} if self._held else set())
        for folder in self._folders - kept:
            drop_version_folder(folder)
        self._folders &= kept

    # Samples

    async def _group(self, group: PromptGroup) -> GroupCompletion:
        prefill: Interval | None = None
        if len(group.seeds) > 1 and len(group.prompt_ids) >= _SHARED_PREFIX_TOKENS:
            prefill = await self._share_prefix(group)
        return GroupCompletion(group.key, tuple(await gathered([self._sample(group, seed) for seed in group.seeds])), prefill)

    async def _share_prefix(self, group: PromptGroup) -> Interval:
        """Puts the prompt into the server's prefix cache; without it every sample prefills the prompt for itself."""
        body = {"input_ids": group.prompt_ids, "sampling_params": {"max_new_tokens": 0}, "extra_key": self._cache_key}
        began = time.time_ns()
        with contextlib.suppress(EngineError):  # the samples meet it as well, and deal with it
            async with self._slots.taken():
                began = time.time_ns()
                with self._adapter() as adapter:
                    await self.server.api.generate(body | {"lora_path": adapter}, self._settings.sample_seconds)
        return began, time.time_ns()

    async def _sample(self, group: PromptGroup, seed: int) -> Completion:
        draft, began, failures = PartialSample(group, seed, self._config), 0, 0
        while True:
            try:
                async with self._slots.taken():
                    seen, began = self._installs, began or time.time_ns()
                    completion = await self._request(draft)
            except EngineError as error:
                failures += 1
                if failures > _FAILURES:
                    raise self.server.diagnosed(error) from error
                await self._repair(error, seen)
                continue
            except ModelError as error:
                self._end(f"the engine broke ({error}); restart the worker")
                raise ModelError(self._over) from error
            self._repairs = 0
            self._progress += 1
            if completion is not None:
                return replace(completion, times=(began, time.time_ns()))

    async def _request(self, draft: PartialSample) -> Completion | None:
        request_id, label = uuid.uuid4().hex, self._label
        with self._adapter() as adapter:
            adapted = None if adapter is None else self._adapters.version(adapter)
            body = draft.request(request_id, self._cache_key, adapter)
            try:
                reply = await self.server.api.generate(body, self._settings.sample_seconds)
            except asyncio.CancelledError:
                self._keep(asyncio.create_task(self._abort(request_id), name="abort"))
                raise
            # As they are now: a reply may show a label that was given while it was on its way.
            versions = self._labels if adapted is None else dict.fromkeys(self._labels, adapted)
        first = began_with(reply)
        if self._config.pause == "in_place" and first != label and first in self._labels:
            return None  # it waited over a load, and its prompt may have been computed by the old weights: once more
        return draft.take(reply, versions)

    async def _abort(self, request_id: str) -> None:
        with contextlib.suppress(EngineError):  # a server that is gone samples nothing
            await self.server.api.abort(request_id)

    @property
    def _cache_key(self) -> str:
        """Other at every load: a prefix that older weights computed is never used, also where the cache cannot be flushed."""
        return str(self._installs)

    # Versions

    async def _bring(self, held: LoadedVersion) -> None:
        """Installs a version, on a server started anew where the one there fails."""
        for attempt in range(1, _REPAIRS + 1):
            try:
                await self._up()
                await self._install(held)
                return
            except EngineError as found:
                error = self.server.diagnosed(found)
                if error.state in {"refused", "start_failed"} or attempt == _REPAIRS:
                    raise error from found
                _log.warning("engine_load_failed", state=error.state, version=held.version, attempt=attempt, error=str(error))
                if not await self._only_lost_a_connection(error):
                    await self.server.restart()

    async def _install(self, held: LoadedVersion) -> None:
        if self._config.lora is None:
            await self._install_weights(held)
            return
        if self._proven_life != self.server.lives:
            self._adapters.clear()
            base = await asyncio.to_thread(self._base, held.probe)
            self._folders.add(base.folder)
            await self._install_weights(base)
            self._proven_life = self.server.lives
        await self._adapters.put(self.server.api, held)
        self._installs += 1
        await self._adapters.tidy(self.server.api)

    def _base(self, probe: VersionProbe | None) -> LoadedVersion:
        """The run's model itself: adapters say nothing without it."""
        shards = sorted({tensor.file for tensor in self._tensors.values()})
        folder = make_version_folder(self._versions, self._model, shards, self._settings.copy_weights)
        plain = None if probe is None else replace(probe, logprobs=probe.base_logprobs)
        return LoadedVersion(_BASE, digest(self._tensors), folder, plain)

    async def _install_weights(self, held: LoadedVersion) -> None:
        api = self.server.api
        self._labels = dict([*self._labels.items(), (held.label, held.version)][-_LABELS:])
        async with self._slots.closed():
            if self._slots.used and self._config.pause != "abort":
                await api.pause(self._config.pause)
                try:
                    if self._config.pause == "retract":  # in place the cache is in use
                        await self._flushed()
                    await self._installer.install(api, held)
                finally:
                    await api.resume()
            else:
                await self._emptied()
                await self._flushed()
                await self._installer.install(api, held)
            self._installs += 1
            self._label = held.label

    async def _emptied(self) -> None:
        """Aborts what is in flight; the parts come back and go on after the load."""
        try:
            async with asyncio.timeout(self._settings.load_seconds):
                while self._slots.used:
                    await self.server.api.abort_all()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._slots.idle(), _ABORT_AGAIN_SECONDS)
        except TimeoutError:
            raise EngineError("hung", f"{self._slots.used} samples did not end when aborted; the server is started again") from None

    async def _flushed(self) -> None:
        """Empties the cache. A request stays with the server's loop a moment after its reply; a killed worker's may go on for long."""
        try:
            async with asyncio.timeout(self._settings.load_seconds):
                while not await self.server.api.flush():
                    if not self._slots.used:
                        await self.server.api.abort_all()
                    await asyncio.sleep(_FLUSH_AGAIN_SECONDS)
        except TimeoutError:
            raise EngineError("hung", "the server does not come to rest before a load; it is started again") from None

    async def _repair(self, error: EngineError, seen: int) -> None:
        """Makes the server hold the version again, unless another sample saw to it. Raises `error` when that does not help."""
        async with self._lock:
            if self._installs != seen:
                return
            self._repairs += 1
            error = self.server.diagnosed(error)
            if error.state == "refused" or self._repairs > _REPAIRS or self._held is None:
                raise error
            _log.warning("engine_failed", state=error.state, version=self._held.version, error=str(error))
            if await self._only_lost_a_connection(error):
                return
            if error.state == "wrong_version":
                self._proven_life = 0
            else:
                await self.server.restart()
            await self._bring(self._held)

    async def _only_lost_a_connection(self, error: EngineError) -> bool:
        return error.state == "dead" and not self.server.failed and await self.server.api.healthy()

    async def _up(self) -> None:
        if not self.server.lives:
            await self.server.start()
            info = await self.server.api.info()
            self._name = " ".join(["sglang", *(str(info[key]) for key in ("version", "device", "dtype") if key in info)])

    # Ends

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, reason: str) -> None:
        self._over = self._over or reason
        for task in self._tasks:
            task.cancel()

    def _refuse_when_over(self) -> None:
        if self._over:
            raise ModelError(self._over)
