"""Which blobs count as named, whatever runs do, and how much has to be read for it."""

import asyncio
import secrets
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.control.runs import RunStatus
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.run_files.paths import checkpoint_path, version_path
from gradbus.v1.weights_pb2 import CheckpointManifest, Shard, WeightManifest
from gradbus_weight_store.manifests import Manifests, checkpoint_payload
from gradbus_weight_store.named_blobs import NamedBlobs

BLOBS = [digest_of(bytes([number])) for number in range(4)]


def version(run_id, step, blob):
    return WeightManifest(run_id=run_id, term=1, step=step, digest=blob, shards=[Shard(digest=blob, size_bytes=1)])


class CountedManifests(Manifests):
    """Counts the runs whose manifests are listed."""

    listed = 0

    async def paths(self, run_id):
        self.listed += 1
        return await super().paths(run_id)


async def set_state(runs, run_id, state):
    await runs.put(f"{run_id}.status", RunStatus(state=state, prompts="sha256:0").to_bytes())


@pytest.fixture
def run_ids():
    return [f"run-{secrets.token_hex(4)}" for _ in range(5)]


@pytest.fixture
async def runs(bus, run_ids):
    runs = await bus.bucket(Buckets.RUNS)
    yield runs
    for run_id in run_ids:
        await runs.purge(f"{run_id}.status")


async def test_runs_that_are_over_are_read_once_and_go_on_to_count(runs, run_ids, tmp_path):
    manifests = CountedManifests(ObjectStore.open(tmp_path.as_uri()))
    for run_id, blob in zip(run_ids, BLOBS, strict=False):
        await manifests.write_version(version(run_id, 0, blob))
        await set_state(runs, run_id, "succeeded")
    await manifests.write_version(version(run_ids[-1], 0, BLOBS[0]))
    await set_state(runs, run_ids[-1], "running")
    named = NamedBlobs(manifests, runs)
    await named.among([])  # learns who is over
    assert await named.among(BLOBS) == set(BLOBS)
    manifests.listed = 0
    for _ in range(3):
        assert await named.among(BLOBS) == set(BLOBS)
    assert manifests.listed == 3, "the one run that goes on"
    path = version_path(version(run_ids[1], 0, BLOBS[1]))
    assert await named.among(BLOBS, without={path}) == {BLOBS[0], *BLOBS[2:]}
    await manifests.delete(path)
    assert await named.among(BLOBS) == {BLOBS[0], *BLOBS[2:]}


async def test_a_digest_in_a_users_note_names_no_blob(runs, run_ids, tmp_path):
    named = NamedBlobs(Manifests(ObjectStore.open(tmp_path.as_uri())), runs)
    try:
        for kind, blob in zip(("annotations", "evaluations"), BLOBS, strict=False):
            await runs.put(f"{run_ids[0]}.{kind}", f'{{"note": "{blob}"}}'.encode())
        assert await named.among(BLOBS) == {BLOBS[1]}
    finally:
        for kind in ("annotations", "evaluations"):
            await runs.purge(f"{run_ids[0]}.{kind}")


async def test_a_question_about_a_run_hides_its_blobs_from_no_other_question(runs, run_ids, tmp_path):
    manifests = Manifests(ObjectStore.open(tmp_path.as_uri()))
    manifest = version(run_ids[0], 0, BLOBS[0])
    await manifests.write_version(manifest)
    await set_state(runs, run_ids[0], "succeeded")
    named = NamedBlobs(manifests, runs)
    for _ in range(20):
        await named.among([])
        assert await named.among(BLOBS) == {BLOBS[0]}, "it is settled"
        answer, _ = await asyncio.gather(named.among(BLOBS), named.among(BLOBS, without={version_path(manifest)}))
        assert answer == {BLOBS[0]}


async def test_a_manifest_that_cannot_be_read_is_looked_for_again(runs, run_ids, tmp_path):
    objects = ObjectStore.open(tmp_path.as_uri())
    manifest = version(run_ids[0], 0, BLOBS[0])
    await Manifests(objects).write_version(manifest)
    whole = await objects.get(version_path(manifest))
    await objects.put(version_path(manifest), b"torn")
    await set_state(runs, run_ids[0], "failed")
    named = NamedBlobs(Manifests(objects), runs)
    for _ in range(2):
        assert await named.among(BLOBS) == set()
    await objects.put(version_path(manifest), whole)
    assert await named.among(BLOBS) == {BLOBS[0]}


RUN, BLOB = st.integers(0, 2), st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("version"), RUN, BLOB),
    st.tuples(st.just("checkpoint"), RUN, BLOB),
    st.tuples(st.just("delete"), RUN, BLOB),
    st.tuples(st.just("state"), RUN, st.sampled_from(["running", "succeeded", "failed"])),
    st.tuples(st.just("ask without"), RUN, BLOB),
)


@settings(max_examples=20, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_the_answer_is_what_reading_everything_gives(nats_url, steps):
    """Runs publish, end, and lose versions to retention in any order; even one that is over is written once more."""
    asyncio.run(compare(nats_url, steps))


async def compare(nats_url, steps):
    bus = await Bus.connect(BusSettings(nats_url), "test")
    runs = await bus.bucket(Buckets.RUNS)
    run_ids = [f"run-{secrets.token_hex(4)}" for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        manifests = Manifests(ObjectStore.open(Path(folder).as_uri()))
        named, written = NamedBlobs(manifests, runs), {}
        for step in steps:
            await apply(step, run_ids, manifests, named, written, runs)
            assert await named.among(BLOBS) == set(written.values())
    for run_id in run_ids:
        await runs.purge(f"{run_id}.status")
    await bus.close()


async def apply(step, run_ids, manifests, named, written, runs):
    """Does one step, or asks about all manifests but one run's; `written` maps the path of each manifest to the blob that it names."""
    action, number, value = step
    run_id = run_ids[number]
    if action == "state":
        await set_state(runs, run_id, value)
    elif action == "version":
        await manifests.write_version(version(run_id, value, BLOBS[value]))
        written[version_path(version(run_id, value, BLOBS[value]))] = BLOBS[value]
    elif action == "checkpoint":
        checkpoint = CheckpointManifest(run_id=run_id, term=1, step=value, weights=version(run_id, value, BLOBS[value]))
        assert await manifests.write_checkpoint(checkpoint) == digest_of(checkpoint_payload(checkpoint))
        written[checkpoint_path(checkpoint)] = BLOBS[value]
    elif action == "delete":
        for path in (path for path in list(written) if path.startswith(f"runs/{run_id}/") and path.endswith(f"/{value}-1")):
            await manifests.delete(path)
            del written[path]
    else:
        without = {path for path in written if path.startswith(f"runs/{run_id}/")}
        assert await named.among(BLOBS, without=without) == {blob for path, blob in written.items() if path not in without}
