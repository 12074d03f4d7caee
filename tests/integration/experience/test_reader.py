"""One reader over archive and buffer: each entry once, in the order of the log, wherever it is."""

import pytest

from gradbus.buffer import keys
from gradbus.experience.archive import ArchiveWriter
from gradbus.experience.reader import read_experience
from gradbus.experience.records import seal
from gradbus.experience.stream_ids import START, SegmentName, StreamId
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.weights_pb2 import Frontier


@pytest.fixture
def read(client, objects, run_id):
    async def read(after=START):
        return [(stored, entry) async for stored, entry in read_experience(client, objects, run_id, after)]

    return read


@pytest.mark.parametrize("archived", [0, 1, 70, 200])
async def test_each_entry_comes_once_from_archive_and_buffer(log, objects, run_id, entries, read, archived):
    await log.append(1, entries(*range(200)))
    before = await log.read()
    assert await ArchiveWriter(objects, log, run_id).advance(Frontier(below=archived)) == archived
    found = await read()
    assert [stored for stored, _ in found] == before
    assert [entry.index for _, entry in found] == list(range(200))


async def test_reading_begins_behind_any_entry(log, objects, run_id, entries, read):
    await log.append(1, entries(*range(6)))
    ids = [StreamId.parse(stored.stream_id) for stored, _ in await read()]
    await ArchiveWriter(objects, log, run_id).advance(Frontier(below=4))
    for index, stream_id in enumerate(ids):
        assert [entry.index for _, entry in await read(stream_id)] == list(range(index + 1, 6))
        assert [entry.index for _, entry in await read(stream_id.before())] == list(range(index, 6))


async def test_an_entry_archived_and_not_yet_trimmed_comes_once(log, objects, run_id, entries, read, monkeypatch):
    await log.append(1, entries(*range(4)))

    async def crash(_last):
        raise ConnectionError("the conductor dies here")

    with monkeypatch.context() as patch:
        patch.setattr(log, "trim", crash)
        with pytest.raises(ConnectionError):
            await ArchiveWriter(objects, log, run_id).advance(Frontier(below=2))
    assert [entry.index for _, entry in await read()] == [0, 1, 2, 3]


async def test_a_corrupt_entry_is_none(client, log, run_id, entries, read):
    await log.append(1, entries(0, 1))
    record = bytearray(seal(LogEntry(index=2).SerializeToString()))
    record[3] ^= 1
    await client.xadd(keys.experience(run_id), {"i": 2, "r": bytes(record)})
    assert [(stored.index, entry is None) for stored, entry in await read()] == [(0, False), (1, False), (2, True)]


async def test_of_a_corrupt_segment_one_entry_is_none(log, objects, run_id, entries, read):
    await log.append(1, entries(*range(4)))
    await ArchiveWriter(objects, log, run_id).advance(Frontier(below=2))
    (segment,) = await objects.list(f"runs/{run_id}/log")
    await objects.put(segment, seal(b"no segment"))
    assert [entry and entry.index for _, entry in await read()] == [None, 2, 3]


async def test_a_run_without_groups_has_no_entries(read):
    assert await read() == []


async def test_names_and_ids_survive_the_way_through_text():
    name = SegmentName(StreamId(9, 0), StreamId(1_700_000_000_000, 12))
    assert name.path("run-a") == "runs/run-a/log/9-0_1700000000000-12"
    assert SegmentName.parse(name.path("run-a")) == name
    assert StreamId(9, 0).before() == StreamId(8, 2**63 - 1) < StreamId(9, 0) < StreamId(9, 0).after() < StreamId(10, 0)
    with pytest.raises(ValueError, match="invalid literal"):
        StreamId.parse("soon")
