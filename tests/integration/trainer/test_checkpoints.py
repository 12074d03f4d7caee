"""A checkpoint gives back the bits it was made from, and is made of published versions only."""

import asyncio
import shutil
import threading

import grpc
import pytest
import torch
from obstore.store import MemoryStore

from gradbus.algorithms import Algorithm
from gradbus.errors import ModelError
from gradbus.objects import ObjectStore
from gradbus.spec import AlgorithmSpec, WeightsSpec
from gradbus_kernels.weights.digest import weights_digest
from gradbus_trainer.checkpoints.state import Snapshot, TrainerState, restore
from gradbus_trainer.checkpoints.writer import commit
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch_builder import build_batch
from gradbus_trainer.step.groups import LoggedGroup, decode_group
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.versions.object_storage import load_tensors, store_files
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter

from .conftest import GROUPS, make_entry


def train(learner, steps):
    for step in steps:
        entries = [make_entry(index) for index in range(GROUPS * step, GROUPS * (step + 1))]
        groups = [LoggedGroup(entry, f"digest {entry.index}", 1, decode_group(entry, Algorithm(AlgorithmSpec(), 8))) for entry in entries]
        learner.train(build_batch(step, groups)[0])


@pytest.fixture(params=[{}, {"trainer": {"learning_rate": 1e-2, "lora": {"rank": 2}}}], ids=["whole", "adapters"])
def new_learner(request, model_folder, make_spec):
    return lambda: TorchLearner(model_folder, make_spec(**request.param))


@pytest.fixture
async def store(stub, run_id):
    store = StoreClient(stub, run_id)
    await store.open_term(1)
    return store


@pytest.fixture
def published(store, objects, run_id, scratch):
    """Publishes a learner's weights as version `step` and notes it in the state."""

    async def publish(state, learner, step):
        export = export_version(step, learner.weights(), False, scratch)
        manifest = await VersionWriter(objects, run_id, 1).store(export, whole=True)
        await store.publish(manifest)
        state.versions[step] = manifest
        state.step = step

    return publish


async def test_a_restored_learner_has_the_same_bits_and_goes_on_to_the_same(store, objects, new_learner, published, scratch, make_spec):
    learner, state = new_learner(), TrainerState(previous="")
    await published(state, learner, 0)
    train(learner, range(2))
    state.frontier.add(0, [(0, "a"), (1, "b"), (3, "d")])
    state.trained = {0: "a", 1: "b", 3: "d"}
    await published(state, learner, 2)
    digest = await commit(store, objects, Snapshot.of(state, learner, scratch), 1, {"torch": "test"})
    other = new_learner()
    restored = await restore(store, objects, other, scratch, make_spec())
    assert (restored.step, restored.previous, restored.trained) == (2, digest, {})
    assert restored.frontier.to_message() == state.frontier.to_message()
    assert list(restored.versions) == [2], "version 0 is older than max_staleness allows"
    assert weights_digest(other.weights()) == state.versions[2].digest
    ours, theirs = learner.optimizer_tensors(), other.optimizer_tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for one in (learner, other):
        train(one, range(2, 4))
    assert weights_digest(learner.weights()) == weights_digest(other.weights())


async def test_a_resume_has_the_version_that_its_samples_are_compared_with(store, objects, new_learner, published, scratch, make_spec):
    spec = make_spec(algorithm={"kl": 0.1, "kl_reference_steps": 4})
    learner, state = new_learner(), TrainerState()
    for step in range(7):
        await published(state, learner, step)
        state.add_version(state.versions[step], spec)
    assert sorted(state.versions) == [4, 5, 6]
    await commit(store, objects, Snapshot.of(state, learner, scratch), 1, {})
    restored = await restore(store, objects, new_learner(), scratch, spec)
    assert sorted(restored.versions) == [4, 5, 6]
    plain = make_spec()
    assert sorted((await restore(store, objects, new_learner(), scratch, plain)).versions) == [5, 6]


async def test_a_run_that_publishes_bfloat16_resumes_from_float32(store, objects, new_learner, run_id, scratch, make_spec):
    weights = WeightsSpec(transport="delta", dtype="bf16")
    learner, state = new_learner(), TrainerState()
    writer = VersionWriter(objects, run_id, 1, weights)
    for step in range(3):
        export = export_version(step, learner.weights(), False, scratch, torch.bfloat16)
        state.versions[step] = await writer.store(export, whole=step == 2)
        await store.publish(state.versions[step])
        writer.advance(export, state.versions[step])
        state.step = step
        if step < 2:
            train(learner, [step])
    assert state.versions[1].shards[0].delta_only
    await commit(store, objects, Snapshot.of(state, learner, scratch, rounded=True), 1, {})
    other = new_learner()
    await restore(store, objects, other, scratch, make_spec())
    rounded = await load_tensors(objects, state.versions[2].shards, scratch)
    assert {tensor.dtype for tensor in rounded.values()} == {torch.bfloat16}
    assert any(not torch.equal(rounded[name].float(), tensor) for name, tensor in learner.weights().items())
    for step in (2, 3):
        assert weights_digest(learner.weights()) == weights_digest(other.weights())
        assert weights_digest(learner.optimizer_tensors()) == weights_digest(other.optimizer_tensors())
        for one in (learner, other):
            train(one, [step])


