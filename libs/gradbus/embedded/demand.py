"""Which runs need the reference service: it holds a model in memory, so it runs only while one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache

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
_LOOK_SECONDS = 0.2  # many submissions are one look
_CACHED = 16384  # every look asks of every run


def reference_needed(entries: Mapping[str, bytes]) -> bool:
    """Whether a run in the bucket `runs` is live and asks it."""
    specs = (key for key in entries if key.endswith(".spec"))
    return any(_asks(entries[key]) and not _is_over(entries.get(key.removesuffix("spec") + "status")) for key in specs)


async def watch_reference(settings: BusSettings, tell: Callable[[bool], Awaitable[None]]) -> None:
    """Calls `tell` with the answer whenever it may have changed, for ever."""
    while True:
        try:
            bus = await Bus.connect(settings, "supervisor")
            try:
                bucket = await bus.bucket(Buckets.RUNS)
                async with bucket.view("*.*") as view:
                    while True:
                        view.changed.clear()
                        await tell(reference_needed(view.entries))
                        await asyncio.sleep(_LOOK_SECONDS)
                        await view.changed.wait()
            finally:
                await bus.close()
        except (GradbusError, NatsError, APIError, TimeoutError) as error:
            _log.warning("runs_not_watched", error=f"{type(error).__name__}: {error}", again_in_seconds=_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)


@lru_cache(_CACHED)
def _asks(record: bytes) -> bool:
    try:
        return needs_reference_service(RunRecord.model_validate_json(record).spec)
    except ValidationError as error:
        _log.warning("run_not_read", faults=error.error_count())
        return False


@lru_cache(_CACHED)
def _is_over(status: bytes | None) -> bool:
    try:
        return status is not None and RunStatus.model_validate_json(status).state in FINAL_STATES
    except ValidationError as error:
        _log.warning("status_not_read", faults=error.error_count())
        return False
