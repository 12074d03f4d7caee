"""The archive over a real buffer and a folder: what a checkpoint covers is sealed, then trimmed."""

import pytest

from gradbus.buffer import keys
from gradbus.experience import ExperienceLog
from gradbus.experience import archive as archive_module
from gradbus.experience.archive import ArchiveWriter
from gradbus.experience.records import seal, unseal
from gradbus.v1.group_pb2 import LogEntry, LogSegment
from gradbus.v1.weights_pb2 import Frontier


@pytest.fixture
def archive(objects, log, run_id):
    return ArchiveWriter(objects, log, run_id)


@pytest.fixture
def archived(objects, run_id):
    """Indexes in object storage, segment by segment in the order of their ids; every record is checked."""

    async def read():
        found = []
        for path in await objects.list(f"runs/{run_id}/log"):
            segment = LogSegment.FromString(unseal(await objects.get(path), path))
            assert path.endswith(f"{segment.first}_{segment.last}")
            found += [(entry.stream_id, LogEntry.FromString(unseal(entry.record, path)).index) for entry in segment.entries]
        return [index for _, index in sorted(found, key=lambda item: tuple(map(int, item[0].split("-"))))]

    return read


async def fill(log, indexes):
    await log.append(1, {index: LogEntry(index=index) for index in indexes})


async def left(log):
    return [entry.index for entry in await log.read(limit=10_000)]


async def test_only_the_covered_prefix_moves(log, archive, archived):
    await fill(log, [0, 2, 1, 5, 3, 4])
    assert await archive.advance(Frontier(below=2, above=[2, 3])) == 3
    assert await archived() == [0, 2, 1]
    assert await left(log) == [5, 3, 4]


async def test_without_covered_entries_nothing_moves(log, archive, archived):
    await fill(log, [1, 0])
    assert await archive.advance(Frontier()) == 0
    assert await archived() == []
    assert await left(log) == [1, 0]


async def test_checkpoint_after_checkpoint_archives_each_entry_once(log, archive, archived):
    await fill(log, range(4))
    await archive.advance(Frontier(below=2))
    await fill(log, range(4, 8))
    await archive.advance(Frontier(below=6))
    assert await archive.advance(Frontier(below=6)) == 0
    assert await archived() == [0, 1, 2, 3, 4, 5]
    assert await left(log) == [6, 7]


async def test_a_crash_between_sealing_and_trimming_changes_nothing(objects, log, run_id, archived, monkeypatch):
    await fill(log, range(4))

    async def crash(_self, _last):
        raise ConnectionError("the conductor dies here")

    with monkeypatch.context() as patch:
        patch.setattr(ExperienceLog, "trim", crash)
        with pytest.raises(ConnectionError):
            await ArchiveWriter(objects, log, run_id).advance(Frontier(below=2))
    assert await left(log) == [0, 1, 2, 3]
    assert await ArchiveWriter(objects, log, run_id).advance(Frontier(below=3)) == 3
    assert await archived() == [0, 1, 2]
    assert await left(log) == [3]


async def test_a_log_made_again_by_an_earlier_clock_is_archived_too(client, objects, log, archive, archived, run_id):
    await fill(log, range(4))
    await archive.advance(Frontier(below=4))
    await client.delete(keys.experience(run_id), keys.admitted(run_id))
    for number, index in enumerate((3, 4, 5)):
        record = seal(LogEntry(index=index, reason="made again").SerializeToString())
        await client.xadd(keys.experience(run_id), {"i": index, "r": record}, id=f"{number + 1}-1")
    for frontier in (Frontier(below=5), Frontier(below=6)):
        await ArchiveWriter(objects, log, run_id).advance(frontier)
    assert sorted(await archived()) == [0, 1, 2, 3, 3, 4, 5]
    assert await left(log) == []


async def test_a_long_log_becomes_several_segments(objects, log, archive, archived, run_id):
    await fill(log, range(2500))
    assert await archive.advance(Frontier(below=2500)) == 2500
    assert await archived() == list(range(2500))
    assert len(await objects.list(f"runs/{run_id}/log")) == 2
    assert await left(log) == []


async def test_a_log_of_large_groups_becomes_small_segments(objects, log, archive, archived, run_id, monkeypatch):
    monkeypatch.setattr(archive_module, "_MAX_BYTES", 1 << 20)
    monkeypatch.setattr(archive_module, "_BATCH", 2)
    await log.append(1, {index: LogEntry(index=index, group=bytes(300_000)) for index in range(16)})
    assert await archive.advance(Frontier(below=14)) == 14
    assert len(await objects.list(f"runs/{run_id}/log")) == 4
    await archive.finish()
    assert await archived() == list(range(16))
    assert await left(log) == []
