"""The environments in use, by run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Final

from gradbus.telemetry import get_logger
from gradbus_environment.runs import OpenRun
from gradbus_environment.worlds.factory import Capacity, WorldSettings, create_world, read_section

_log = get_logger(__name__)
IDLE_SECONDS: Final = 20.0
"""After its last call a run without sessions is closed: its children, connections and memory are freed."""


class Registry:
    """Makes the environment of a run at its first call, and closes it when it is idle."""

    def __init__(self, settings: WorldSettings, capacity: Capacity, session_seconds: float) -> None:
        """`session_seconds`: how long a session without a call is kept."""
        self._settings = settings
        self._session_seconds = session_seconds
        self._capacity = capacity
        self._runs: dict[tuple[str, str], OpenRun] = {}
        """By run and its `[environment]` section."""

    @asynccontextmanager
    async def use(self, run_id: str, environment_json: str) -> AsyncIterator[OpenRun]:
        """The environment of a run, open at least until the block ends. Raises EnvironmentRefusedError."""
        key = run_id, environment_json
        if key not in self._runs:
            section = read_section(environment_json)
            self._runs[key] = OpenRun(section, create_world(section, self._settings, self._capacity))
        async with _used(self._runs[key]) as run:
            yield run

    @asynccontextmanager
    async def of_session(self, run_id: str, session: str) -> AsyncIterator[OpenRun | None]:
        """The environment that has the session; None if there is none."""
        run = next((run for (name, _), run in self._runs.items() if name == run_id and run.has(session)), None)
        if run is None:
            yield None
            return
        async with _used(run):
            yield run

    async def close_lost(self, workers: Container[str]) -> None:
        """Closes the sessions of workers that are gone."""
        await asyncio.gather(*(run.close_lost(workers) for run in list(self._runs.values())))

    async def close_idle(self) -> bool:
        """Closes idle sessions, then the environments of runs without sessions and calls. Returns whether there were such runs."""
        for run in list(self._runs.values()):
            await run.close_idle(self._session_seconds)
        before = time.monotonic() - IDLE_SECONDS
        idle = [key for key, run in self._runs.items() if run.is_empty and run.used < before]
        ended = [self._runs.pop(key) for key in idle]
        await asyncio.gather(*(run.end() for run in ended))
        for run_id, _ in idle:
            _log.info("environment_closed", run_id=run_id, reason="idle")
        return bool(idle)

    async def end(self) -> None:
        """Closes everything."""
        runs, self._runs = list(self._runs.values()), {}
        await asyncio.gather(*(run.end() for run in runs))


@asynccontextmanager
async def _used(run: OpenRun) -> AsyncIterator[OpenRun]:
    run.calls += 1
    try:
        yield run
    finally:
        run.calls -= 1
        run.used = time.monotonic()
