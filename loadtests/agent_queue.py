"""Measures the agent service with a long queue: `python loadtests/agent_queue.py [--waiting 1000 4000] [--beside 64]`.

The real service as a process, as in `agent_endpoint.py`, whose clients these are. So many episodes wait for an agent, and then as many
requests for a turn, each on a connection of its own; beside them others are played. What a waiting episode or request costs must not
depend on how many wait. Each episode is claimed once, and each agent gets its own turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from agent_endpoint import CLAIMED, SECTION, TOKEN, Connection, Load, Service, play, running

from gradbus.process.listener import raise_open_files
from gradbus.rpc.options import CHANNEL, TOKEN_HEADER
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

if TYPE_CHECKING:
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceAsyncStub

EPISODES_OF_A_WORKER = 1000
"""Each has a connection; the server takes some thousand calls on one."""
CALLER = ((TOKEN_HEADER, f"Bearer {TOKEN}"),)
SLOTS = 256
"""Turns that are drawn at a time."""
BUSY = 0.35
"""Seconds of the processor, in half a second, of a service that has work."""
WAITED_SECONDS = 30.0
"""A call that offers an episode is made again after 10 to 20 s, or, while thousands wait, after 30 to 60 s."""
OPEN_SECONDS = json.loads(SECTION)["step_seconds"] + 60.0
"""As long as a worker lets a call that offers an episode wait, which decides how often it is made again."""
TURNS = 8
"""Of the episodes beside the queue."""


def _own_channel(port: int, number: int) -> grpc.aio.Channel:
    """A channel with a connection of its own, as each worker has: channels with equal options share one."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[*CHANNEL, ("gradbus.worker", number)])


@dataclass(frozen=True)
class Cost:
    """What something took of the service."""

    cpu_ms: float
    """Of each."""
    kib: float
    """Of memory, of each."""


