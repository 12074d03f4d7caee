"""Measures the environment service: `python loadtests/episodes.py [--seconds 10] [--concurrent 64 256]`.

The real service as a process with a Python environment; this process plays episodes of two turns (a tool, then an answer) by gRPC as
rollout workers do. CPU is that of the service, of its children, and of this process as the caller.
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
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from gradbus.rpc import open_channel, token_hash
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub
from gradbus.v1.episode_pb2 import CALL_STATUS_OK, ToolCall

if TYPE_CHECKING:
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceAsyncStub

TOKEN = "of-the-load-test"
WORLD = '''
class Environment:
    def reset(self, item, seed):
        self.total = 0
        return "Add."

    def add(self, number: int) -> int:
        """Adds a number."""
        self.total += number
        return self.total

    def reward(self, text):
        return float(text == str(self.total))
'''


@dataclass
class Cpu:
    """CPU seconds so far."""

    service: float
    children: float
    caller: float

    @classmethod
    def now(cls, service: psutil.Process) -> Cpu:
        """Of the service, its children and this process."""
        return cls(_seconds(service), sum(map(_seconds, service.children(recursive=True))), _seconds(psutil.Process()))


async def main(options: argparse.Namespace) -> None:
    """Prints one line for each number of concurrent episodes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    process = _start(port)
    channel = open_channel(f"127.0.0.1:{port}", TOKEN)
    stub: EnvironmentServiceAsyncStub = EnvironmentServiceStub(channel)  # type: ignore[assignment]
    print("| episodes at once | episodes a second | CPU ms an episode: service | its children | the caller | a step, p99 |")
    print("|---|---|---|---|---|---|")
    try:
        for concurrent in options.concurrent:
            print(await _measured(stub, psutil.Process(process.pid), concurrent, options.seconds), flush=True)
    finally:
        await channel.close()
        process.send_signal(signal.SIGTERM)
        process.wait()


async def _measured(stub: EnvironmentServiceAsyncStub, service: psutil.Process, concurrent: int, seconds: float) -> str:
    run_id, steps = f"load-{concurrent}", list[float]()
    await asyncio.gather(*(_episode(stub, run_id, f"warm.{n}", steps) for n in range(concurrent)))
    before, began, until = Cpu.now(service), time.perf_counter(), time.perf_counter() + seconds
    steps.clear()

    async def played(player: int) -> int:
        count = 0
        while time.perf_counter() < until:
            await _episode(stub, run_id, f"{player}.{count}", steps)
            count += 1
        return count

    episodes = sum(await asyncio.gather(*map(played, range(concurrent))))
    took, after = time.perf_counter() - began, Cpu.now(service)
    shares = [(getattr(after, name) - getattr(before, name)) * 1e3 / episodes for name in ("service", "children", "caller")]
    slowest = sorted(steps)[len(steps) * 99 // 100] * 1e3
    return f"| {concurrent} | {episodes / took:.0f} | {shares[0]:.2f} | {shares[1]:.2f} | {shares[2]:.2f} | {slowest:.0f} ms |"


async def _episode(stub: EnvironmentServiceAsyncStub, run_id: str, name: str, steps: list[float]) -> None:
    section = json.dumps({"source": WORLD})
    opening = pb.OpenRequest(run_id=run_id, environment_json=section, episode_id=name, item_json='{"prompt": "Add."}', seed=7)
    session = (await stub.Open(opening, timeout=60)).session
    add = pb.StepRequest(run_id=run_id, session=session, turn=0)
    add.assistant.finish = "stop"
    add.assistant.calls.append(ToolCall(call_id="c0.0", name="add", arguments_json='{"number": 7}', status=CALL_STATUS_OK))
    answer = pb.StepRequest(run_id=run_id, session=session, turn=1)
    answer.assistant.text, answer.assistant.finish = "7", "stop"
    for turn in (add, answer):
        began = time.perf_counter()
        said = await stub.Step(turn, timeout=60)
        steps.append(time.perf_counter() - began)
    if said.reward != 1.0:
        raise AssertionError(said)
    await stub.Close(pb.CloseRequest(run_id=run_id, session=session), timeout=60)


def _start(port: int) -> subprocess.Popen[bytes]:
    settings = {
        "GRADBUS_LISTEN": f"127.0.0.1:{port}",
        "GRADBUS_RPC_CALLERS": json.dumps({"rollout": token_hash(TOKEN)}),
        "GRADBUS_PYTHON_ENVIRONMENTS": "true",
        "GRADBUS_ALLOW_UNISOLATED_NETWORK": "true",
    }
    command = [sys.executable, *os.environ.get("GRADBUS_LOAD_PROFILE", "").split(), "-m", "gradbus_environment"]
    process = subprocess.Popen(command, env=os.environ | settings, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    raise AssertionError("the service does not start")


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures the environment service.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--concurrent", type=int, nargs="+", default=[64, 256], help="episodes at once")
    asyncio.run(main(parser.parse_args()))
