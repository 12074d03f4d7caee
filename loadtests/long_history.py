"""Measures what it costs to look at a long run: `python loadtests/long_history.py [--steps 100000]`.

Metrics as a trainer reports them are written into the history of a run of the real stack. Then it is read as `GET /v1/runs/RUN/history`,
and as every event: seconds, bytes, the gateway's memory, and how long other requests take meanwhile, each on a connection of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from gradbus.bus import EventLog
from gradbus.bus.batch import MOST_MESSAGES, publish_batch
from gradbus.client import document
from gradbus_hostile.answer_times import measured
from gradbus_hostile.target import Target
from gradbus_load.rig import Bench, Rig, running

SECONDS = 600.0
HEAD = f"{'':<44}{'seconds':>9}{'MB sent':>9}{'gateway MiB':>13}   other requests: p50, max in ms"


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads a run's history and prints what it cost."""

    bench: Bench
    run_id: str
    target: Target

    async def row(self, name: str, read: Callable[[httpx2.AsyncClient, str], Awaitable[int]]) -> None:
        """One line of the table; `read` returns bytes."""
        headers = {"Authorization": f"Bearer {self.bench.stack.api_key}"}
        times: list[float] = []
        http = httpx2.AsyncClient(base_url=self.bench.stack.url, headers=headers, timeout=SECONDS)
        async with http, measured(self.target, times):
            await asyncio.sleep(1.0)
            began = time.monotonic()
            size = await read(http, f"/v1/runs/{self.run_id}")
            seconds = time.monotonic() - began
        memory = self.bench.usage()["gateway"].rss_bytes / (1 << 20)
        print(
            f"{name:<44}{seconds:9.2f}{size / 1e6:9.2f}{memory:13.0f}   {times[len(times) // 2] * 1e3:.0f}, {times[-1] * 1e3:.0f}",
            flush=True,
        )


async def pages(http: httpx2.AsyncClient, run: str) -> int:
    """Every event, by pages of a thousand."""
    size, after = 0, "0"
    while after is not None:
        answer = await http.get(f"{run}/events", params={"after": after, "limit": 1000})
        size, after = size + len(answer.content), answer.json()["next_after"]
    return size


def history(**params: Any) -> Callable[[httpx2.AsyncClient, str], Awaitable[int]]:
    """The history, downsampled, asked for until the gateway has read all events."""

    async def read(http: httpx2.AsyncClient, run: str) -> int:
        size = 0
        while True:
            answer = (await http.get(f"{run}/history", params=params)).raise_for_status()
            size += len(answer.content)
            if answer.json()["is_whole"]:
                return size

    return read


async def metrics(bench: Bench, run_id: str) -> AsyncIterator[Mapping[str, Any]]:
    """What the trainer said of the run's last step, with other numbers at each further step."""
    *_, last = [event["data"] for event in document(bench.client.events_page(run_id, limit=1000))["data"] if event["type"] == "metrics"]
    noise = random.Random(0)
    step = last["step"]
    while True:
        step += 1
        yield last | {name: value + noise.random() for name, value in last.items() if isinstance(value, float)} | {"step": step}


async def fill(bench: Bench, run_id: str, steps: int) -> None:
    """Writes so many steps into the run's history."""
    async with bench.clients() as (bus, _):
        log = EventLog(bus, run_id)
        said = metrics(bench, run_id)
        for _ in range(0, steps, MOST_MESSAGES):
            for _ in range(MOST_MESSAGES):
                data = await anext(said)
                log.emit("metrics", f"step {data['step']}", data)
            await publish_batch(bus.client, log.take())


async def main() -> None:
    """Starts a stack and measures on it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        async with running(Path(root), Rig()) as bench:
            run_id = await bench.submit(bench.spec("long", schedule={"steps": 3, "groups_per_step": 4}))
            await bench.ends(run_id, 120)
            await fill(bench, run_id, options.steps)
            target = Target.of(bench.stack.state.root, bench.stack.api_key, run_id)
            reader = Reader(bench, run_id, target)
            print(HEAD, flush=True)
            middle = options.steps // 2
            await reader.row("history, for the first time", history())
            await reader.row("history, again", history())
            await reader.row("history of 400 steps", history(**{"from": middle, "to": middle + 399}))
            await reader.row(f"history of {options.steps // 4} steps", history(**{"from": middle, "to": middle + options.steps // 4}))
            await reader.row("every event, by pages", pages)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