class Queue:
    """Episodes of one run that wait, and later their agents' requests."""

    def __init__(self, service: Service, run_id: str, count: int) -> None:
        self._service, self._run_id = service, run_id
        self._episodes = [f"train.0.{number}.0" for number in range(count)]
        self._channels = [_own_channel(service.port, number) for number in range(0, count, EPISODES_OF_A_WORKER)]
        self._may_draw, self._slots = asyncio.Event(), asyncio.Semaphore(SLOTS)
        self._asked, self._all_asked = 0, asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._agents: list[asyncio.Task[None]] = []

    async def offer(self) -> None:
        """Opens all episodes."""
        for number, episode in enumerate(self._episodes):
            stub: EnvironmentServiceAsyncStub = EnvironmentServiceStub(self._channels[number // EPISODES_OF_A_WORKER])
            self._workers.append(asyncio.create_task(self._work(stub, episode)))
            await asyncio.sleep(0)
        await self._settled()

    async def ask(self) -> None:
        """Has each of them claimed once, or raises AssertionError; each agent asks for a turn, which nobody draws yet."""
        claims, claimed = Connection(self._service.http, self._service.key), list[str]()
        while len(claimed) < len(self._episodes):
            for offer in await claims.post("/v1/agent/claim", {"run": self._run_id, "capacity": CLAIMED, "wait_seconds": 30}):
                claimed.append(offer["episode"])
                self._agents.append(asyncio.create_task(self._agent(offer)))
        claims.close()
        if sorted(claimed) != sorted(self._episodes):
            raise AssertionError("an episode was claimed twice, or never")
        await self._all_asked.wait()
        await self._settled()

    async def answer(self) -> None:
        """Draws all turns; the agents end their episodes."""
        self._may_draw.set()
        await asyncio.gather(*self._workers, *self._agents)
        for channel in self._channels:
            await channel.close()

    async def _settled(self) -> None:
        """The service is done with what it was given: from then on it takes what waiting takes."""
        before = -1.0
        while self._service.cpu - before > BUSY:
            before = self._service.cpu
            await asyncio.sleep(0.5)

    async def _work(self, stub: EnvironmentServiceAsyncStub, episode: str) -> None:
        opening = pb.OpenRequest(run_id=self._run_id, environment_json=SECTION, episode_id=episode, item_json='{"q": "1"}', player="p")
        answer: Any = pb.OpenResponse(is_away=True)
        while answer.is_away:
            with contextlib.suppress(grpc.aio.AioRpcError):  # of a call that a busy server gave up: a worker asks again
                answer = await stub.Open(opening, timeout=OPEN_SECONDS, metadata=CALLER)
        self._asked += 1
        if self._asked == len(self._episodes):
            self._all_asked.set()
        await self._may_draw.wait()
        step = pb.StepRequest(run_id=self._run_id, session=answer.session, assistant={"text": episode, "finish": "stop"})
        async with self._slots:
            answer = await stub.Step(step, timeout=600, metadata=CALLER)
        if not answer.done:
            raise AssertionError(answer.reason)
        await stub.Close(pb.CloseRequest(run_id=self._run_id, session=step.session), timeout=60, metadata=CALLER)

    async def _agent(self, offer: dict[str, Any]) -> None:
        connection = Connection(self._service.http, offer["api_key"])
        answer = await connection.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Begin."}]})
        said = answer["choices"][0]["message"]["content"]
        if said != offer["episode"]:
            raise AssertionError(f"{offer['episode']} got {said!r}")
        await connection.post(f"/v1/agent/episodes/{offer['episode']}/end", {"attempt": offer["attempt"], "reward": 1})
        connection.close()


async def cost(service: Service, count: int, work: Awaitable[None]) -> Cost:
    """What `work` takes for each of so many."""
    cpu, memory = service.cpu, service.memory
    await work
    return Cost((service.cpu - cpu) * 1e3 / count, (service.memory - memory) / 1024 / count)


async def beside(service: Service, run_id: str, episodes: int) -> tuple[float, float, float]:
    """Plays other episodes; CPU ms of the service for each turn, and the median and the 99th percentile of an answer, in ms."""
    load, cpu = Load(run_id, episodes, TURNS, 0.05), service.cpu
    await play(service, load)
    waits, turns = sorted(load.waits), episodes * TURNS
    return (service.cpu - cpu) * 1e3 / turns, waits[turns // 2] * 1e3, waits[turns * 99 // 100] * 1e3


async def idle(service: Service, seconds: float) -> float:
    """CPU ms that the service takes in a second while nothing happens."""
    cpu, began = service.cpu, time.perf_counter()
    await asyncio.sleep(seconds)
    return (service.cpu - cpu) * 1e3 / (time.perf_counter() - began)


async def measure(service: Service, waiting: int, episodes: int) -> Sequence[str]:
    """A row of the table."""
    queue = Queue(service, f"queue-{waiting}", waiting)
    offered = await cost(service, waiting, queue.offer())
    waits = await idle(service, WAITED_SECONDS)
    cpu, median, slow = await beside(service, f"first-{waiting}", episodes)
    asked = await cost(service, waiting, queue.ask())
    cpu_asked, median_asked, slow_asked = await beside(service, f"second-{waiting}", episodes)
    answered = await cost(service, waiting, queue.answer())
    figures = [offered.cpu_ms, offered.kib, waits, cpu, median, slow, asked.cpu_ms, asked.kib, cpu_asked, median_asked, slow_asked]
    return [f"{waiting:,}", *(f"{figure:.2f}" if figure < 10 else f"{figure:.0f}" for figure in (*figures, answered.cpu_ms))]


async def main(options: argparse.Namespace) -> None:
    """Prints one line for each length of the queue."""
    raise_open_files()
    columns = ["wait", "an offer: CPU ms", "KiB", "all: CPU ms a second", "a turn beside: CPU ms", "median ms", "p99 ms"]
    columns += ["a request that waits: CPU ms", "KiB", "a turn beside: CPU ms", "median ms", "p99 ms", "its answer and end: CPU ms"]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as service:
        await play(service, Load("warm", 32, TURNS, 0.0))
        for waiting in options.waiting:
            print(f"| {' | '.join(await measure(service, waiting, options.beside))} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures the agent service with a long queue.")
    parser.add_argument("--waiting", type=int, nargs="+", default=[1000, 4000], help="episodes that wait")
    parser.add_argument("--beside", type=int, default=64, help="episodes that are played beside them")
    asyncio.run(main(parser.parse_args()))
