"""Measures the driver of episodes: `python loadtests/episode_driver.py [--episodes 64 1000] [--turns 8] [--tool-ms 50]`.

This process is a rollout worker's sampler with its tokenizer's process. The engine is a stub whose turns take no time, and the
environment is an object of this process, whose tool waits: what is left is what a turn costs the driver itself. `--service` asks the same
environment by gRPC in another process instead. The last column is a digest of what was sampled: the same for equal code.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
import numpy as np
import psutil

from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.datasets.row_file import RowFile
from gradbus.formats.model_config import read_model_config, tensor_shapes
from gradbus.formats.safetensors import header
from gradbus.rpc import open_channel
from gradbus.spec import RunSpec
from gradbus.tokenizer.launcher import ForkServer
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer, limits_of
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import (
    EnvironmentServiceServicer,
    EnvironmentServiceStub,
    add_EnvironmentServiceServicer_to_server,
)
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.engines.base import Completion, Engine, GroupCompletion, PromptGroup, TokenSpan
from gradbus_rollout.engines.watchdog import WatchedEngine
from gradbus_rollout.episodes.attempt import PlayerParts
from gradbus_rollout.episodes.codec import TurnCodec
from gradbus_rollout.episodes.environment import EnvironmentClient, RunEnvironment
from gradbus_rollout.episodes.episode import EpisodeLimits
from gradbus_rollout.episodes.sampler import EpisodeSampler
from gradbus_rollout.tasks.generation_traces import TaskTimes
from gradbus_rollout.tasks.prompts import PromptTable
from gradbus_rollout.tasks.sampler import PromptTables

if TYPE_CHECKING:
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceAsyncStub

EPISODES_PER_SLOT: Final = 4
"""That a rollout worker plays at a time."""
GROUP_SIZE: Final = 8
GROUPS: Final = 16
"""Of a task."""
LONGEST: Final = 64
"""Tokens of a turn, of which there are half as many on average."""
CHARACTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz ?.:"
LOOK_SECONDS: Final = 0.1
RESULT: Final = "the tool says: go on with the next letter. "


class StubEngine:
    """Draws at once: a turn's length and tokens are a function of its seed, so that they can be compared."""

    name, version = "stub", 1

    def __init__(self, vocabulary: Sequence[int], stop: int) -> None:
        self._ids, self._stop, self._calls = tuple(vocabulary) * (2 * LONGEST), stop, 0
        self._logprobs = np.linspace(-3.0, -0.1, len(self._ids), dtype="<f4")

    async def progress(self) -> int:
        """See `Engine.progress`."""
        return self._calls

    async def generate(self, groups: Sequence[PromptGroup]) -> Sequence[GroupCompletion]:
        """See `Engine.generate`."""
        self._calls += 1
        await asyncio.sleep(0)
        return [GroupCompletion(group.key, tuple(map(self._drawn, group.seeds))) for group in groups]

    async def close(self) -> None:
        """See `Engine.close`."""

    def _drawn(self, seed: int) -> Completion:
        at, length = seed % LONGEST, 1 + (seed >> 8) % LONGEST
        ids = (*self._ids[at : at + length], self._stop)
        return Completion(ids, self._logprobs[at : at + length + 1].tobytes(), (TokenSpan(0, length + 1, 1),), "stop")


