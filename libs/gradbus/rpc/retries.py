"""Calls to the weight store that outlive its absence."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
from grpc.aio import AioRpcError

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_Answer = TypeVar("_Answer")
_RETRY_SECONDS: Final = 0.2
AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
"""What a server that is gone, slow or just starting answers."""


async def until_answered(
    call: Callable[[], Awaitable[_Answer]], run_id: str, away: frozenset[grpc.StatusCode] = AWAY, seconds: float = math.inf
) -> _Answer:
    """The weight store's answer to an idempotent call, which is made again while the store is away, for `seconds`.

    Raises AioRpcError with the code of any other refusal, and with one of `away` when the time is over.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except AioRpcError as error:
            if error.code() not in away or time.monotonic() > deadline:
                raise
            _log.info("weight_store_away", run_id=run_id, code=error.code().name, detail=error.details())
        await asyncio.sleep(_RETRY_SECONDS)