@pytest.fixture
def bucket():
    return ObjectStore(MemoryStore(), "memory:///")


async def test_a_resume_reads_mapped_files_and_leaves_none(bucket, new_learner, scratch, tmp_path):
    """From a bucket: a folder's own files are mapped where they lie."""
    learner = new_learner()
    train(learner, range(1))
    export = export_version(1, learner.weights(), False, scratch)
    shards = await store_files(bucket, [export.file])
    found = await load_tensors(bucket, shards, scratch)
    assert list((tmp_path / "scratch").iterdir()) == [export.file.path]
    assert weights_digest(found) == export.digest
    assert await load_tensors(bucket, [], scratch) == {}


async def test_a_resume_that_takes_long_leaves_the_lease_to_be_renewed(
    store, objects, new_learner, published, scratch, monkeypatch, make_spec
):
    learner, state = new_learner(), TrainerState()
    train(learner, range(1))
    await published(state, learner, 1)
    await commit(store, objects, Snapshot.of(state, learner, scratch), 1, {})
    under_way, renewed, waited = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def copy_until_renewed(*_):
        loop.call_soon_threadsafe(under_way.set)
        waited.append(renewed.wait(60))

    async def renew():
        await under_way.wait()
        renewed.set()

    other = new_learner()
    monkeypatch.setattr(other, "restore", copy_until_renewed)
    await asyncio.gather(restore(store, objects, other, scratch, make_spec()), renew())
    assert waited == [True]


async def test_without_a_checkpoint_the_learner_stays_the_base_model(store, objects, new_learner, scratch, make_spec):
    learner = new_learner()
    before = weights_digest(learner.weights())
    state = await restore(store, objects, learner, scratch, make_spec())
    assert (state.step, state.previous, state.frontier.below) == (0, "", 0)
    assert weights_digest(learner.weights()) == before


async def test_a_commit_needs_its_version_published(store, objects, new_learner, scratch):
    with pytest.raises(ModelError, match="version 3 must be published before its checkpoint"):
        await commit(store, objects, Snapshot.of(TrainerState(step=3), new_learner(), scratch), 1, {})


async def test_a_snapshot_is_not_changed_by_the_steps_after_it(store, objects, new_learner, published, scratch):
    learner, state = new_learner(), TrainerState(trained={0: "a"})
    train(learner, range(1))
    await published(state, learner, 1)
    state.frontier.add(0, [(0, "a")])
    snapshot = Snapshot.of(state, learner, scratch)
    (file,) = snapshot.optimizer
    kept = file.path.read_bytes()
    train(learner, range(1, 2))
    state.frontier.add(1, [(1, "b")])
    state.trained[1] = "b"
    await published(state, learner, 2)
    assert (snapshot.state.step, snapshot.state.trained, list(snapshot.state.versions)) == (1, {0: "a"}, [1])
    assert snapshot.state.frontier.below == 1
    assert file.path.read_bytes() == kept
    assert state.trained == {1: "b"}, "a new list since the snapshot"


async def test_checkpoints_form_a_chain(store, objects, new_learner, published, scratch):
    learner, state, digests = new_learner(), TrainerState(), []
    for step in (1, 2):
        train(learner, [step - 1])
        await published(state, learner, step)
        state.previous = await commit(store, objects, Snapshot.of(state, learner, scratch), 1, {})
        digests.append(state.previous)
    newest = await store.checkpoint()
    assert newest.digest == digests[1]
    assert newest.manifest.previous == digests[0]


async def test_object_storage_that_refuses_is_waited_for(store, objects, new_learner, published, scratch):
    learner, state = new_learner(), TrainerState()
    train(learner, range(1))
    await published(state, learner, 1)
    blobs = objects.local_path(state.versions[1].digest).parent
    aside = blobs.with_name("aside")
    blobs.rename(aside)
    blobs.write_text("a file where a folder should be")
    task = asyncio.create_task(commit(store, objects, Snapshot.of(state, learner, scratch), 1, {}))
    await asyncio.sleep(0.3)
    assert not task.done()
    blobs.unlink()
    shutil.move(aside, blobs)
    assert await asyncio.wait_for(task, 60) == (await store.checkpoint()).digest


async def test_a_checkpoint_that_is_lost_is_never_taken_for_none(store, objects, new_learner, published, scratch, make_spec):
    learner, state = new_learner(), TrainerState()
    train(learner, range(1))
    await published(state, learner, 1)
    await objects.delete_blob(await commit(store, objects, Snapshot.of(state, learner, scratch), 1, {}))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await restore(store, objects, new_learner(), scratch, make_spec())
    assert caught.value.code() == grpc.StatusCode.DATA_LOSS