class Environment(EnvironmentServiceServicer):
    """Answers each turn after a while, and ends after some."""

    def __init__(self, turns: int, tool_seconds: float) -> None:
        self._turns, self._tool_seconds, self._opened = turns, tool_seconds, 0

    async def Describe(self, request: pb.DescribeRequest, context: Any = None, **_: Any) -> pb.DescribeResponse:  # noqa: ARG002, N802
        """See the proto."""
        return pb.DescribeResponse(name="load", digest="0" * 64, determinism=pb.DETERMINISM_SEEDED)

    async def Open(self, request: pb.OpenRequest, context: Any = None, **_: Any) -> pb.OpenResponse:  # noqa: ARG002, N802
        """See the proto."""
        self._opened += 1
        return pb.OpenResponse(status=pb.ENVIRONMENT_STATUS_OK, session=f"{self._opened:032x}")

    async def Step(self, request: pb.StepRequest, context: Any = None, **_: Any) -> pb.StepResponse:  # noqa: ARG002, N802
        """See the proto."""
        await asyncio.sleep(self._tool_seconds)
        answer = pb.StepResponse(status=pb.ENVIRONMENT_STATUS_OK, state_digest=f"sha256:{request.turn:064x}")
        if request.turn + 1 == self._turns:
            answer.reward, answer.done = 1.0, True
        else:
            answer.messages.add(role="user", content=RESULT * 2)
        return answer

    async def Close(self, request: pb.CloseRequest, context: Any = None, **_: Any) -> pb.CloseResponse:  # noqa: ARG002, N802
        """See the proto."""
        return pb.CloseResponse()

    async def KeepAlive(self, request: pb.KeepAliveRequest, context: Any = None, **_: Any) -> pb.KeepAliveResponse:  # noqa: ARG002, N802
        """See the proto."""
        return pb.KeepAliveResponse()


def write_model(folder: Path) -> None:
    """The smallest model, of zeros, and a tokenizer of one token for each character, without the libraries that make real ones."""
    folder.mkdir()
    ids = {text: number for number, text in enumerate(("<unk>", "<eos>", *CHARACTERS))}
    added = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": ids[text], "content": text, **added} for text in ("<unk>", "<eos>")],
        "pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(ids),
        "hidden_size": 4,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 8192,
        "eos_token_id": ids["<eos>"],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "<unk>", "eos_token": "<eos>"}))
    (folder / "config.json").write_text(json.dumps(config))
    shapes = tensor_shapes(read_model_config(folder))
    tensors = header({name: ("F32", shape) for name, shape in shapes.items()})
    (folder / "model.safetensors").write_bytes(tensors + bytes(4 * sum(map(math.prod, shapes.values()))))


@dataclass(frozen=True)
class Driver:
    """A sampler, and the processes that work for it."""

    sampler: EpisodeSampler
    size: int
    """Episodes of a task."""

    async def sample(self, first: int) -> list[Group]:
        """A task whose groups have the indexes from `first` on."""
        groups = [GroupTask(index=first + n, row=(first + n) % 64) for n in range(GROUPS)]
        task = Task(task_id="t", kind=TaskKind.TASK_KIND_TRAIN, version=1, groups=groups)
        return await self.sampler.sample(task, TaskTimes(received=1))


def spec_of(turns: int, episodes: int) -> RunSpec:
    """A run that plays so many episodes at a time."""
    return RunSpec.model_validate(
        {
            "name": "load",
            "model": {"path": "m"},
            "data": {"train": "t"},
            "environment": {"service": "http://127.0.0.1:1/", "max_turns": turns},
            "rollout": {"slots": max(1, episodes // EPISODES_PER_SLOT), "group_size": GROUP_SIZE, "max_new_tokens": 2 * LONGEST},
            "schedule": {"steps": 10},
        }
    )


@asynccontextmanager
async def driver(folder: Path, stub: Any, spec: RunSpec) -> AsyncIterator[Driver]:
    """The sampler of a run inside the block, with an engine that has loaded version 1."""
    server, rows = ForkServer(), folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{row}: which letter comes next?", "item": {"answer": "a"}}) + "\n" for row in range(64))
    )
    record = RunRecord(run_id="run-load", spec=spec, created_unix_ns=1)
    presence = WorkerPresence(worker="worker", role="rollout", incarnation="1")
    client = EnvironmentClient(cast("EnvironmentServiceAsyncStub", stub), "127.0.0.1", record, presence)
    assert spec.environment is not None
    environment = RunEnvironment(spec.environment, client, await client.describe())
    tokenizer = await Tokenizer.open(server, folder / "model", limits_of(spec, 1), Deadlines(load=60, call=60), environment.turn_settings)
    (stop,) = tokenizer.stop_token_ids
    engine = WatchedEngine(cast("Engine", StubEngine(range(stop + 2, stop + 30), stop)), 60.0)
    try:
        limits = EpisodeLimits.of(spec, spec.environment, tokenizer.context_length)
        parts = PlayerParts(engine, TurnCodec(tokenizer), client, limits)
        table = await PromptTable.open(tokenizer, RowFile(rows))
        yield Driver(EpisodeSampler(record, parts, PromptTables(table, None), environment.description), GROUPS * GROUP_SIZE)
    finally:
        await tokenizer.close()
        await engine.close()
        await server.close()


@asynccontextmanager
async def environment_of(options: argparse.Namespace) -> AsyncIterator[Any]:
    """What the driver asks inside the block."""
    world = Environment(options.turns, options.tool_ms / 1e3)
    if not options.service:
        yield world
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(world, theirs), daemon=True)
    process.start()
    channel = open_channel(await asyncio.to_thread(ours.recv))
    try:
        yield EnvironmentServiceStub(channel)
    finally:
        await channel.close()
        process.kill()


