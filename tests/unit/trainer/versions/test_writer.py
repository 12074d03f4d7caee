"""The stored parts of a version: whole files and deltas, by rules that a replay repeats."""

import pytest
import torch
from obstore.store import MemoryStore
from safetensors.torch import load_file
from structlog.testing import capture_logs

from gradbus.ids import digest_of_file
from gradbus.objects import ObjectStore
from gradbus.spec import WeightsSpec
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.writer import VersionWriter, transport_for

DELTAS = WeightsSpec(transport="delta", dtype="bf16", anchor_every=4)


@pytest.fixture
def written(tmp_path):
    """Exports tensors in bfloat16."""
    scratch = Scratch(tmp_path)
    return lambda step, tensors, noop=False: export_version(step, LazyTensors.of(tensors), noop, scratch, torch.bfloat16)


@pytest.fixture
def export(written):
    return lambda step: written(step, {"w": weights(step)})


def weights(step):
    """About one weight in fifty differs from step to step."""
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(8000, generator=random)
    for _ in range(step):
        weights += 0.3 * (torch.rand(8000, generator=random) < 0.02)
    return weights


@pytest.fixture
def objects():
    return ObjectStore(MemoryStore(), "memory:///")


@pytest.fixture
def writer(objects):
    return VersionWriter(objects, "run", 1, DELTAS)


async def shard(writer, export, whole=False):
    manifest = await writer.store(export, whole)
    (found,) = manifest.shards
    assert (found.digest, found.size_bytes) == (digest_of_file(export.file.path), export.file.size_bytes)
    writer.advance(export, manifest)
    return found


async def test_only_anchors_are_stored_whole_and_the_others_name_all_that_leads_to_them(writer, objects, export):
    shards = [await shard(writer, export(step)) for step in range(7)]
    assert [one.delta_only for one in shards] == [False, True, True, True, False, True, True]
    assert [[link.base_step for link in one.chain] for one in shards] == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [4], [4, 5]]
    for one in shards:
        assert await objects.has_blob(one.digest) is not one.delta_only
        assert [link.base_digest for link in one.chain] == [shards[link.base_step].digest for link in one.chain]
        for link in one.chain:
            assert len(await objects.get_blob(link.digest)) == link.size_bytes < one.size_bytes / 10


async def test_a_version_that_a_checkpoint_follows_is_whole_and_begins_a_chain(writer, export):
    await shard(writer, export(0))
    assert not (await shard(writer, export(1), whole=True)).delta_only
    after = await shard(writer, export(2))
    assert (after.delta_only, [link.base_step for link in after.chain]) == (True, [1])


async def test_the_first_version_after_a_start_is_whole(writer, objects, export):
    await shard(writer, export(0))
    first = await shard(VersionWriter(objects, "run", 2, DELTAS), export(1))
    assert (first.delta_only, len(first.chain)) == (False, 0)


async def test_every_version_names_what_it_carries_along_which_is_stored_once(objects, export, tmp_path, monkeypatch):
    frozen = Scratch(tmp_path / "frozen").write(LazyTensors.of({"mtp.w": torch.ones(9)}))
    stored = []
    put_file = objects.put_file
    monkeypatch.setattr(objects, "put_file", lambda path: stored.append(path) or put_file(path))
    writer = VersionWriter(objects, "run", 1, DELTAS, frozen)
    carried = []
    for step in range(4):
        exported = export(step)
        manifest = await writer.store(exported, False)
        writer.advance(exported, manifest)
        trained, other = manifest.shards
        assert (trained.digest, trained.delta_only) == (digest_of_file(exported.file.path), step > 0)
        carried.append(other)
    assert all(other == carried[0] for other in carried)
    assert (carried[0].digest, list(carried[0].tensors), carried[0].delta_only) == (digest_of_file(frozen.path), ["mtp.w"], False)
    assert stored.count(frozen.path) == 1
    writer.end_chain()  # something that versions share is missing
    await writer.store(export(4), False)
    assert stored.count(frozen.path) == 2


