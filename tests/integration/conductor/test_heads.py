"""Heads on a real NATS: the bucket has them, and both only grow."""

import asyncio

import pytest

from gradbus.bus import Buckets
from gradbus.v1.weights_pb2 import CheckpointHead, WeightManifest
from gradbus_conductor.run.heads import Heads


@pytest.fixture
async def bucket(bus):
    return await bus.bucket(Buckets.HEADS)


@pytest.fixture
def heads(run_id):
    return Heads(run_id, asyncio.Event())


async def until(heads, version=-1, checkpoint=-1):
    async with asyncio.timeout(60):
        while (heads.version, heads.checkpoint) != (version, checkpoint):
            await heads._wake.wait()
            heads._wake.clear()


def version(step, term=1):
    return WeightManifest(term=term, step=step, digest="d").SerializeToString()


async def test_what_the_bucket_holds_is_known_inside_the_block(bus, bucket, heads, run_id):
    await bucket.put(f"{run_id}.version", version(7))
    await bucket.put(f"{run_id}.checkpoint", CheckpointHead(term=1, step=5, digest="d").SerializeToString())
    async with heads.follow(bus):
        assert (heads.version, heads.checkpoint) == (7, 5)
        assert heads._wake.is_set()


async def test_a_run_without_a_version_has_none(bus, heads):
    async with heads.follow(bus):
        assert (heads.version, heads.checkpoint) == (-1, -1)


async def test_each_head_that_moves_wakes_the_loop(bus, bucket, heads, run_id):
    async with heads.follow(bus):
        await bucket.put(f"{run_id}.version", version(2))
        await until(heads, version=2)
        await bucket.put(f"{run_id}.checkpoint", CheckpointHead(term=1, step=2, digest="d").SerializeToString())
        await until(heads, version=2, checkpoint=2)


async def test_a_trainer_that_replays_does_not_take_a_head_back(bus, bucket, heads, run_id):
    await bucket.put(f"{run_id}.version", version(9))
    async with heads.follow(bus):
        await bucket.put(f"{run_id}.version", version(4, term=2))
        await bucket.put(f"{run_id}.version", version(10, term=2))
        await until(heads, version=10)


async def test_another_runs_versions_are_not_ours(bus, bucket, heads, run_id):
    await bucket.put(f"{run_id}0.version", version(9))
    async with heads.follow(bus):
        assert heads.version == -1
