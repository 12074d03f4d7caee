"""What is changed, lost or of another machine is found and named, with what to do about it."""

import pytest

from gradbus.errors import ReplayError
from gradbus.experience.records import seal
from gradbus.run_files.versions import store_deleted
from gradbus.v1.group_pb2 import Group
from gradbus.v1.weights_pb2 import CheckpointManifest, WeightManifest


@pytest.fixture
async def run(archived, make_spec):
    return await archived(make_spec())


async def refused(run, told, **order):
    with pytest.raises(ReplayError, match=told):
        await run.replay(**order)


def reward_more(entry):
    entry.rewards[0].reward += 1.0


def write_something_else(entry):
    group = Group.FromString(entry.group)
    group.samples[0].token_ids = bytes(len(group.samples[0].token_ids))
    entry.group = group.SerializeToString()


@pytest.mark.parametrize("change", [reward_more, write_something_else])
async def test_a_changed_group_is_named_before_it_is_trained(run, change):
    async with run.entries() as entries:
        change(entries[7][1])
    await refused(run, r"group 7 of step 3 .* checkpoint 4 names .*; restore runs/.*/log from a copy")
    assert [told.step for told in run.told] == [1, 2, 3]


async def test_a_changed_group_that_no_kept_checkpoint_names_is_found_by_the_weights(run):
    for path in await run.manifests("checkpoints", CheckpointManifest):
        await run.objects.delete(path)
    async with run.entries() as entries:
        reward_more(entries[7][1])
    await refused(run, r"version 4 .* so the steps 3 to 3 differ", to=6)


async def test_groups_in_each_others_place_are_found(run):
    async with run.entries() as entries:
        entries[2][1].index, entries[3][1].index = 3, 2
    await refused(run, "group 2 of step 1")


async def test_another_model_is_found_before_the_first_step(run):
    await store_deleted(run.objects, run.run.run_id, [WeightManifest(step=0, term=1 << 40, digest=f"sha256:{0:064}")])
    await refused(run, r"version 0 .*the model's files or the checkpoint differ")


@pytest.mark.parametrize(("field", "told"), [("frontier", "another frontier"), ("optimizer", "optimiser"), ("controllers", "coefficients")])
async def test_a_checkpoint_with_equal_weights_and_another_state_is_found(run, field, told):
    for path, manifest in (await run.manifests("checkpoints", CheckpointManifest)).items():
        manifest.frontier.chain += "0" * (field == "frontier")
        if field == "optimizer":
            manifest.optimizer[0].digest = manifest.weights.shards[0].digest
        if field == "controllers":
            manifest.controllers["kl"] = 0.5
        await run.objects.put(path, seal(manifest.SerializeToString()))
    await refused(run, told)


async def test_a_flipped_bit_names_the_object(run):
    (path,) = await run.objects.list(f"runs/{run.run.run_id}/log")
    content = bytearray(await run.objects.get(path))
    content[len(content) // 2] ^= 1
    await run.objects.put(path, bytes(content))
    await refused(run, rf"damaged or was changed, at {path} \(.*restore that object")


async def test_a_hole_names_the_groups_and_the_way_round_it(run):
    async with run.entries() as entries:
        del entries[5]
    await refused(run, r"lacks 1 groups of step 2, first \[5\]; .* --to 2 at most, or begin behind it with --from 4")
    assert (await run.replay(to=2)).versions == [0, 1, 2]
    assert (await run.replay(start=4)).versions == [4, 5, 6]


async def test_a_run_without_an_archive_says_when_it_has_one(run):
    for path in await run.objects.list(f"runs/{run.run.run_id}/log"):
        await run.objects.delete(path)
    await refused(run, "holds no archived group of .* once it has a checkpoint")


async def test_a_run_without_versions_has_nothing_to_compare_with(run):
    for kind in ("versions", "checkpoints", "digests"):
        for path in await run.objects.list(f"runs/{run.run.run_id}/{kind}"):
            await run.objects.delete(path)
    await refused(run, "no version of .* once it has begun to train")


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({"to": 7}, "6 steps and no version 7; give --to a step from 0 to 6"),
        ({"to": -1}, "no version -1"),
        ({"start": 3}, r"no checkpoint of step 3 is kept, those that are: 2, 4, 6"),
        ({"start": 4, "to": 2}, "give --from a smaller step"),
    ],
)
async def test_steps_that_there_are_not_are_refused_with_those_that_there_are(run, order, told):
    await refused(run, told, **order)


async def test_a_version_without_a_recorded_digest_is_refused_with_its_neighbours(run):
    for path, manifest in (await run.manifests("checkpoints", CheckpointManifest)).items():
        del manifest.pinned[:]
        await run.objects.put(path, seal(manifest.SerializeToString()))
    for path, manifest in (await run.manifests("versions", WeightManifest)).items():
        if manifest.step == 3:
            await run.objects.delete(path)
    await refused(run, "no digest of version 3 .* one of the steps 0, 1, 2, 4, 5, 6", to=3)


async def test_another_torch_or_processor_is_refused_unless_asked_for_anyway(run):
    for path, manifest in (await run.manifests("checkpoints", CheckpointManifest)).items():
        manifest.fingerprint.update({"torch": "0.1", "gpu": "none"})
        await run.objects.put(path, seal(manifest.SerializeToString()))
    await refused(run, "other bits .*gpu was none and is not set; torch was 0.1 and is .*--anyway")
    assert run.told == []
    found = await run.replay(anyway=True)
    assert found.versions == list(range(7))
    assert len(found.differences) == 2
