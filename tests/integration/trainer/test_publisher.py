"""Versions leave in order, whatever the weight store and object storage do meanwhile."""

import asyncio
import shutil

import grpc
import pytest
import torch

from gradbus.bus import Buckets, EventLog
from gradbus.errors import FencedError, ObjectMissingError
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_trainer.checkpoints.state import Snapshot, TrainerState
from gradbus_trainer.checkpoints.writer import commit, fingerprint
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.versions.object_storage import load_tensors, store_files
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter

from .conftest import until


@pytest.fixture
def export(scratch):
    def make(step, value=None, noop=False):
        return export_version(step, LazyTensors.of({"w": torch.full((3,), float(step if value is None else value))}), noop, scratch)

    return make


@pytest.fixture
def events(bus, run_id):
    return EventLog(bus, run_id)


@pytest.fixture
def client(stub, run_id):
    return StoreClient(stub, run_id)


@pytest.fixture
async def new_publisher(client, objects, events, run_id):
    async def make(term):
        await client.open_term(term)
        return Publisher(client, VersionWriter(objects, run_id, term), events, run_id)

    return make


async def test_the_head_follows_the_versions_in_the_order_they_were_handed_in(new_publisher, bus, run_id, export):
    heads, seen = await bus.bucket(Buckets.HEADS), []
    async with heads.view(f"{run_id}.version") as view:
        view.listen(lambda key: seen.append(WeightManifest.FromString(view.get(key)).step))
        publisher = await new_publisher(1)
        tasks = [await publisher.publish(export(step)) for step in range(5)]
        await publisher.settle()
        await until(lambda: seen[-1:] == [4])
    assert seen == sorted(seen)
    assert [task.result().step for task in tasks] == list(range(5))


async def test_a_published_version_is_what_was_exported(new_publisher, stub, run_id, objects, export, scratch):
    publisher = await new_publisher(1)
    given = export(0)
    task = await publisher.publish(given)
    await publisher.settle()
    manifest = (await stub.GetVersion(pb.GetVersionRequest(run_id=run_id, step=0))).manifest
    assert manifest == task.result()
    assert (manifest.term, manifest.digest, manifest.noop) == (1, given.digest, False)
    assert torch.equal((await load_tensors(objects, manifest.shards, scratch))["w"], torch.zeros(3))


async def test_a_weight_store_that_is_away_gets_the_version_later(new_publisher, weight_store, stub, run_id, export):
    publisher = await new_publisher(1)
    await weight_store.stop()
    task = await publisher.publish(export(0))
    await asyncio.sleep(0.3)
    assert not task.done()
    await weight_store.start()
    await asyncio.wait_for(publisher.settle(), 60)
    assert (await stub.GetHeads(pb.GetHeadsRequest(run_id=run_id))).heads.version_step == 0


async def test_object_storage_that_refuses_gets_the_version_later(new_publisher, objects, object_url, export):
    publisher = await new_publisher(1)
    blobs = objects.local_path(export(0).digest).parent
    shutil.rmtree(blobs, ignore_errors=True)
    blobs.write_text("a file where a folder should be")
    task = await publisher.publish(export(0))
    await asyncio.sleep(0.3)
    assert not task.done()
    blobs.unlink()
    await asyncio.wait_for(publisher.settle(), 60)


class Swept(StoreClient):
    """Another run's retention deletes every blob between the put and the call that names it, `times` times."""

    def __init__(self, stub, run_id, objects, times=1):
        super().__init__(stub, run_id)
        self.objects, self.times = objects, times

    async def _sweep(self, shards):
        if self.times:
            self.times -= 1
            for shard in shards:
                await self.objects.delete_blob(shard.digest)

    async def publish(self, manifest):
        await self._sweep(manifest.shards)
        return await super().publish(manifest)

    async def commit(self, manifest):
        await self._sweep(manifest.optimizer)
        return await super().commit(manifest)


async def test_shards_that_another_runs_retention_deletes_before_they_are_named_are_stored_again(
    stub, run_id, objects, events, export, scratch
):
    client = Swept(stub, run_id, objects)
    await client.open_term(1)
    publisher = Publisher(client, VersionWriter(objects, run_id, 1), events, run_id)
    task = await publisher.publish(export(0))
    await publisher.settle()
    assert torch.equal((await load_tensors(objects, task.result().shards, scratch))["w"], torch.zeros(3))
    client.times = 1
    state = TrainerState(versions={0: task.result()})
    await commit(client, objects, Snapshot(state, [scratch.write(LazyTensors.of({"w.exp_avg": torch.ones(3)}))]), 1, {})
    kept = (await client.checkpoint()).manifest.optimizer
    assert torch.equal((await load_tensors(objects, kept, scratch))["w.exp_avg"], torch.ones(3))


