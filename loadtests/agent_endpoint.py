"""Measures the agent service: `python loadtests/agent_endpoint.py [--episodes 64 1000] [--turns 8] [--tool-ms 50 | --rate 300]`.

The real service as a process. This process is all of its clients: rollout workers, who answer each request at once with a turn that names
episode and number, and agents, each with a connection of its own, whose conversation grows with each turn and whose tool takes a while.
Each agent checks that it got the turns of its own episode, in order. CPU is that of the service, and of this process.

With `--rate` all agents together ask so many times a second, evenly, whatever the answers take. An answer's time counts from the moment
at which its request was due, so that a service that is late cannot delay the requests that would show it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gradbus.access.api_keys import new_api_key, write_api_keys
from gradbus.formats.tokens import pack_ids, pack_logprobs
from gradbus.rpc import open_channel, token_hash
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

if TYPE_CHECKING:
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceAsyncStub

TOKEN = "of-the-load-test"
SECTION = json.dumps({"agent": "pull", "max_turns": 64, "step_seconds": 300})
CLAIMED = 64
"""Episodes that a claim takes."""


@dataclass
class Load:
    """What is played, and what was seen."""

    run_id: str
    episodes: int
    turns: int
    tool_seconds: float
    rate: float = 0.0
    """Turns a second of all agents together, evenly; 0: each agent asks when its tool is done."""
    all_claimed: asyncio.Event = field(default_factory=asyncio.Event)
    """With a rate, agents begin then."""
    claimed: list[str] = field(default_factory=list)
    """Episodes that agents got."""
    waits: list[float] = field(default_factory=list)
    """Seconds from a request, or the moment at which it was due, to its answer; the policy takes none of them."""
    rewards: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Service:
    """A running service."""

    process: psutil.Process
    port: int
    http: int
    key: str

    @property
    def cpu(self) -> float:
        """Seconds of the processor so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(self.process.memory_info().rss)


class Connection:
    """HTTP/1.1 over one connection, as little as it takes: an SDK takes more of the processor than the service."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer as JSON. Raises AssertionError for another status than 200."""
        reader, writer = self._streams = self._streams or await asyncio.open_connection("127.0.0.1", self._port)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in headers if line.lower().startswith("content-length"))
        answer = json.loads(await reader.readexactly(length))
        if " 200 " not in status:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def close(self) -> None:
        """Ends it."""
        if self._streams is not None:
            self._streams[1].close()


