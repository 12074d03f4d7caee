"""A run's record in object storage, and how it is found without a bus."""

import pytest

from gradbus.control.runs import RunRecord
from gradbus.errors import CorruptRecordError, ObjectMissingError, ReplayError
from gradbus.objects import ObjectStore
from gradbus.run_files.record import find_record, read_record, remove_record, store_record
from gradbus.spec import RunSpec


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


def record(run_id, name):
    body = {"name": name, "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    return RunRecord(run_id=run_id, spec=RunSpec.model_validate(body | {"schedule": {"steps": 1}}), created_unix_ns=1)


@pytest.fixture
async def stored(objects):
    """Four runs, the oldest first."""
    for run_id, name in (("run-01-a", "first"), ("run-02-b", "twice"), ("run-02-c", "twice"), ("run-03-d", "last-one")):
        await store_record(objects, record(run_id, name))
    return objects


@pytest.mark.parametrize(
    ("given", "found"),
    [("run-01-a", "run-01-a"), ("twice", "run-02-c"), ("run-01", "run-01-a"), ("last", "run-03-d"), ("first", "run-01-a")],
)
async def test_a_run_is_found_by_id_name_beginning_or_as_the_last(stored, given, found):
    assert (await find_record(stored, given)).run_id == found


@pytest.mark.parametrize(
    ("given", "told"),
    [("run-02", "2 run ids: run-02-b, run-02-c"), ("nobody", "the newest are run-03-d, run-02-c"), ("", "called ''"), ("../..", "called")],
)
async def test_what_is_no_run_or_several_is_refused_with_what_there_is(stored, given, told):
    with pytest.raises(ReplayError, match=told):
        await find_record(stored, given)


async def test_an_empty_store_says_that_it_may_be_another_one(objects):
    with pytest.raises(ReplayError, match=r"holds no run.*--objects"):
        await find_record(objects, "last")


async def test_a_run_that_was_deleted_is_not_the_last_though_its_folder_stays(stored):
    await stored.put("runs/run-03-d/versions/0-1", b"manifest")
    for path in await stored.list("runs/run-03-d"):
        await stored.delete(path)
    assert (await find_record(stored, "last")).run_id == "run-02-c"


async def test_a_record_that_is_damaged_or_gone_is_named(stored):
    await stored.put("runs/run-03-d/record", b"torn")
    with pytest.raises(ReplayError, match=r"runs/run-03-d/record .* restore it from a copy"):
        await find_record(stored, "last")
    assert (await find_record(stored, "first")).run_id == "run-01-a", "no other run is kept from being found"
    await remove_record(stored, "run-01-a")
    with pytest.raises(ObjectMissingError):
        await read_record(stored, "run-01-a")


async def test_a_record_of_another_release_is_told_from_a_torn_one(stored):
    from gradbus.experience.records import seal

    await stored.put("runs/run-01-a/record", seal(b'{"run_id": 1}'))
    with pytest.raises(CorruptRecordError, match="this release"):
        await read_record(stored, "run-01-a")
