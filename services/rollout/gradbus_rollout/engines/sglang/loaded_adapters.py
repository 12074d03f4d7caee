"""The adapters that a server has at a time: one name a load, which requests name, and which goes when none does any more."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gradbus.errors import AttestationError, EngineError, ModelError
from gradbus_rollout.engines.server.proof import prove_adapters
from gradbus_rollout.engines.sglang.api import ServerApi
from gradbus_rollout.engines.sglang.installer import LoadedVersion


class LoadedAdapters:
    """One server's. The newest is what new requests name; older ones stay for those that began with them."""

    def __init__(self) -> None:
        self._held: dict[str, LoadedVersion] = {}
        self._users: Counter[str] = Counter()
        self._newest = ""

    @property
    def folders(self) -> set[Path]:
        """Of what the server has."""
        return {held.folder for held in self._held.values()}

    def version(self, name: str) -> int:
        """The version that the adapters of this name are."""
        return self._held[name].version

    @contextlib.contextmanager
    def used(self) -> Iterator[str]:
        """The newest name, which stays for the length of the block. Raises EngineError `wrong_version` when there is none."""
        name = self._newest
        if not name:
            raise EngineError("wrong_version", "the server has no adapters; they are loaded first")
        self._users[name] += 1
        try:
            yield name
        finally:
            self._users[name] -= 1

    def clear(self) -> None:
        """The server has begun a new life, without adapters."""
        self._held.clear()
        self._newest = ""

    async def put(self, api: ServerApi, held: LoadedVersion) -> None:
        """Loads adapters under a name that none had before, and proves that the server samples with them.

        Raises AttestationError when it does not, EngineError when the server fails, ModelError when `held` has no probe.
        """
        if held.probe is None:
            raise ModelError(
                f"version {held.version} came without a probe, which alone shows that a server uses adapters; publish it again"
            )
        name = f"{held.label}-{secrets.token_hex(4)}"
        folder = str(held.folder.absolute())
        if not await api.load_adapter(name, folder):
            raise AttestationError(f"the server does not say that it has the adapters of version {held.version}; they are loaded again")
        try:
            await prove_adapters(api, name, held.version, held.probe)
        except BaseException:
            with contextlib.suppress(EngineError):
                await api.unload_adapter(name)
            raise
        self._held[name] = held
        self._newest = name

    async def tidy(self, api: ServerApi) -> None:
        """Unloads what no request names any more."""
        for name in [name for name in self._held if name != self._newest and not self._users[name]]:
            await api.unload_adapter(name)
            del self._held[name], self._users[name]

    async def leave(self, api: ServerApi) -> None:
        """Unloads all, from a server that stays."""
        self._newest = ""
        self._users.clear()
        await self.tidy(api)
