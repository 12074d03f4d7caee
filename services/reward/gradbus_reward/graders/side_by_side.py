"""Samples that wait for something outside this process, graded side by side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from gradbus.graders import ScoreResult
from gradbus_reward.graders.base import NOT_REACHED, Parts, Sample


async def graded_side_by_side(
    names: Sequence[str], samples: Sequence[Sample], seconds: float, result: Callable[[str, Sample], Awaitable[ScoreResult]]
) -> list[Parts]:
    """The results of every sample; those without one when the time is up are an error."""
    graded: list[Parts] = [dict.fromkeys(names, NOT_REACHED) for _ in samples]

    async def fill(name: str, place: int) -> None:
        graded[place][name] = await result(name, samples[place])

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)), asyncio.TaskGroup() as group:
            for place in range(len(samples)):
                for name in names:
                    group.create_task(fill(name, place))
    return graded
