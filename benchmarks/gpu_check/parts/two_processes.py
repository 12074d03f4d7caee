"""Part 6: trainer and worker are two processes with one GPU, where NCCL refuses two ranks.

A broadcast that cannot work must fail in time, with nothing in the worker's cache, so that the file in storage serves.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_check.context import Context
from gradbus.errors import GradbusError
from gradbus.ids import digest_of, digest_of_file
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastMembership
from gradbus.v1.weights_pb2 import Shard
from gradbus_rollout.broadcast.process import BroadcastProcess, MemberConfig
from gradbus_rollout.weights.cache import ShardCache
from gradbus_trainer.broadcast.sender import BroadcastSender

_STALL_SECONDS: Final = 4.0
_GIVEN_UP_SECONDS: Final = 2 * _STALL_SECONDS + 4.0
"""A wait to connect and one for a bucket, and the start of CUDA and NCCL."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The trainer's end, in this process, and a worker's process, which has not joined yet."""

    sender: BroadcastSender
    member: BroadcastProcess
    members: BroadcastMembership
    settings: BroadcastSettings
    cache: ShardCache


def run(context: Context) -> None:
    """A broadcast by gloo arrives; one by NCCL on one GPU, and one to a member that is gone, end in time; then the file is read."""
    content = np.random.default_rng(0).integers(256, size=1 << (20 if context.dry else 28), dtype=np.uint8).tobytes()
    shard, stored = Shard(digest=digest_of(content), size_bytes=len(content)), context.folder / "version"
    stored.write_bytes(content)
    with _pair(context, "gloo") as pair:
        received, seconds = _broadcast(pair, shard, content)
        arrived = pair.cache.find(shard.digest)
        context.holds("gloo: its receipt comes back", received == ["member"])
        context.holds("gloo: every byte arrives", arrived is not None and digest_of_file(arrived) == shard.digest)
        context.speed("gloo: between two processes", len(content) / seconds, "B/s")
    failing = [("gloo, a killed member", "gloo", True)]
    failing += [("NCCL, two ranks on one GPU", "nccl", False)] if context.device == "cuda" else []
    for name, backend, kill in failing:
        with _pair(context, backend) as pair:
            received, seconds = _broadcast(pair, shard, content, kill)
            context.holds(f"{name}: nobody is said to have received it", not received)
            context.holds(f"{name}: nothing is in the worker's cache", pair.cache.find(shard.digest) is None)
            context.correct(f"{name}: seconds until both ends have given up", seconds, _GIVEN_UP_SECONDS, "s")
            context.holds(f"{name}: the stored file has the bytes", digest_of_file(stored) == shard.digest)


@contextmanager
def _pair(context: Context, backend: str) -> Iterator[_Pair]:
    os.environ["GRADBUS_BROADCAST_BACKEND"] = backend
    settings = BroadcastSettings(stall_seconds=_STALL_SECONDS, seconds=30.0)
    folder = context.folder / f"worker-{time.monotonic_ns()}"
    sender = BroadcastSender(settings, context.device)
    member = BroadcastProcess(MemberConfig("member", settings.host, context.device, sys.executable, folder))
    members = BroadcastMembership(group=folder.name, address=sender.address, workers=["member"])
    try:
        member.wait_until_ready()
        yield _Pair(sender, member, members, settings, ShardCache(folder / "shards"))
    finally:
        member.abort()
        _ended([sender.abort], _STALL_SECONDS)  # in a thread, because it may hang as well


def _broadcast(pair: _Pair, shard: Shard, content: bytes, kill: bool = False) -> tuple[list[str], float]:
    """Who received `content`, and the seconds until both ends are done; infinite if one is not.

    `kill`: the member dies once it has joined.
    """
    broadcast = Broadcast(step=1, shards=[shard], config=pair.settings.config)
    received: list[str] = []

    def receive() -> None:
        pair.member.connect(pair.members, pair.settings.config)
        if kill:
            pair.member.abort()
        else:
            pair.member.receive(broadcast, pair.members)

    def send() -> None:
        pair.sender.connect(pair.members)
        received.extend(pair.sender.send(1, pair.members, [memoryview(content)]))

    began = time.monotonic()
    ended = _ended([receive, send], 2 * _GIVEN_UP_SECONDS)
    return received, time.monotonic() - began if ended else math.inf


def _ended(works: list[Callable[[], object]], seconds: float) -> bool:
    """Runs all at the same time; whether they ended within `seconds`. What they raise is printed."""

    def run_printing(work: Callable[[], object]) -> None:
        try:
            work()
        except (GradbusError, RuntimeError, OSError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)

    threads = [threading.Thread(target=run_printing, args=(work,), daemon=True) for work in works]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
