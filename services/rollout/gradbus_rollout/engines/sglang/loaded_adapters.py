"""The LoRA adapters on a server: each load gets a name of its own, and stays until no request uses it."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gradbus.errors import AttestationError, EngineError, ModelError
from gradbus_rollout.engines.server.logprob_proof import prove_adapters
from gradbus_rollout.engines.server.version_folder import LoadedVersion
from gradbus_rollout.engines.sglang.api import ServerApi


class LoadedAdapters:
    """Adapters of one server. New requests use the newest; older adapters stay for the requests that began with them."""

    def __init__(self) -> None:
        self._loaded: dict[str, LoadedVersion] = {}
        self._users: Counter[str] = Counter()
        self._newest = ""

    @property
    def folders(self) -> set[Path]:
        """Folders of the adapters on the server."""
        return {version.folder for version in self._loaded.values()}

    def version(self, name: str) -> int:
        """The version of the adapters called `name`."""
        return self._loaded[name].version

    @contextlib.contextmanager
    def used(self) -> Iterator[str]:
        """Name of the newest adapters, which stay loaded for the block. Raises EngineError `wrong_version` when there are none."""
        name = self._newest
        if not name:
            raise EngineError("wrong_version", "the server has no adapters; they are loaded first")
        self._users[name] += 1
        try:
            yield name
        finally:
            self._users[name] -= 1

    def clear(self) -> None:
        """Forgets all adapters: a server that was started again has none."""
        self._loaded.clear()
        self._newest = ""

    async def load(self, api: ServerApi, version: LoadedVersion) -> None:
        """Loads adapters under a name that was never used before, and proves that the server samples with them.

        Raises AttestationError when it does not, EngineError when the server fails, ModelError when `version` has no probe.
        """
        if version.probe is None:
            raise ModelError(
                f"version {version.version} came without a probe, which alone shows that a server uses adapters; publish it again"
            )
        name = f"{version.label}-{secrets.token_hex(4)}"
        folder = str(version.folder.absolute())
        if not await api.load_adapter(name, folder):
            raise AttestationError(f"the server does not say that it has the adapters of version {version.version}; they are loaded again")
        try:
            await prove_adapters(api, name, version.version, version.probe)
        except BaseException:
            with contextlib.suppress(EngineError):
                await api.unload_adapter(name)
            raise
        self._loaded[name] = version
        self._newest = name

    async def unload_unused(self, api: ServerApi) -> None:
        """Unloads all but the newest that no request uses any more."""
        for name in [name for name in self._loaded if name != self._newest and not self._users[name]]:
            await api.unload_adapter(name)
            del self._loaded[name], self._users[name]

    async def unload_all(self, api: ServerApi) -> None:
        """Unloads all adapters, from a server that goes on without this worker."""
        self._newest = ""
        self._users.clear()
        await self.unload_unused(api)
