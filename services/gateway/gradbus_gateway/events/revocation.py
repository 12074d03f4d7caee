"""Ends the event streams of a caller that may no longer read them: a stream outlives the check of its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

_CHECK_SECONDS: Final = 5.0
"""Between two checks. A stream sends something every 15 s at least, so it ends within 20 s."""


async def while_allowed(stream: AsyncGenerator[bytes, None], is_allowed: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes, None]:
    """Passes `stream` on while `is_allowed`, which is asked before something is sent, and at most every `_CHECK_SECONDS`."""
    clock = asyncio.get_running_loop().time
    checked_at = clock()
    async with aclosing(stream):
        async for batch in stream:
            if clock() - checked_at >= _CHECK_SECONDS:
                if not await is_allowed():
                    return
                checked_at = clock()
            yield batch
