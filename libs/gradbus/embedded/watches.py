"""Background watches of the embedded stack: which runs need the reference service, and whether NATS's volume is full."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from pathlib import Path

from nats.errors import Error as NatsError
from nats.js.errors import APIError
from pydantic import ValidationError

from gradbus.algorithms import needs_reference_service
from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.control.runs import FINAL_STATES, RunRecord, RunStatus
from gradbus.errors import GradbusError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_RETRY_SECONDS = 2.0
_LOOK_SECONDS = 0.2  # many submissions within this time are one evaluation
_CACHED = 16384  # each evaluation reads every run
_VOLUME_SECONDS = 1.0
_FULL_BYTES = 32 << 20
"""With less free space than this a write may have failed."""
_ROOM_BYTES = 3 << 30
"""Free space that NATS needs to start."""


def reference_needed(entries: Mapping[str, bytes]) -> bool:
    """Whether any run in the bucket `runs` is active and uses the reference model."""
    specs = (key for key in entries if key.endswith(".spec"))
    return any(_needs_reference(entries[key]) and not _is_final(entries.get(key.removesuffix("spec") + "status")) for key in specs)


async def watch_reference(settings: BusSettings, set_needed: Callable[[bool], Awaitable[None]]) -> None:
    """Calls `set_needed` whenever the answer may have changed, until cancelled.

    The reference service holds a model in memory, so the stack runs it only while an active run needs it.
    """
    while True:
        try:
            bus = await Bus.connect(settings, "supervisor")
            try:
                bucket = await bus.bucket(Buckets.RUNS)
                async with bucket.view("*.*") as view:
                    while True:
                        view.changed.clear()
                        await set_needed(reference_needed(view.entries))
                        await asyncio.sleep(_LOOK_SECONDS)
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


@lru_cache(_CACHED)
def _needs_reference(record: bytes) -> bool:
    try:
        return needs_reference_service(RunRecord.model_validate_json(record).spec)
    except ValidationError as error:
        _log.warning("run_unreadable", faults=error.error_count())
        return False


@lru_cache(_CACHED)
def _is_final(status: bytes | None) -> bool:
    try:
        return status is not None and RunStatus.model_validate_json(status).state in FINAL_STATES
    except ValidationError as error:
        _log.warning("status_unreadable", faults=error.error_count())
        return False


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
