"""Workers and trainers as processes: one imports torch, and forks each that is asked for by a line on its standard input.

None is waited for: the number of one that died is not given to a stranger, who would then be killed in its place.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import torch

from gradbus import crash_points
from gradbus.bus import Bus, BusSettings, EventLog
from gradbus.control.runs import WorkerPresence
from gradbus.objects import ObjectStore
from gradbus.process import WorkerClients, WorkerHeartbeat
from gradbus.rpc import open_channel
from gradbus.telemetry import configure_logging
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_kernels.weights import broadcast as weights_broadcast
from gradbus_rollout.broadcast.process import MemberConfig
from gradbus_rollout.broadcast.receiver import BroadcastReceiver
from gradbus_trainer.broadcast.publisher import BroadcastPublisher
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch

SIGNALS = {"dies": signal.SIGKILL, "hangs": signal.SIGSTOP}


def at_pass(count, number):
    """Sends this process a signal at its `count`-th call."""
    passes = iter(range(1, 1 << 30))
    return lambda *_: os.kill(os.getpid(), number) if next(passes) == count else None


async def work(order):
    bus = await Bus.connect(BusSettings(order["nats"]), order["name"])
    stub = WeightStoreServiceStub(open_channel(order["store"], order["token"]))
    if order["kind"] == "trainer":
        await train(order, bus, stub)
        return
    presence = WorkerPresence(worker=order["name"], role="rollout", incarnation=order["incarnation"], run_id=order["run"])
    heartbeat = WorkerHeartbeat(bus, presence)
    clients = WorkerClients(bus, None, ObjectStore.open("file:///nowhere-at-all"), stub, heartbeat)
    async with heartbeat.present():
        if order["kind"] == "deaf":
            presence.receives = True
            await asyncio.Event().wait()
        if order["kind"] in SIGNALS:
            crash_points.reached = at_pass(3, SIGNALS[order["kind"]])
        member = MemberConfig(order["name"], "127.0.0.1", "cpu", sys.executable, Path(order["cache"]))
        async with BroadcastReceiver(clients, order["run"], member).receiving():
            await asyncio.Event().wait()


async def train(order, bus, stub):
    """Offers one version and dies between two of its buckets."""
    sent, broadcast = at_pass(3, signal.SIGKILL), weights_broadcast.BroadcastGroup._broadcast

    def last(group, bucket):
        sent()
        return broadcast(group, bucket)

    weights_broadcast.BroadcastGroup._broadcast = last
    weights = LazyTensors.of({"w": torch.ones(order["floats"])})
    export = export_version(0, weights, False, Scratch(Path(order["cache"]) / "scratch"))
    await BroadcastPublisher(stub, EventLog(bus, order["run"]), order["run"], 1, "cpu").broadcast(export)


def main():
    configure_logging("lab")  # to standard error: standard output tells the processes
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if pid := os.fork():
            print(pid, flush=True)
            continue
        os.environ.update(order["environment"])
        asyncio.run(work(order))
        os._exit(0)


if __name__ == "__main__":
    main()
