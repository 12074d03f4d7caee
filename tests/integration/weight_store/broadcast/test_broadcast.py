"""Versions by broadcast to real processes that die, hang and send wrong bytes; a worker that misses one reads object storage."""

import asyncio
import json
import os
import signal

import grpc
import pytest

from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastConfig
from gradbus.v1.weights_pb2 import Shard
from gradbus_trainer.broadcast import publisher as broadcast_publisher

from .conftest import config_of


@pytest.mark.parametrize("config", [config_of(60)], ids=["long_timeouts"])
async def test_all_workers_get_the_same_bytes(lab):
    publisher = await lab.trainer()
    assert await lab.publish(publisher, 0) is None, "nobody is there"
    await lab.worker("a")
    await lab.worker("b")
    for step in (1, 2):
        assert await lab.publish(publisher, step) == ("all", ["a", "b"], [])
    assert lab.cached("a") == lab.cached("b") == sorted([await content(lab, 1), await content(lab, 2)])
    assert await lab.load("a", 2)
    assert not await lab.load("a", 0), "from before it came"


async def content(lab, step):
    manifest = (await lab.stub.GetVersion(pb.GetVersionRequest(run_id=lab.run_id, step=step))).manifest
    return await lab.objects.get_blob(manifest.shards[0].digest)


@pytest.mark.slow
async def test_a_process_group_is_made_again_only_when_its_members_change(lab, store_process):
    publisher = await lab.trainer()
    await lab.worker("a")
    for step in range(3):
        await lab.publish(publisher, step)
    await lab.worker("b")
    await lab.publish(publisher, 3)
    lines = map(json.loads, (store_process.folder / "log").read_text().splitlines())
    made = [(line["workers"], line["new_group"]) for line in lines if line["event"] == "broadcast_members"]
    assert made == [(["a"], True), (["a"], False), (["a"], False), (["a", "b"], True)]


@pytest.mark.parametrize("kind", ["dies", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("deaf", "hangs"))])
async def test_a_worker_that_fails_is_dropped_and_has_the_version_from_object_storage(lab, kind):
    publisher = await lab.trainer()
    await lab.worker("a")
    await lab.worker("b", kind)
    outcome, received, dropped = await lab.publish(publisher, 0)
    assert (outcome, received) in [("some", ["a"]), ("none", [])]
    assert "b" in dropped
    assert not await lab.load("b", 0)
    assert await lab.load("a", 0) == (received == ["a"])
    os.kill(lab.pids["b"], signal.SIGKILL) if kind != "dies" else None
    await lab.worker("b")
    await lab.publish_until(publisher, ["a", "b"])


@pytest.mark.slow
async def test_a_worker_that_was_frozen_comes_back_by_itself(lab):
    publisher = await lab.trainer()
    await lab.worker("a", "hangs")
    assert await lab.publish(publisher, 0) == ("none", [], ["a"])
    os.kill(lab.pids["a"], signal.SIGCONT)
    step = await lab.publish_until(publisher, ["a"])
    assert await lab.load("a", step)
    assert not await lab.load("a", 0)


async def test_a_trainer_that_dies_in_the_middle_leaves_workers_that_serve_the_next_one(lab):
    await lab.stub.OpenTerm(pb.OpenTermRequest(run_id=lab.run_id, term=1), wait_for_ready=True, timeout=60)
    await lab.worker("a")
    lab.begin("trainer", "trainer")
    await lab.logged("broadcast_missed")
    assert lab.cached("a") == []
    successor = await lab.trainer(term=2)
    step = await lab.publish_until(successor, ["a"])
    assert await lab.load("a", step)


async def test_a_trainer_of_an_older_term_reaches_no_worker(lab):
    zombie = await lab.trainer(term=1)
    await lab.worker("a")
    await lab.trainer(term=2)
    await zombie._broadcast(lab.export(0))
    assert await lab.told(0) is None
    assert lab.cached("a") == []
    broadcast = Broadcast(run_id=lab.run_id, term=1, shards=[Shard(digest="sha256:" + 64 * "0", size_bytes=1)], config=BroadcastConfig())
    with pytest.raises(grpc.aio.AioRpcError, match="FencedError"):
        await lab.stub.OpenBroadcast(pb.OpenBroadcastRequest(broadcast=broadcast))


@pytest.mark.slow
async def test_bytes_that_do_not_match_their_digest_are_thrown_away(lab, monkeypatch):
    publisher = await lab.trainer()
    await lab.worker("a")
    with monkeypatch.context() as damaged:
        damaged.setattr(broadcast_publisher, "digest_of_file", lambda path: "sha256:" + 64 * "0")
        assert await lab.publish(publisher, 0) == ("none", [], ["a"])
    assert lab.cached("a") == []
    assert not await lab.load("a", 0)
    await lab.publish_until(publisher, ["a"])


@pytest.mark.slow
async def test_a_weight_store_that_is_away_holds_up_nothing_but_the_publishing(lab, store_process):
    publisher = await lab.trainer()
    await lab.worker("a")
    store_process.kill()
    task = asyncio.create_task(lab.publish(publisher, 0))
    await asyncio.wait({task}, timeout=0.5)
    store_process.start()
    assert await task in [None, ("all", ["a"], [])]
    await lab.publish_until(publisher, ["a"])
