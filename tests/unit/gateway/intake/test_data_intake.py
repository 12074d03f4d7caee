"""Datasets are checked in turn, and the same content once."""

import asyncio
import threading

import pytest

from gradbus.formats import jsonl
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

    def inspect(content, columns):
        found.append(content)
        begun.release()
        released.wait(60)
        return jsonl.inspect(content, columns)

    monkeypatch.setattr(data, "inspect", inspect)
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
    assert found == [rows("a"), rows("other")]
    released.set()
    assert all(faults == [] for _, faults in await asyncio.gather(*many, other))


async def test_equal_submissions_inspect_a_dataset_once(intake, objects, inspected):
    found, _, released = inspected
    released.set()
    digest = await objects.put_blob(rows("a"))
    results = await asyncio.gather(*(intake.store(DataSpec(train=digest, eval=digest), RowColumns(), "someone") for _ in range(4)))
    assert [faults for _, faults in results] == [[]] * 4
    assert found == [rows("a")]
