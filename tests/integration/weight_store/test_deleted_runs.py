"""A run that is deleted while retention sweeps it: of its digests none stay."""

import pytest

from gradbus.bus import Buckets
from gradbus.objects import ObjectStore
from gradbus_weight_store.delete_lock import StoreDeleteLock
from gradbus_weight_store.ledger import Ledger
from gradbus_weight_store.manifests import Manifests
from gradbus_weight_store.named_blobs import NamedBlobs
from gradbus_weight_store.retention import Retention

from .conftest import Trainer


@pytest.fixture
def objects(object_url):
    return ObjectStore.open(object_url)


@pytest.fixture
async def replica(bus, objects, run_id):
    """Makes a ledger of the run, and the sweeper, of one more process."""
    heads, runs = [await bus.bucket(name) for name in (Buckets.HEADS, Buckets.RUNS)]

    def make():
        manifests, lock = Manifests(objects), StoreDeleteLock()
        return Ledger(run_id, heads, manifests, lock), Retention(manifests, runs, NamedBlobs(manifests, runs), lock)

    return make


@pytest.mark.parametrize("by_another", [False, True], ids=["this process", "another one"])
async def test_a_run_that_is_deleted_during_its_sweep_leaves_nothing(objects, replica, run_id, write_spec, monkeypatch, by_another):
    await write_spec(run_id, keep=1, max_staleness=0)
    ledger, retention = replica()
    trainer = Trainer(None, objects, run_id)
    for step in range(4):
        await ledger.publish(await trainer.manifest(step))
        trainer.previous = await ledger.commit(await trainer.checkpoint(step))
    deleter, keep_digests, kept = replica()[0] if by_another else ledger, ledger.keep_digests, []

    async def deleted_before(versions):
        kept.extend(versions)
        await deleter.delete()
        await keep_digests(versions)

    monkeypatch.setattr(ledger, "keep_digests", deleted_before)
    await retention.sweep(ledger)
    assert sorted(one.step for one in kept) == [0, 1, 2]
    assert await objects.list(f"runs/{run_id}") == []


async def test_a_run_that_goes_on_keeps_the_digests_of_its_deleted_versions(objects, replica, run_id):
    ledger, _ = replica()
    await ledger.open_term(1)
    await ledger.keep_digests([await Trainer(None, objects, run_id).manifest(0)])
    assert len(await objects.list(f"runs/{run_id}/digests")) == 1
