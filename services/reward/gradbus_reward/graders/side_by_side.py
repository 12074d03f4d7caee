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
    """The results of every sample. `result` is called once for equal samples; those without one when the time is up are an error."""
    graded: list[Parts] = [dict.fromkeys(names, NOT_REACHED) for _ in samples]
    equal: dict[tuple[str, str, str, str], list[int]] = {}
    for n, sample in enumerate(samples):
        for name in names:
            equal.setdefault((name, sample.response, sample.finish_reason, sample.item_json), []).append(n)

    async def fill(name: str, places: Sequence[int]) -> None:
        found = await result(name, samples[places[0]])
        for n in places:
            graded[n][name] = found

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)), asyncio.TaskGroup() as group:
            for (name, *_), places in equal.items():
                group.create_task(fill(name, places))
    return graded