async def test_a_replay_stores_the_same(writer, objects, export):
    once = [await shard(writer, export(step)) for step in range(6)]
    again = VersionWriter(objects, "run", 2, DELTAS)
    await shard(again, export(0))
    assert [await shard(again, export(step)) for step in range(1, 6)] == once[1:]


async def test_dense_changes_are_stored_whole_and_the_log_says_so_once(writer, export, written):
    await shard(writer, export(0))
    with capture_logs() as logs:
        for step in (1, 2):
            noise = torch.randint(0, 2**14, (8000,), dtype=torch.int16).view(torch.bfloat16)  # any bits of numbers below 2
            found = await shard(writer, written(step, {"w": noise}))
            assert (found.delta_only, len(found.chain)) == (False, 0)
    assert [line["event"] for line in logs] == ["whole_file_chosen"]


@pytest.mark.parametrize(
    ("url", "folder_deltas", "expected"), [("file", False, "store"), ("file", True, "delta"), ("memory", False, "delta")]
)
def test_a_folder_gets_whole_files_and_the_log_says_so(url, folder_deltas, expected, objects, tmp_path):
    store = ObjectStore.open(f"file://{tmp_path}/objects") if url == "file" else objects
    with capture_logs() as logs:
        assert transport_for(DELTAS, store, folder_deltas).transport == expected
        assert transport_for(WeightsSpec(), store, folder_deltas) == WeightsSpec()
    assert [line["event"] for line in logs] == (["whole_files_chosen"] if expected == "store" else [])


async def test_other_tensors_are_stored_whole(writer, export, written):
    await shard(writer, export(0))
    found = await shard(writer, written(1, {"v": torch.zeros(8000), "n": torch.zeros(3)}))
    assert (found.delta_only, len(found.chain)) == (False, 0)


async def test_the_same_weights_again_are_the_same_shard(writer, export, written):
    await shard(writer, export(0))
    before = await shard(writer, export(1))
    same = await shard(writer, written(2, {"w": load(export(1))}, noop=True))
    assert same == before
    assert (await shard(writer, export(2), whole=True)).delta_only is False


def load(exported):
    return load_file(exported.file.path)["w"]


async def test_the_store_transport_stores_whole_versions_alone(objects, export):
    writer = VersionWriter(objects, "run", 1)
    for step in (0, 1, 2):
        found = await shard(writer, export(step))
        assert (found.delta_only, len(found.chain)) == (False, 0)


@pytest.mark.parametrize(("spec", "kept"), [(WeightsSpec(), 0), (DELTAS, 1)], ids=["store", "delta"])
async def test_of_published_versions_only_the_base_of_the_next_delta_has_a_file(objects, export, spec, kept):
    writer = VersionWriter(objects, "run", 1, spec)
    exports = [export(step) for step in range(3)]
    for one in exports:
        await shard(writer, one)
    assert [one.file.path.exists() for one in exports] == [False, False, bool(kept)]
    writer.end_chain()
    assert not exports[-1].file.path.exists()


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even(written):
    values = torch.tensor([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1.0 + 2**-8 + 2**-20])
    found = load(written(0, {"w": values}))
    assert found.tolist() == [1.0, 1.0, 1.0 + 2**-6, 1.0 + 2**-7]


async def test_a_version_that_was_stored_and_not_published_is_stored_again_from_the_same_base(writer, export):
    await shard(writer, export(0))
    first = await writer.store(export(1), whole=False)
    assert await writer.store(export(1), whole=False) == first
    assert [link.base_step for link in first.shards[0].chain] == [0]


async def test_where_a_part_of_the_chain_is_gone_the_version_is_stored_whole(writer, export):
    await shard(writer, export(0))
    writer.end_chain()
    again = await shard(writer, export(1))
    assert (again.delta_only, list(again.chain)) == (False, [])
