"""The experience log on a real server: each group once, one term at a time, nothing corrupt is trained."""

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import given
from redis.exceptions import OutOfMemoryError

from gradbus.buffer import BufferSettings, keys, load_functions, open_buffer
from gradbus.errors import CorruptRecordError, FencedError, SettingsError
from gradbus.experience import ExperienceLog, StoredEntry
from gradbus.experience.records import seal
from gradbus.ids import new_run_id
from gradbus.v1.group_pb2 import LogEntry


async def indexes(log, after="0-0"):
    return [entry.index for entry in await log.read(after)]


async def test_entries_come_back_in_the_order_they_were_appended(log, entries):
    assert await log.append(1, entries(2, 0)) == [2, 0]
    assert await log.append(1, entries(1)) == [1]
    assert await indexes(log) == [2, 0, 1]
    assert [entry.decode().index for entry in await log.read()] == [2, 0, 1]


async def test_an_index_enters_once_and_the_first_answer_stays(log, entries):
    await log.append(1, entries(0, 1, reason="first"))
    assert await log.append(1, entries(1, 2, reason="second")) == [2]
    assert [(entry.index, entry.decode().reason) for entry in await log.read()] == [(0, "first"), (1, "first"), (2, "second")]


async def test_many_conductors_of_one_term_append_each_index_once(log, entries):
    accepted = await asyncio.gather(*(log.append(1, entries(*range(40))) for _ in range(8)))
    assert sorted(index for part in accepted for index in part) == list(range(40))
    assert sorted(await indexes(log)) == list(range(40))


async def test_appending_nothing_does_nothing(log):
    assert await log.append(1, {}) == []
    assert await log.read() == []


async def test_appending_removes_the_group_it_was_made_of(log, store, entries, group):
    await store.put([group(3), group(4)])
    await log.append(1, entries(3))
    assert (await store.get([3, 4])).keys() == {4}


async def test_an_older_term_is_refused_and_changes_nothing(log, entries):
    await log.append(5, entries(0))
    await log.open_term(6)
    for write in (log.append(5, entries(1)), log.open_term(5), log.delete(5, await log.read())):
        with pytest.raises(FencedError, match="let go"):
            await write
    assert await indexes(log) == [0]
    assert await log.append(6, entries(1)) == [1]


async def test_a_term_far_beyond_every_lease_is_kept_exactly(log, entries):
    last = 2**53 - 1
    await log.open_term(last)
    with pytest.raises(FencedError):
        await log.append(last - 1, entries(0))


async def test_the_bitmap_outlives_trimming(log, entries):
    await log.append(1, entries(0, 7, 8, 9, 31))
    stored = await log.read()
    await log.trim(stored[2].stream_id)
    assert await indexes(log) == [9, 31]
    assert await log.admitted(0, 32) == {0, 7, 8, 9, 31}
    assert await log.admitted(8, 31) == {8, 9}
    assert await log.admitted(4, 4) == set()
    assert await log.append(1, entries(7)) == []


async def test_reading_goes_on_behind_an_id_in_batches(log, entries):
    await log.append(1, entries(*range(10)))
    first = await log.read(limit=4)
    assert [entry.index for entry in first] == [0, 1, 2, 3]
    assert await indexes(log, first[-1].stream_id) == [4, 5, 6, 7, 8, 9]


async def test_a_waiting_reader_gets_what_comes(log, entries):
    waiting = asyncio.create_task(log.read(wait_seconds=20))
    await asyncio.sleep(0.05)
    await log.append(1, entries(5))
    assert [entry.index for entry in await waiting] == [5]


