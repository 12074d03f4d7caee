"""Starts the server with a version, and repairs it when it fails."""

from __future__ import annotations

import asyncio
from typing import Final

from gradbus.errors import EngineError
from gradbus.telemetry import get_logger
from gradbus_rollout.engines.server.version_folder import LoadedVersion, drop_version_folder
from gradbus_rollout.engines.sglang.loader import WeightLoader
from gradbus_rollout.engines.sglang.server import Server
from gradbus_rollout.engines.sglang.version_folders import VersionFolders

_log = get_logger(__name__)
_REPAIRS: Final = 3
"""Repairs in a row, without a completed sample between them, before the failure ends the worker's run."""


class Recovery:
    """One start, load or repair of the server at a time."""

    def __init__(self, server: Server, loader: WeightLoader, folders: VersionFolders) -> None:
        self._server = server
        self._loader = loader
        self._folders = folders
        self._lock = asyncio.Lock()
        self._repairs = 0
        self._checks = 0
        self._alive = True
        self.name = "sglang"
        """`Engine.name`; complete once the server is up."""
        self.current: LoadedVersion | None = None
        """The version loaded."""

    @property
    def is_working(self) -> bool:
        """A start, load or repair is under way."""
        return self._lock.locked()

    async def start(self) -> None:
        """Starts the server, unless it has been started. Raises EngineError."""
        async with self._lock:
            await self._start_server()

    async def load(self, version: LoadedVersion) -> None:
        """Loads a version whose folder is ready. Raises AttestationError when it did not arrive, EngineError when no server comes up."""
        try:
            async with self._lock:
                await self._load(version)
                self.current = version
                self._folders.use(version.folder)
                await asyncio.to_thread(self._folders.keep, self._loader.adapters.folders | {version.folder})
        except BaseException:
            if self.current is not version:
                drop_version_folder(version.folder)
            raise

    async def release(self) -> None:
        """Frees the device's memory. A server that does not is ended, which does: the next load starts it again."""
        async with self._lock:
            try:
                await self._loader.release()
            except EngineError as error:
                _log.warning("engine_release_failed", state=error.state, error=str(self._server.diagnosed(error)))
                await self._server.end()

    async def repair(self, error: EngineError, loads: int) -> None:
        """Loads the current version again after `error`, restarting the server if it must be.

        Does nothing while the device is released, if there was a load since `loads` were counted, or if the server lives and only a
        connection was lost.
        Raises `error` when repairs do not help.
        """
        checks = self._checks
        async with self._lock:
            if self._loader.is_released or self._loader.loads != loads or (error.state == "dead" and await self._lives(checks)):
                return
            self._repairs += 1
            error = self._server.diagnosed(error)
            if error.state == "refused" or self._repairs > _REPAIRS or self.current is None:
                raise error
            _log.warning("engine_failed", state=error.state, version=self.current.version, error=str(error))
            if error.state == "wrong_version":
                self._loader.forget_base()
            else:
                await self._server.restart()
            await self._load(self.current)

    def sample_completed(self) -> None:
        """The server works again, so the count of repairs starts over."""
        self._repairs = 0

    async def _load(self, version: LoadedVersion) -> None:
        """Loads a version. A server that cannot load its first one is not restarted: the attempt at the run has failed, and is counted."""
        await self._start_server()
        for attempt in range(1, _REPAIRS + 1):
            try:
                await self._loader.load(version)
                return
            except EngineError as found:
                error = self._server.diagnosed(found)
                if error.state == "refused" or attempt == _REPAIRS:
                    raise error from found
                _log.warning("engine_load_failed", state=error.state, version=version.version, attempt=attempt, error=str(error))
                if error.state == "dead" and await self._server.is_alive():
                    continue
                if self.current is None:
                    raise error from found
            await self._server.restart()

    async def _start_server(self) -> None:
        if self._server.is_ended:
            await self._server.restart()
        if not self._server.starts:
            await self._server.start()
            info = await self._server.api.info()
            self.name = " ".join(["sglang", *(str(info[key]) for key in ("version", "device", "dtype") if key in info)])

    async def _lives(self, checks: int) -> bool:
        """Whether the server lives: as the last check found if it ended since `checks` were counted, otherwise by a new one.

        So one check serves all requests that lost their connections together.
        """
        if self._checks == checks:
            self._alive = await self._server.is_alive()
            self._checks += 1
            _log.warning("engine_connection_lost", url=self._server.api.url, alive=self._alive)
        return self._alive
