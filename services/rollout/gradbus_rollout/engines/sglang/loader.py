"""Loads versions into the running server: whole weights, or a LoRA run's base model once and its adapters after that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from gradbus.errors import EngineError
from gradbus_rollout.engines.server.driver_memory import free_mebibytes, until_freed
from gradbus_rollout.engines.server.slots import Slots
from gradbus_rollout.engines.server.version_folder import LoadedVersion
from gradbus_rollout.engines.sglang.api import MemoryTag
from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.installer import UNPROVEN, Installer
from gradbus_rollout.engines.sglang.loaded_adapters import LoadedAdapters
from gradbus_rollout.engines.sglang.server import Server
from gradbus_rollout.engines.sglang.version_folders import VersionFolders

_KNOWN_LABELS: Final = 64
_ABORT_AGAIN_SECONDS: Final = 0.2
_FLUSH_AGAIN_SECONDS: Final = 0.02


class WeightLoader:
    """Stops the samples in flight as `pause` says, loads, and knows which version each of the server's labels means."""

    def __init__(self, config: SGLangConfig, settings: SGLangSettings, server: Server, slots: Slots, folders: VersionFolders) -> None:
        self._config = config
        self._settings = settings
        self._server = server
        self._slots = slots
        self._folders = folders
        self._installer = Installer()
        self._versions: dict[str, int] = {}
        self._base_loaded_in_start = 0
        self._missing: set[MemoryTag] = set()
        self._missing_in_start = 0
        """The memory that the server released and has not taken again, and the start of the server in which it did."""
        self.is_released = False
        """From the begin of a release to the end of the next load: nobody may start a server or ask it for tokens."""
        self.adapters = LoadedAdapters()
        self.label = ""
        """Label of the weights on the server."""
        self.loads = 0
        """Loads so far. A sample that failed sees by it whether the server was repaired meanwhile."""

    @property
    def cache_key(self) -> str:
        """Another one after each load, so no request uses a prefix that older weights computed, even where the cache stays."""
        return str(self.loads)

    def adapter(self) -> AbstractContextManager[str | None]:
        """Name of the newest adapters, which stay loaded for the block; None where versions are whole weights."""
        return nullcontext() if self._config.lora is None else self.adapters.used()

    def versions_by_label(self, adapter_version: int | None) -> Mapping[str, int]:
        """Versions by label. For a LoRA request every base label maps to the adapters' version."""
        return self._versions if adapter_version is None else dict.fromkeys(self._versions, adapter_version)

    def forget_base(self) -> None:
        """Somebody else may have changed the server's weights: the next load of adapters loads the base model first."""
        self._base_loaded_in_start = 0

    async def load(self, version: LoadedVersion) -> None:
        """Loads and proves a version. Raises AttestationError when the weights did not arrive, EngineError when the server fails."""
        if self._config.lora is None:
            await self._load_weights(version)
            return
        if self._base_loaded_in_start != self._server.starts:
            await self._load_base(version)
        await self.adapters.load(self._server.api, version)
        self.loads += 1
        await self.adapters.unload_unused(self._server.api)

    async def release(self) -> None:
        """Stops the samples in flight and frees the device's memory; the samples go on after the next load. Raises EngineError.

        They are aborted, whatever `pause` says: a paused server answers no probe, and their cache is lost in any case.
        """
        if self.is_released:
            return
        self.is_released = True
        self._slots.close()
        api = self._server.api
        await self._abort_samples()
        await self._flush_cache()
        await api.label(UNPROVEN)
        before = await free_mebibytes()
        await api.release_memory("kv_cache")
        await api.release_memory("weights")
        self._missing, self._missing_in_start = {"kv_cache", "weights"}, self._server.starts
        try:
            async with asyncio.timeout(self._settings.load_seconds):
                await until_freed(before)
        except TimeoutError:
            raise EngineError("hung", "the memory that the server released does not become free; the server is ended") from None

    async def _load_base(self, version: LoadedVersion) -> None:
        self.adapters.clear()
        base = await asyncio.to_thread(self._folders.prepare_base, version.probe)
        self._folders.use(base.folder)
        await self._load_weights(base)
        self._base_loaded_in_start = self._server.starts

    async def _load_weights(self, version: LoadedVersion) -> None:
        api = self._server.api
        self._versions = dict([*self._versions.items(), (version.label, version.version)][-_KNOWN_LABELS:])
        async with self._slots.closed():
            if self.is_released:
                missing = self._missing if self._missing_in_start == self._server.starts else set()
                await self._installer.install(api, version, missing)
            elif self._slots.used and self._config.pause != "abort":
                await api.pause(self._config.pause)
                try:
                    if self._config.pause == "retract":  # in place, the samples go on with the cache that they have
                        await self._flush_cache()
                    await self._installer.install(api, version)
                finally:
                    await api.resume()
            else:
                await self._abort_samples()
                await self._flush_cache()
                await self._installer.install(api, version)
            self.loads += 1
            self.label = version.label
            self.is_released = False

    async def _abort_samples(self) -> None:
        """Aborts the samples in flight. Their tokens come back, and the samples go on from them after the load."""
        try:
            async with asyncio.timeout(self._settings.load_seconds):
                while self._slots.used:
                    await self._server.api.abort_all()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_ABORT_AGAIN_SECONDS):
                            await self._slots.idle()
        except TimeoutError:
            raise EngineError("hung", f"{self._slots.used} samples did not end when aborted; the server is started again") from None

    async def _flush_cache(self) -> None:
        """Empties the prefix cache, which the server refuses while it has a request.

        A request outlives its reply by a moment, and those of a killed worker may last for long.
        """
        try:
            async with asyncio.timeout(self._settings.load_seconds):
                while not await self._server.api.flush():
                    if not self._slots.used:
                        await self._server.api.abort_all()
                    await asyncio.sleep(_FLUSH_AGAIN_SECONDS)
        except TimeoutError:
            raise EngineError("hung", "the server does not come to rest before a load; it is started again") from None
