"""Which workers take part in broadcasts, and the process that does so for them."""

import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gradbus.errors import BroadcastError, CorruptRecordError
from gradbus.ids import digest_of
from gradbus.process import WorkerClients
from gradbus.tokenizer.launcher import ForkServer
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastConfig, BroadcastMembership
from gradbus.v1.weights_pb2 import Shard
from gradbus_kernels.weights.broadcast import BroadcastGroup, RankInfo, Rendezvous
from gradbus_rollout.broadcast.process import BroadcastProcess, MemberConfig
from gradbus_rollout.broadcast.receiver import BroadcastReceiver
from gradbus_rollout.engines.registry import EngineFactory
from gradbus_rollout.service import RolloutService
from gradbus_rollout.settings import Settings

CONFIG = BroadcastConfig(backend="gloo", bucket_bytes=1 << 20, seconds=60.0, stall_seconds=30.0)
CONTENT = bytes(range(256)) * 12_000


def receiver(tmp_path, transport, engine):
    spec = SimpleNamespace(weights=SimpleNamespace(transport=transport), rollout=SimpleNamespace(engine=engine))
    heartbeat = SimpleNamespace(presence=SimpleNamespace(worker="a"))
    settings = Settings(cache_dir=tmp_path)
    service = RolloutService(settings, WorkerClients(None, None, None, None, heartbeat), EngineFactory(settings), ForkServer())
    return service._receiving(SimpleNamespace(run_id="run", spec=spec))


@pytest.mark.parametrize(("transport", "expected"), [("broadcast", True), ("store", False), ("delta", False)])
@pytest.mark.parametrize("engine", ["torch", "sglang"])
def test_a_worker_takes_part_where_the_run_asks_for_it(tmp_path, transport, engine, expected):
    assert (not isinstance(receiver(tmp_path, transport, engine), nullcontext)) == expected


@pytest.fixture
def new_member(tmp_path):
    made = []

    def make(python=sys.executable):
        made.append(BroadcastProcess(MemberConfig("a", "127.0.0.1", "cpu", python, tmp_path)))
        return made[-1]

    yield make
    for member in made:
        member.abort()


@pytest.fixture
def rendezvous():
    return Rendezvous.serve("127.0.0.1", 0, 30.0)


@pytest.mark.parametrize(("backend", "device", "expected"), [("gloo", "cuda", "cpu"), ("gloo", "cpu", "cpu"), ("nccl", "cuda:1", "cuda:1")])
def test_the_backend_decides_where_the_buckets_are(tmp_path, backend, device, expected):
    assert MemberConfig("a", "h", device, "python", tmp_path).device_for(backend) == expected


async def test_a_worker_without_a_gpu_joins_no_group_of_nccl(tmp_path):
    clients = SimpleNamespace()  # whoever asked the weight store for a place in the group would fail here
    receiver = BroadcastReceiver(clients, "run", MemberConfig("a", "h", "cpu", "python", tmp_path))
    await receiver._announced(Broadcast(step=1, config=BroadcastConfig(backend="nccl")).SerializeToString())
    with pytest.raises(BroadcastError, match="GRADBUS_DEVICE is cpu here; set it to cuda on this worker"):
        await receiver._receive_all(None)


def send(rendezvous, content):
    """Rank 0, in a thread of its own."""

    def work():
        group = BroadcastGroup(rendezvous, RankInfo("g", 0, 2, "127.0.0.1", stall_seconds=30.0))
        group.send([memoryview(content)], CONFIG.bucket_bytes, 1e12)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def offered(rendezvous, content=CONTENT):
    broadcast = Broadcast(step=3, config=CONFIG, shards=[Shard(digest=digest_of(CONTENT), size_bytes=len(content))])
    return broadcast, BroadcastMembership(group="g", address=rendezvous.address, workers=["a"])


def test_the_process_fills_the_cache_and_leaves_a_receipt(new_member, rendezvous, tmp_path):
    broadcast, members = offered(rendezvous)
    member, sender = new_member(), send(rendezvous, CONTENT)
    member.wait_until_ready()
    member.connect(members, CONFIG)
    member.receive(broadcast, members)
    sender.join()
    assert member.group == "g"
    assert [path.read_bytes() for path in (tmp_path / "shards").iterdir()] == [CONTENT]
    assert rendezvous.take_receipts(["g/3/a"], 0.0) == [True]


def test_damaged_bytes_are_no_file_and_a_bad_receipt(new_member, rendezvous, tmp_path):
    other = CONTENT[:-1] + b"x"
    broadcast, members = offered(rendezvous)
    member, sender = new_member(), send(rendezvous, other)
    member.wait_until_ready()
    member.connect(members, CONFIG)
    with pytest.raises(CorruptRecordError, match="came damaged"):
        member.receive(broadcast, members)
    sender.join()
    assert list((tmp_path / "shards").iterdir()) == []
    assert rendezvous.take_receipts(["g/3/a"], 0.0) == [False]


def test_a_python_without_torch_or_none_at_all_is_said(new_member, tmp_path):
    with pytest.raises(BroadcastError, match="it must be a Python that has torch"):
        new_member(str(tmp_path / "python"))
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(BroadcastError, match="No module named 'torch'"):
        new_member(str(bare)).wait_until_ready()


def test_a_process_that_is_killed_ends_what_waits_for_it(new_member, rendezvous):
    member = new_member()
    member.wait_until_ready()
    threading.Timer(0.2, member.abort).start()
    with pytest.raises(BroadcastError, match="it was killed; versions come from object storage"):
        member.connect(offered(rendezvous)[1], CONFIG)
    with pytest.raises(BroadcastError):
        member.receive(*offered(rendezvous))
