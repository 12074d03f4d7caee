"""A server for the engine: launched by the worker, or attached to."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import Final

from gradbus.errors import EngineError
from gradbus.telemetry import get_logger
from gradbus_rollout.engines.sglang.api import ServerApi
from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.launched_server import LaunchConfig, LaunchedServer

_log = get_logger(__name__)
_POLL_SECONDS: Final = 0.25


class Server:
    """Launched when the settings give no URL. Otherwise attached to, and waited for while it is away."""

    def __init__(self, model: Path, config: SGLangConfig, settings: SGLangSettings, log: Path) -> None:
        self._settings = settings
        self._slots = config.slots
        # In hexadecimal: the server takes a key that begins with a dash for a flag, and does not start.
        key = settings.key.get_secret_value() or ("" if settings.url else secrets.token_hex(32))
        self._launch = LaunchConfig(settings, model, config, key, log)
        self._process: LaunchedServer | None = None
        self.api = self._api_at(settings.url) if settings.url else self._api_at("http://unset")
        self.starts = 0
        """How often the server came up."""
        self.replies = 0
        """Replies to samples, of all starts."""
        self.is_ended = False
        """Whether `end` was called since the last start: nobody need wait for an answer."""

    @property
    def pid(self) -> int | None:
        """Leader of a launched server's process group; None for an attached server."""
        return self._process.pid if self._process else None

    @property
    def failed(self) -> bool:
        """Whether a launched server has ended."""
        return self._process is not None and not self._process.running

    def diagnosed(self, error: EngineError) -> EngineError:
        """The reason why the server ended, if it did; otherwise `error`."""
        return self._process.failure("dead") if self._process is not None and self.failed else error

    async def start(self) -> None:
        """Returns when the server answers. Raises EngineError `start_failed`, `out_of_memory`, or `refused` for a server without a key."""
        if not self._settings.url:
            self._process = await LaunchedServer.start(self._launch)
            await self.api.close()
            self.api = self._api_at(f"http://{self._settings.host}:{self._process.port}")
        try:
            await self._until_healthy()
            if not await self.api.requires_key():
                advice = "start it with --admin-api-key and put the key in GRADBUS_SGLANG_KEY"
                raise EngineError("refused", f"{self.api.url} takes control calls from anyone; {advice}")
        except BaseException:
            await self._kill()
            raise
        self.starts += 1
        self.is_ended = False
        _log.info("engine_server_up", url=self.api.url, pid=self.pid, start=self.starts)

    async def is_alive(self) -> bool:
        """Waits until the server is healthy or replies to a sample; False when it ends, or does neither for `health_seconds`.

        A busy server may take long to show its health, and a server that is killed takes all samples in flight with it.
        """
        replies = self.replies
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.health_seconds):
                while not self.failed:
                    if await self.api.healthy() or self.replies > replies:
                        return True
                    await asyncio.sleep(_POLL_SECONDS)
        return False

    async def restart(self) -> None:
        """Kills a launched server and starts it anew; waits for an attached server."""
        _log.warning("engine_server_restarts", url=self.api.url, start=self.starts)
        await self._kill()
        await self.start()

    async def end(self) -> None:
        """Kills a launched server, which frees its memory at once; `restart` brings it back."""
        self.is_ended = True
        await self._kill()

    async def close(self) -> None:
        """Ends a launched server."""
        await self.api.close()
        await self._kill()

    async def _kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await process.kill()

    async def _until_healthy(self) -> None:
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                while not await self._answers():
                    if self._process is not None and not self._process.running:
                        raise self._process.failure("start_failed")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            if self._process is not None:
                raise self._process.failure("start_failed") from None
            message = f"no SGLang server answered at {self.api.url} in {self._settings.start_seconds:.0f} s; start it"
            raise EngineError("start_failed", message) from None

    async def _answers(self) -> bool:
        """Resumes an attached server first: it stays paused when its worker is killed in a load."""
        if self._settings.url:
            with contextlib.suppress(EngineError):
                await self.api.resume()
        return await self.api.healthy()

    def _api_at(self, url: str) -> ServerApi:
        return ServerApi(url, self._launch.key, self._slots, self._settings.load_seconds)
