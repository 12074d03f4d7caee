"""Versions of a run in the weight store."""

import asyncio

import pytest

from gradbus.ids import digest_of
from gradbus.v1.weight_store_service_pb2 import OpenTermRequest, PublishVersionRequest
from gradbus.v1.weights_pb2 import Shard, WeightManifest


@pytest.fixture
async def published(clients, stub, run_id):
    """Publishes a version; its file's digest."""
    await stub.OpenTerm(OpenTermRequest(run_id=run_id, term=1))

    async def publish(step):
        digest = await clients.objects.put_blob(f"weights of version {step}".encode())
        shard = Shard(digest=digest, size_bytes=1, tensors=["w"])
        manifest = WeightManifest(run_id=run_id, term=1, step=step, digest=digest_of(b"%d" % step), shards=[shard])
        await stub.PublishVersion(PublishVersionRequest(manifest=manifest))
        return digest

    return publish


@pytest.fixture
def until():
    """Waits for a condition."""

    async def wait(condition):
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - entries have no condition of their own
                await asyncio.sleep(0.02)

    return wait