def _serve(world: Environment, told: Connection) -> None:
    async def served() -> None:
        server = grpc.aio.server()
        add_EnvironmentServiceServicer_to_server(world, server)
        told.send(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(served())


def cpu() -> tuple[float, float]:
    """Seconds of the processor so far: of this process, and of those that it started."""
    spent = [sum(process.cpu_times()[:2]) for process in psutil.Process().children(recursive=True)]
    return time.process_time(), sum(spent)


async def _peak(begun: int) -> int:
    """The most that this process's memory was above `begun`, in bytes, until it is cancelled."""
    most, own = 0, psutil.Process()
    try:
        while True:
            most = max(most, own.memory_info().rss - begun)
            await asyncio.sleep(LOOK_SECONDS)
    except asyncio.CancelledError:
        return most


async def measure(of: Driver, episodes: int, options: argparse.Namespace) -> str:
    """A row of the table."""
    at_once = -(-episodes // of.size)
    digest = _digest(await of.sample(0))
    before, began, rss = cpu(), time.perf_counter(), psutil.Process().memory_info().rss
    peak = asyncio.create_task(_peak(rss))

    async def played(player: int) -> int:
        turns = 0
        for n in range(options.rounds):
            groups = await of.sample((player * options.rounds + n + 1) * GROUPS)
            turns += sum(len(sample.episode.turns) for group in groups for sample in group.samples)
        return turns

    turns = sum(await asyncio.gather(*map(played, range(at_once))))
    took, after = time.perf_counter() - began, cpu()
    peak.cancel()
    own, others = ((now - then) * 1e3 / turns for now, then in zip(after, before, strict=True))
    if turns != at_once * options.rounds * of.size * options.turns:
        raise AssertionError(f"{turns} turns: an episode ended early")
    return f"| {episodes:,} | {turns / took:.0f} | {own:.2f} | {others:.2f} | {await peak / 1024 / episodes:.0f} | {digest} |"


def _digest(groups: list[Group]) -> str:
    found = hashlib.sha256()
    for group in groups:
        found.update(group.SerializeToString(deterministic=True))
    return found.hexdigest()[:12]


async def main(options: argparse.Namespace) -> None:
    """Prints one line for each number of episodes at once."""
    print("| episodes at once | turns a second | CPU ms a turn: the driver | its other processes | KiB an episode | digest |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model")
        for episodes in options.episodes:
            async with environment_of(options) as stub, driver(Path(folder), stub, spec_of(options.turns, episodes)) as of:
                print(await measure(of, episodes, options), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures the driver of episodes.")
    parser.add_argument("--episodes", type=int, nargs="+", default=[64, 1000], help="at once")
    parser.add_argument("--turns", type=int, default=8, help="of an episode")
    parser.add_argument("--tool-ms", type=float, default=50.0, help="of the environment's answer to a turn")
    parser.add_argument("--rounds", type=int, default=3, help="tasks of 128 episodes, one after the other, of each of those at once")
    parser.add_argument("--service", action="store_true", help="ask the environment by gRPC in another process")
    asyncio.run(main(parser.parse_args()))