@contextmanager
def running(folder: Path) -> Iterator[Service]:
    """The service inside the block."""
    port, http = _free_port(), _free_port()
    key, record = new_api_key("load", ["runs:write"])
    write_api_keys(folder / "api-keys.json", [record])
    settings = {
        "GRADBUS_LISTEN": f"127.0.0.1:{port}",
        "GRADBUS_HTTP_LISTEN": f"127.0.0.1:{http}",
        "GRADBUS_RPC_CALLERS": json.dumps({"rollout": token_hash(TOKEN)}),
        "GRADBUS_API_KEYS_FILE": str(folder / "api-keys.json"),
    }
    command = [sys.executable, *os.environ.get("GRADBUS_LOAD_PROFILE", "").split(), "-m", "gradbus_agent"]
    process = subprocess.Popen(command, env=os.environ | settings, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield Service(psutil.Process(process.pid), port, http, key)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def play(service: Service, load: Load) -> None:
    """Offers all episodes, one after the other, and then lets agents claim them as fast as they can."""
    channel = open_channel(f"127.0.0.1:{service.port}", TOKEN)
    stub: EnvironmentServiceAsyncStub = EnvironmentServiceStub(channel)
    workers = []
    for number in range(load.episodes):
        workers.append(asyncio.create_task(_work(stub, load, f"train.0.{number}.0")))
        await asyncio.sleep(0)
    agents: list[asyncio.Task[None]] = []
    claims = Connection(service.http, service.key)
    while len(agents) < load.episodes:
        for offer in await claims.post("/v1/agent/claim", {"run": load.run_id, "capacity": CLAIMED, "wait_seconds": 30}):
            load.claimed.append(offer["episode"])
            agents.append(asyncio.create_task(_agent(service, load, offer, len(agents))))
    load.all_claimed.set()
    await asyncio.gather(*workers, *agents)
    claims.close()
    await channel.close()


async def _work(stub: EnvironmentServiceAsyncStub, load: Load, episode: str) -> None:
    """Draws for one episode as a rollout worker does."""
    opening = pb.OpenRequest(run_id=load.run_id, environment_json=SECTION, episode_id=episode, item_json='{"q": "1"}', player="p")
    answer: Any = pb.OpenResponse(is_away=True)
    while answer.is_away:
        answer = await stub.Open(opening, timeout=120)
    session, number = answer.session, 0
    while True:
        step = pb.StepRequest(run_id=load.run_id, session=session, turn=number)
        step.assistant.text, step.assistant.finish = f"{episode} {number}", "stop"
        drawn = step.assistant.drawn
        drawn.prompt_tokens, drawn.token_ids, drawn.logprobs = 32, pack_ids(range(64)), pack_logprobs([-0.5] * 64)
        number += 1
        answer = await stub.Step(step, timeout=600)
        if answer.done:
            load.rewards.append(answer.reward)
            await stub.Close(pb.CloseRequest(run_id=load.run_id, session=session), timeout=60)
            return
        if answer.status != pb.ENVIRONMENT_STATUS_OK:
            raise AssertionError(answer.reason)


async def _agent(service: Service, load: Load, offer: dict[str, Any], place: int) -> None:
    """Plays an episode; `place` is its number among those of the load."""
    connection = Connection(service.http, offer["api_key"])
    messages: list[dict[str, str]] = [{"role": "user", "content": "Begin."}]
    if load.rate:
        await load.all_claimed.wait()
    all_began = time.perf_counter()
    for number in range(load.turns):
        began = time.perf_counter()
        if load.rate:
            due = all_began + (place + number * load.episodes) / load.rate
            await asyncio.sleep(max(0.0, due - began))
            began = due
        answer = await connection.post("/v1/chat/completions", {"model": "m", "messages": messages})
        load.waits.append(time.perf_counter() - began)
        said = answer["choices"][0]["message"]["content"]
        if said != f"{offer['episode']} {number}":
            raise AssertionError(f"{offer['episode']} got {said!r} as turn {number}")
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"result {number} " * 16}]
        if not load.rate:
            await asyncio.sleep(load.tool_seconds)
    await connection.post(f"/v1/agent/episodes/{offer['episode']}/end", {"attempt": offer["attempt"], "reward": 1})
    connection.close()


async def main(options: argparse.Namespace) -> None:
    """Prints one line for each number of episodes at once."""
    print("| episodes at once | turns a second | an answer, median | p99 | CPU ms a turn: service | the callers | KiB an episode |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as service:
        await play(service, Load("warm", 32, options.turns, 0.0))
        for episodes in options.episodes:
            load = Load(f"load-{episodes}", episodes, options.turns, options.tool_ms / 1e3, options.rate)
            before, memory = service.cpu, service.memory
            own, began = time.process_time(), time.perf_counter()
            await play(service, load)
            took, turns = time.perf_counter() - began, episodes * options.turns
            waits = sorted(load.waits)
            shares = [(service.cpu - before) * 1e3 / turns, (time.process_time() - own) * 1e3 / turns]
            print(
                f"| {episodes} | {turns / took:.0f} | {waits[turns // 2] * 1e3:.0f} ms | {waits[turns * 99 // 100] * 1e3:.0f} ms "
                f"| {shares[0]:.2f} | {shares[1]:.2f} | {(service.memory - memory) / 1024 / episodes:.0f} |",
                flush=True,
            )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the service does not start")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures the agent service.")
    parser.add_argument("--episodes", type=int, nargs="+", default=[64, 1000], help="episodes at once")
    parser.add_argument("--turns", type=int, default=8, help="of an episode")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--tool-ms", type=float, default=50.0, help="of an agent's tool, after each turn")
    asked.add_argument("--rate", type=float, default=0.0, help="turns a second of all agents together, which come evenly")
    asyncio.run(main(parser.parse_args()))
