"""Versions, terms and heads, against the real service, NATS and a folder."""

import grpc
import pytest

from gradbus.bus import Buckets
from gradbus.ids import digest_of
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weights_pb2 import Shard, WeightManifest

REFUSED = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
def store_process(shared_store):
    return shared_store


@pytest.fixture
def object_url(shared_store):
    return shared_store.object_url


async def status_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_a_published_version_is_the_head(trainer, bus, run_id):
    await trainer.open()
    await trainer.publish(0)
    head = WeightManifest.FromString((await (await bus.bucket(Buckets.HEADS)).get(f"{run_id}.version")).value)
    stored = await trainer.manifest(0)
    assert stored == await trainer.version(0)
    assert (head.term, head.step, head.digest) == (1, 0, stored.digest)
    assert [shard.digest for shard in head.shards] == [stored.shards[0].digest]
    assert (head.run_id, [list(shard.tensors) for shard in head.shards]) == (run_id, [[]]), "all but the names of tensors"


async def test_the_same_version_again_moves_nothing(trainer, bus, run_id):
    await trainer.publish(0)
    await trainer.publish(1)
    before = await (await bus.bucket(Buckets.HEADS)).get(f"{run_id}.version")
    assert not (await trainer.publish(0)).diverged
    assert not (await trainer.publish(1)).diverged
    assert await (await bus.bucket(Buckets.HEADS)).get(f"{run_id}.version") == before


async def test_other_weights_under_the_same_term_are_refused(trainer):
    await trainer.publish(0)
    assert await status_of(trainer.publish(0, b"others")) == REFUSED
    assert await trainer.version(0) == await trainer.manifest(0)


async def test_a_replay_under_a_newer_term_keeps_equal_manifests_and_moves_the_head_back(trainer, trainer_of, run_id):
    for step in range(4):
        await trainer.publish(step)
    second = trainer_of(run_id, term=2)
    await second.open()
    assert not (await second.publish(2)).diverged
    heads = await second.heads()
    assert (heads.term, heads.version_step) == (2, 2)
    assert (await second.version(2)).term == 1
    assert (await second.version(3)).term == 1


async def test_a_replay_with_other_weights_says_that_it_diverged(trainer, trainer_of, run_id):
    await trainer.publish(5)
    second = trainer_of(run_id, term=2)
    assert (await second.publish(5, b"others")).diverged
    assert (await second.publish(5, b"others")).diverged, "a repeated call gets the same answer"
    assert (await second.version(5)).digest == (await second.manifest(5, b"others")).digest
    assert await status_of(trainer.publish(6)) == REFUSED


async def test_an_older_term_can_do_nothing(trainer, trainer_of, run_id):
    await trainer.publish(0)
    await trainer_of(run_id, term=3).open()
    assert await status_of(trainer.open()) == REFUSED
    assert await status_of(trainer.publish(1)) == REFUSED
    assert await status_of(trainer.commit(0)) == REFUSED
    heads = await trainer.heads()
    assert (heads.term, heads.version_step, heads.checkpoint_step) == (3, 0, -1)


async def test_a_version_whose_shard_is_not_stored_is_refused(trainer, run_id):
    shard = Shard(digest=digest_of(b"never stored"), size_bytes=1)
    manifest = WeightManifest(run_id=run_id, term=1, step=0, digest=digest_of(b"x"), shards=[shard])
    assert await status_of(trainer.stub.PublishVersion(pb.PublishVersionRequest(manifest=manifest))) == grpc.StatusCode.NOT_FOUND
    assert (await trainer.heads()).version_step == -1
    assert await status_of(trainer.version(0)) == grpc.StatusCode.NOT_FOUND


async def test_invalid_names_are_refused(trainer):
    for run in ("", "../x", "a.b", "a/b", "*", "UPPER"):
        assert await status_of(trainer.stub.GetHeads(pb.GetHeadsRequest(run_id=run))) == grpc.StatusCode.INVALID_ARGUMENT, run


async def test_a_future_version_is_not_found(trainer):
    await trainer.publish(0)
    assert await status_of(trainer.version(1)) == grpc.StatusCode.NOT_FOUND


async def test_everything_is_there_after_a_kill(trainer, store_process):
    for step in range(3):
        await trainer.publish(step)
    listed = await trainer.listed()
    store_process.kill()
    store_process.start()
    assert await trainer.listed() == listed
    assert [one.step for one in listed.manifests] == [0, 1, 2]
    assert listed.heads.version_step == 2


async def test_a_call_without_the_token_is_refused(store_process):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{store_process.port}") as channel:
        call = channel.unary_unary("/gradbus.v1.WeightStoreService/GetHeads")
        assert await status_of(call(b"")) == grpc.StatusCode.UNAUTHENTICATED
