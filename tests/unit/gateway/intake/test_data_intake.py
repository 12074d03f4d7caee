"""Datasets are checked in turn, and the same content once."""

import asyncio
import threading

import pytest

from gradbus.objects import ObjectStore
from gradbus.spec import DataSpec, RowColumns
from gradbus_gateway.intake import data
from gradbus_gateway.intake.data import DataIntake
from gradbus_gateway.settings import GatewaySettings


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


@pytest.fixture
def intake(tmp_path, objects):
    return DataIntake(objects, GatewaySettings(cache_dir=tmp_path / "cache"))


@pytest.fixture
def inspected(monkeypatch):
    """Contents that were inspected, the beginnings of inspections, and what lets them go on."""
    found, begun, released = [], threading.Semaphore(0), threading.Event()

    done = data.done

    async def noted(work, seconds):
        found.append(work.files[0].path.read_bytes())
        begun.release()
        await asyncio.to_thread(released.wait, 60)
        return await done(work, seconds)

    monkeypatch.setattr(data, "done", noted)
    return found, begun, released


def rows(text):
    return b'{"prompt": "%s"}\n' % text.encode()


async def test_one_caller_s_datasets_do_not_take_another_s_turn(intake, objects, inspected):
    found, begun, released = inspected
    digests = [await objects.put_blob(rows(text)) for text in ("a", "b", "c", "other")]
    many = [asyncio.create_task(intake.store(DataSpec(train=digest), RowColumns(), "someone")) for digest in digests[:3]]
    await asyncio.to_thread(begun.acquire)
    other = asyncio.create_task(intake.store(DataSpec(train=digests[3]), RowColumns(), "another"))
    await asyncio.to_thread(begun.acquire)
    released.set()
    assert (len(found), found[1]) == (2, rows("other"))
    assert all(faults == [] for _, faults in await asyncio.gather(*many, other))


async def test_equal_submissions_inspect_a_dataset_once(intake, objects, inspected):
    found, _, released = inspected
    released.set()
    digest = await objects.put_blob(rows("a"))
    results = await asyncio.gather(*(intake.store(DataSpec(train=digest, eval=digest), RowColumns(), "someone") for _ in range(4)))
    assert [faults for _, faults in results] == [[]] * 4
    assert found == [rows("a")]


async def test_columns_filters_and_formats_end_in_the_same_stored_rows(intake, objects):
    one = await objects.put_blob(b'{"question": "a", "n": 1}\n\n{"question": "b", "n": 2}\n')
    renamed = DataSpec(train=one, columns={"prompt": "question"}, filter={"ranges": {"n": (2, 9)}})
    stored, faults = await intake.store(renamed, RowColumns(), "someone")
    assert (faults, stored.columns, stored.longest_row) == ([], {"prompt", "n"}, 23)
    assert await objects.get_blob(stored.spec.train) == b'{"prompt": "b", "n": 2}\n'
    assert stored.spec.columns == {}, "a stored spec can be submitted again"
    again, faults = await intake.store(stored.spec, RowColumns(), "someone")
    assert (faults, again) == ([], stored)


async def test_a_mixture_is_stored_as_one_dataset_with_the_rows_of_its_parts(intake, objects):
    a, b, c = [await objects.put_blob(rows(text)) for text in "abc"]
    parts = [{"source": [a, b], "weight": 0.25}, {"source": c, "weight": 0.75}]
    stored, faults = await intake.store(DataSpec(mixture=parts), RowColumns(), "someone")
    assert faults == []
    assert await objects.get_blob(stored.spec.train) == rows("a") + rows("b") + rows("c")
    assert [(part.source, part.rows, part.weight) for part in stored.spec.mixture] == [(None, 2, 0.25), (None, 1, 0.75)]
    again, faults = await intake.store(stored.spec, RowColumns(), "someone")
    assert (faults, again.spec) == ([], stored.spec)
    less = stored.spec.model_copy(update={"mixture": stored.spec.mixture[:1]})
    _, [fault] = await intake.store(less, RowColumns(), "someone")
    assert (fault.path, fault.given) == ("data.mixture", "2 rows")


async def test_a_fault_names_the_part_and_the_file(intake, objects, tmp_path):
    good, bad = await objects.put_blob(rows("a")), await objects.put_blob(b'{"prompt": ""}\n')
    _, [fault] = await intake.store(DataSpec(mixture=[{"source": good}, {"source": [good, bad]}]), RowColumns(), "someone")
    assert fault.path == "data.mixture.1"
    assert fault.message.startswith(f"line 1 of {bad[:19]} has an empty prompt")
    _, faults = await intake.store(DataSpec(train="nowhere", eval="sha256:" + "0" * 64), RowColumns(), "someone")
    assert [fault.path for fault in faults] == ["data.train", "data.eval"]


async def test_a_folder_below_the_roots_is_a_dataset(objects, tmp_path):
    roots = tmp_path / "roots"
    for name in ("b.jsonl", "a.jsonl"):
        (roots / "given").mkdir(parents=True, exist_ok=True)
        (roots / "given" / name).write_bytes(rows(name))
    intake = DataIntake(objects, GatewaySettings(cache_dir=tmp_path / "cache", model_roots=(roots,)))
    stored, faults = await intake.store(DataSpec(train="given"), RowColumns(), "someone")
    assert faults == []
    assert await objects.get_blob(stored.spec.train) == rows("a.jsonl") + rows("b.jsonl")
    (roots / "given" / "a.jsonl").write_bytes(rows("changed"))
    changed, _ = await intake.store(DataSpec(train="given"), RowColumns(), "someone")
    assert await objects.get_blob(changed.spec.train) == rows("changed") + rows("b.jsonl")
    (roots / "empty").mkdir()
    _, [fault] = await intake.store(DataSpec(train="empty"), RowColumns(), "someone")
    assert "the folder empty has no dataset" in fault.message


async def test_a_link_in_a_folder_is_followed_only_below_the_roots(objects, tmp_path):
    folder = tmp_path / "roots" / "given"
    folder.mkdir(parents=True)
    (tmp_path / "roots" / "elsewhere").write_bytes(rows("public"))
    (tmp_path / "secret.jsonl").write_bytes(rows("secret"))
    (folder / "a.jsonl").symlink_to("../elsewhere")
    intake = DataIntake(objects, GatewaySettings(cache_dir=tmp_path / "cache", model_roots=(tmp_path / "roots",)))
    stored, faults = await intake.store(DataSpec(train="given"), RowColumns(), "someone")
    assert faults == []
    assert await objects.get_blob(stored.spec.train) == rows("public")
    (folder / "s.jsonl").symlink_to(tmp_path / "secret.jsonl")
    stored, [fault] = await intake.store(DataSpec(train="given"), RowColumns(), "someone")
    assert (stored, fault.path) == (None, "data.train")
    assert "s.jsonl is a symbolic link out of the server's roots" in fault.message
    assert str(tmp_path) not in str(fault)


async def test_a_dataset_larger_than_the_limit_is_refused_before_it_is_read(objects, tmp_path):
    intake = DataIntake(objects, GatewaySettings(cache_dir=tmp_path / "cache", max_dataset_bytes=30))
    one, two = await objects.put_blob(rows("a")), await objects.put_blob(rows("b"))
    assert (await intake.store(DataSpec(train=one), RowColumns(), "someone"))[1] == []
    _, [fault] = await intake.store(DataSpec(train=[one, two]), RowColumns(), "someone")
    assert "GRADBUS_MAX_DATASET_BYTES" in fault.allowed