async def test_a_store_that_never_has_the_shard_is_reported_and_not_asked_forever(stub, run_id, objects, events, export):
    client = Swept(stub, run_id, objects, times=100)
    await client.open_term(1)
    publisher = Publisher(client, VersionWriter(objects, run_id, 1), events, run_id)
    await publisher.publish(export(0))
    with pytest.raises(ObjectMissingError, match="is not in object storage; store it and publish again"):
        await publisher.settle()


async def test_a_newer_term_ends_the_publisher(new_publisher, client, export):
    publisher = await new_publisher(1)
    await publisher.publish(export(0))
    await publisher.settle()
    await client.open_term(2)
    await publisher.publish(export(1))
    with pytest.raises(FencedError, match=r"term 1 of .* is over, term 2 owns the run; stop this trainer"):
        await publisher.publish(export(2))


async def test_the_error_for_other_weights_in_the_same_term_names_that_reason(new_publisher, export):
    publisher = await new_publisher(1)
    await publisher.publish(export(0))
    await publisher.settle()
    await publisher.publish(export(0, value=8))
    with pytest.raises(FencedError, match=r"version 0 of .* has other weights under term 1; open a new term to replace it"):
        await publisher.settle()


async def test_other_bits_on_replay_are_an_event_and_the_same_bits_are_none(new_publisher, events, export):
    first = await new_publisher(1)
    for step in range(2):
        await first.publish(export(step))
    await first.settle()
    second = await new_publisher(2)
    await second.publish(export(0))
    await second.publish(export(1, value=8))
    await second.settle()
    await events.wait_until_stored()
    found = [event for event in await events.read() if event.type == "diverged"]
    assert [event.data["version"] for event in found] == [1]
    assert found[0].level == "warning"


async def test_a_step_that_changed_nothing_is_an_event_unless_it_had_nothing_to_learn_from(new_publisher, events, export):
    publisher = await new_publisher(1)
    for step, noop in ((0, False), (1, True), (2, False), (3, False)):
        await publisher.publish(export(step, value=0 if step < 3 else 1, noop=noop))
    await publisher.settle()
    await events.wait_until_stored()
    found = [event for event in await events.read() if event.type == "unchanged"]
    assert [(event.data["version"], event.level) for event in found] == [(2, "warning")]
    assert "step 1 changed no published weight" in found[0].message


async def test_close_gives_up_what_is_under_way(new_publisher, weight_store, export):
    publisher = await new_publisher(1)
    await weight_store.stop()
    task = await publisher.publish(export(0))
    await publisher.close()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()


async def test_a_run_without_a_checkpoint_has_none_and_other_refusals_are_raised(client, stub):
    assert await client.checkpoint() is None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await StoreClient(stub, "Not A Name").checkpoint()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_digest_is_over_tensors_alone_and_ignores_their_order(objects, run_id, scratch):
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2)}
    turned = dict(reversed(tensors.items()))
    one, other = (export_version(*given, scratch) for given in ((0, LazyTensors.of(tensors), False), (9, LazyTensors.of(turned), True)))
    assert one.digest == other.digest
    assert one.file.names == other.file.names == ("a", "b")
    manifest = await VersionWriter(objects, run_id, 4).store(other, whole=True)
    assert (manifest.term, manifest.step, manifest.noop, manifest.shards[0].size_bytes) == (4, 9, True, other.file.size_bytes)


async def test_tensors_come_back_with_the_same_bits(objects, scratch):
    tensors = {"a.exp_avg": torch.randn(5, 3), "a.step": torch.tensor(7.0), "empty": torch.zeros(0)}
    shards = await store_files(objects, [scratch.write(LazyTensors.of(tensors))])
    found = await load_tensors(objects, shards, scratch)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_the_fingerprint_names_what_decides_bits():
    assert fingerprint(3).keys() == {"torch", "capability", "machine", "threads", "ranks", "omp_num_threads", "kernels"}
    assert fingerprint(3)["threads"] == "3"


def test_the_fingerprint_names_the_gpu_in_use(monkeypatch):
    without = fingerprint(1)
    for name, value in (("is_initialized", True), ("get_device_name", "H200"), ("get_device_capability", (9, 0))):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda value=value: value)
    found = fingerprint(1)
    assert found.items() > without.items()
    assert (found["gpu"], found["compute_capability"], found["tf32"]) == ("H200", "9.0", "False")
    assert all(isinstance(value, str) for value in found.values())
