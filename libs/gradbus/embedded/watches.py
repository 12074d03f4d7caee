"""Background watches of the embedded stack: which services the runs need, and whether NATS's volume is full."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

from nats.errors import Error as NatsError
from nats.js.errors import APIError
from pydantic import ValidationError

from gradbus.algorithms import needs_reference_service
from gradbus.bus import Buckets, Bus, BusSettings, View
from gradbus.control.runs import FINAL_STATES, RunRecord, RunStatus
from gradbus.errors import GradbusError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_RETRY_SECONDS = 2.0
_LOOK_SECONDS = 0.2  # many submissions within this time are one evaluation
_VOLUME_SECONDS = 1.0
_FULL_BYTES = 32 << 20
"""With less free space than this a write may have failed."""
_ROOM_BYTES = 3 << 30
"""Free space that NATS needs to start."""


class NeededServices:
    """The services that active runs need, kept as the bucket `runs` changes. A spec is read once, for it never changes."""

    def __init__(self, runs: View) -> None:
        self._runs = runs
        self._needs: dict[str, frozenset[str]] = {}
        """By run, active or not."""
        self._active: set[str] = set()
        runs.listen(self._update)

    @property
    def names(self) -> frozenset[str]:
        """Names of the services."""
        return frozenset().union(*(self._needs[run_id] for run_id in self._active))

    def _update(self, key: str) -> None:
        run_id, _, kind = key.rpartition(".")
        if kind == "spec":
            self._needs.pop(run_id, None)
            if needs := _needs(self._runs.get(key)):
                self._needs[run_id] = needs
        if kind in {"spec", "status"}:
            self._active.discard(run_id)
            if run_id in self._needs and not _is_final(self._runs.get(f"{run_id}.status")):
                self._active.add(run_id)


class KeptServices:
    """The services that runs need, and those that a run has needed in the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        """By service that no run needs any more: monotonic time, seconds."""
        self._needed: AbstractSet[str] = frozenset()

    def update(self, needed: AbstractSet[str], now: float) -> frozenset[str]:
        """Names of the services to run from `now` on, a monotonic time in seconds."""
        self._until |= dict.fromkeys(self._needed - needed, now + self._seconds)
        self._until = {name: until for name, until in self._until.items() if name not in needed and until > now}
        self._needed = needed
        return frozenset(needed | self._until.keys())

    @property
    def next_end(self) -> float | None:
        """When the next service is no longer kept, a monotonic time; None if none is."""
        return min(self._until.values(), default=None)


async def watch_needs(settings: BusSettings, set_needed: Callable[[frozenset[str]], Awaitable[None]], kept_seconds: float) -> None:
    """Calls `set_needed` with the services that runs need whenever they may have changed, until cancelled.

    The reference service holds a model in memory, and few runs have an environment, so the stack runs these services only while an active
    run needs them, and for `kept_seconds` after it.
    """
    kept, clock = KeptServices(kept_seconds), asyncio.get_running_loop().time
    while True:
        try:
            bus = await Bus.connect(settings, "supervisor")
            try:
                bucket = await bus.bucket(Buckets.RUNS)
                async with bucket.view("*.*") as view:
                    needed = NeededServices(view)
                    while True:
                        view.changed.clear()
                        await set_needed(kept.update(needed.names, clock()))
                        await asyncio.sleep(_LOOK_SECONDS)
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout_at(kept.next_end):
                                await view.changed.wait()
            finally:
                await bus.close()
        except (GradbusError, NatsError, APIError, TimeoutError) as error:
            _log.warning("runs_watch_failed", error=f"{type(error).__name__}: {error}", retry_in_seconds=_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)


async def watch_volume(folder: Path, restart_nats: Callable[[], Awaitable[None]]) -> None:
    """Calls `restart_nats` each time the volume of `folder` was full and has room again, until cancelled.

    NATS keeps refusing a stream that it once could not write, and reports that on a page for which the embedded stack has no user.
    Free space on the volume is enough to go by; an unnecessary restart does no harm.
    """
    was_full = False
    while True:
        free = _free_bytes(folder)
        if free < _FULL_BYTES and not was_full:
            was_full = True
            _log.warning("volume_full", folder=str(folder), advice="free 3 GiB on it; NATS is then restarted automatically")
        elif was_full and free >= _ROOM_BYTES:
            was_full = False
            _log.warning("volume_has_room", folder=str(folder), free_bytes=free, restarting="nats")
            await restart_nats()
        await asyncio.sleep(_VOLUME_SECONDS)


def _needs(record: bytes | None) -> frozenset[str]:
    if record is None:
        return frozenset()
    try:
        spec = RunRecord.model_validate_json(record).spec
    except ValidationError as error:
        _log.warning("run_unreadable", faults=error.error_count())
        return frozenset()
    environment = spec.environment
    wanted = {
        "reference": needs_reference_service(spec),
        "environment": environment is not None and environment.agent is None,
        "agent": environment is not None and environment.agent is not None,
    }
    return frozenset(name for name, is_needed in wanted.items() if is_needed)


def _is_final(status: bytes | None) -> bool:
    try:
        return status is not None and RunStatus.model_validate_json(status).state in FINAL_STATES
    except ValidationError as error:
        _log.warning("status_unreadable", faults=error.error_count())
        return False


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
