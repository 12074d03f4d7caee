"""Measures how fast the gateway answers beside a crowd: `python loadtests/crowded_gateway.py [--followers 1000] [--slow 500]`.

A run trains meanwhile. Requests of a key of its own are timed, each on a new connection: alone, beside followers of the run, and beside
slow sockets as well. The limit is one second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from gradbus_hostile.answer_times import UNANSWERED_SECONDS, answer_times
from gradbus_hostile.target import Target, new_key
from gradbus_load.crowd import Crowd, Seen
from gradbus_load.outcome import percentile
from gradbus_load.rig import SOURCES, Bench, Rig, running

KEYS = 8
LIMIT_SECONDS = 1.0


@asynccontextmanager
async def gathered(crowd: Crowd) -> AsyncIterator[Seen]:
    """A crowd inside the block; what it saw is filled in at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gradbus_load.crowd", stdin=pipe, stdout=pipe, cwd=SOURCES, limit=1 << 26
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asdict(crowd)).encode() + b"\n")
    seen = Seen()
    try:
        if not (await process.stdout.readline()).startswith(b"connected"):
            raise SystemExit("the crowd could not connect; see the messages above")
        yield seen
        process.stdin.close()
        for name, value in json.loads(await process.stdout.readline()).items():
            setattr(seen, name, value)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def answers_for(seconds: float, target: Target) -> list[float]:
    """Sorted seconds that requests of the operator's key take in that time. Raises SystemExit for one without its answer."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    times = await answer_times(target, over)
    if times[-1] >= UNANSWERED_SECONDS:
        raise SystemExit("the gateway refused a request, or did not answer it; see its log")
    return times


def shown(name: str, times: list[float], steps: int, seconds: float) -> None:
    """Prints one line of the table."""
    p50, p99 = statistics.median(times), percentile(times, 0.99)
    print(f"{name:<24}{p50 * 1e3:8.0f}{p99 * 1e3:8.0f}{times[-1] * 1e3:8.0f}{len(times):10}{steps / seconds:10.1f}", flush=True)


async def measure(bench: Bench, options: argparse.Namespace) -> float:
    """Prints the table. Returns the slowest answer in seconds."""
    address = urlsplit(bench.stack.url)
    state = bench.stack.state.root
    keys = [new_key(state, f"crowd-{number}") for number in range(KEYS)]  # one alone may not follow so many streams
    run_id = await bench.submit(bench.spec("crowded", schedule={"steps": 100_000, "groups_per_step": 4, "max_staleness": 2}))
    await bench.trains(run_id, 120)
    print(f"{'':<24}{'p50':>8}{'p99':>8}{'max':>8}{'requests':>10}{'steps/s':>10}   milliseconds")
    slowest = 0.0
    for followers, slow in ((0, 0), (options.followers, 0), (options.followers, options.slow)):
        newest = max((step["event"] for step in await bench.steps(run_id)), default=0)
        crowd = Crowd(str(address.hostname), int(address.port or 80), f"/v1/runs/{run_id}/events?after={newest}", keys, followers, slow)
        async with gathered(crowd) as seen:
            before = (await asyncio.to_thread(bench.client.run, run_id)).progress.step
            used = bench.usage()["gateway"].cpu_seconds
            began = time.monotonic()
            times = await answers_for(options.seconds, Target.of(state, bench.stack.api_key, run_id))
            elapsed = time.monotonic() - began
            steps = (await asyncio.to_thread(bench.client.run, run_id)).progress.step - before
            usage = bench.usage()["gateway"]
        shown(f"{followers} followers, {slow} slow", times, steps, elapsed)
        print(f"  gateway: {(usage.cpu_seconds - used) / elapsed:.2f} cores, {usage.rss_bytes >> 20} MiB; ", end="")
        print(f"refused {seen.refused}, lost {seen.lost}, closed and connected again {seen.reconnected}; ", end="")
        print(f"event age p50 {statistics.median(seen.ages):.2f} s, max {max(seen.ages):.2f} s" if seen.ages else "no events")
        slowest = max(slowest, times[-1])
    await asyncio.to_thread(bench.client.cancel, run_id)
    return slowest


async def main() -> int:
    """Starts a stack and measures on it. Returns the exit status: 1 if an answer took longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--followers", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each row of the table is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        async with running(Path(root), Rig()) as bench:
            slowest = await measure(bench, options)
    return int(slowest > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