async def test_a_corrupt_entry_is_reported_removed_and_made_again(client, log, run_id, entries):
    await log.append(1, entries(0, 1))
    record = bytearray(seal(LogEntry(index=2, reason="whole").SerializeToString()))
    record[3] ^= 1
    await client.xadd(keys.experience(run_id), {"i": 2, "r": bytes(record)})
    await client.setbit(keys.admitted(run_id), 2, 1)
    corrupt = (await log.read())[2]
    with pytest.raises(CorruptRecordError, match=corrupt.stream_id):
        corrupt.decode()
    await log.delete(1, [corrupt])
    await log.delete(1, [corrupt])
    assert await log.admitted(0, 8) == {0, 1}
    assert await log.append(1, entries(2)) == [2]
    assert await indexes(log) == [0, 1, 2]


async def test_an_entry_with_a_corrupt_index_is_removed_and_its_index_can_be_appended_again(client, log, run_id, entries):
    await log.append(1, entries(0, 1))
    stored = (await log.read())[1]
    await client.xdel(keys.experience(run_id), stored.stream_id)
    await client.xadd(keys.experience(run_id), {"i": b"\xff", "r": stored.record})
    await log.delete(1, [entry for entry in await log.read() if entry.index < 0])
    assert await indexes(log) == [0]
    assert await log.append(1, entries(1)) == [], "the bitmap still has it"
    assert await log.reopen(1, 0, {0}) == [1]
    assert await log.append(1, entries(1)) == [1]


async def test_an_admitted_index_without_an_entry_can_be_appended_again(client, log, run_id, entries):
    await log.append(1, entries(*range(20)))
    await client.delete(keys.experience(run_id))
    assert await log.reopen(1, 5, {7, 19}) == [5, 6, *range(8, 19)], "what was trained and trimmed lies below"
    assert await log.reopen(1, 5, {7, 19}) == []
    assert await log.append(1, entries(4, 5, 7, 18)) == [5, 18]
    await log.open_term(2)
    await client.delete(keys.experience(run_id))
    with pytest.raises(FencedError):
        await log.reopen(1, 0, ())


def test_an_entry_under_another_index_is_corrupt():
    with pytest.raises(CorruptRecordError, match="stored as 4"):
        StoredEntry("1-0", 4, seal(LogEntry(index=3).SerializeToString())).decode()


async def test_size_grows_with_the_log(log, entries):
    assert await log.size() == (0, 0)
    await log.append(1, entries(*range(20)))
    count, used = await log.size()
    assert count == 20
    assert used > 0


@given(st.sets(st.integers(0, 200), max_size=20), st.integers(0, 200), st.integers(0, 200))
def test_admitted_is_the_set_of_what_was_appended(buffer_url, appended, first, last):
    async def check():
        client = open_buffer(BufferSettings(buffer_url))
        log = ExperienceLog(client, new_run_id())
        await log.append(1, {index: LogEntry(index=index) for index in appended})
        found = await log.admitted(first, last)
        await client.aclose()
        assert found == {index for index in appended if first <= index < last}

    asyncio.run(check())


async def test_a_buffer_without_the_functions_says_what_to_do(client, run_id):
    await client.function_flush()
    try:
        with pytest.raises(SettingsError, match="lacks the function gradbus_append; start the stack again"):
            await ExperienceLog(client, run_id).append(1, {0: LogEntry(index=0)})
    finally:
        await load_functions(client)


async def test_loading_the_functions_again_replaces_them(client, log):
    await load_functions(client)
    assert await log.append(1, {0: LogEntry(index=0)}) == [0]


async def test_a_full_buffer_still_lets_a_run_go_on(client, log, store, entries, group):
    """What lies in it must reach the trainer, and be trimmed: nothing else gives room."""
    await log.append(1, entries(0))
    await store.put([group(1)])
    memory = (await client.config_get("maxmemory"))["maxmemory"]
    await client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            await store.put([group(2)])
        await log.open_term(2)
        assert await log.append(2, entries(1)) == [1]
        assert await log.reopen(2, 0, {0}) == [1]
        await log.delete(2, (await log.read())[1:])
        await log.trim((await log.read())[0].stream_id)
    finally:
        await client.config_set("maxmemory", memory)
    assert await log.read() == []
