"""How long the gateway takes to answer, measured in a process of its own: `python -m gradbus_hostile.answer_times`.

It reads a `Target` and paths as JSON on its input, asks until the input ends, and prints the seconds of each request, sorted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Final

from gradbus_hostile.target import Target

EVERY_SECONDS: Final = 0.05
UNANSWERED_SECONDS: Final = 30.0
"""Counted for a request without an answer in that time, or with another answer than 200."""
_SOURCES: Final = str(Path(__file__).resolve().parents[1])


async def answer_time(target: Target, path: str) -> float:
    """Seconds from connecting to the end of the response. A bare socket: an HTTP client's own time would count as the gateway's."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(UNANSWERED_SECONDS):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                writer.write(target.request("GET", path, "Connection: close\r\n"))
                answer = await reader.read()
            finally:
                writer.close()
    except OSError:  # a timeout is one too
        return UNANSWERED_SECONDS
    return time.monotonic() - began if b" 200 " in answer[:20] else UNANSWERED_SECONDS


def paths_of(run_id: str) -> tuple[str, ...]:
    """What a user who watches a run asks for."""
    return ("/v1/runs?limit=20", f"/v1/runs/{run_id}", "/v1/caller", f"/v1/runs/{run_id}/events?limit=20")


async def answer_times(target: Target, ended: asyncio.Event) -> list[float]:
    """Sorted seconds that requests take, each on a connection of its own, until the event."""
    found = []
    paths = cycle(paths_of(target.run_id))
    while not ended.is_set():
        found.append(await answer_time(target, next(paths)))
        await asyncio.sleep(EVERY_SECONDS)
    return sorted(found)


@asynccontextmanager
async def measured(target: Target, times: list[float]) -> AsyncIterator[None]:
    """Asks inside the block, from another process; adds the sorted seconds to `times` at its end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gradbus_hostile.answer_times"), stdin=pipe, stdout=pipe, cwd=_SOURCES, limit=1 << 26
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asdict(target)).encode() + b"\n")
    try:
        yield
        process.stdin.close()
        times += json.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def main() -> None:
    """Asks until the input ends."""
    target, ended = Target(**json.loads(sys.stdin.readline())), asyncio.Event()
    asking = asyncio.create_task(answer_times(target, ended))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    ended.set()
    print(json.dumps(await asking), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
