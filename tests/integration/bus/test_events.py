"""A run's history on a real NATS."""

import asyncio
from contextlib import aclosing

import pytest

from gradbus.bus import EventLog, subjects


@pytest.fixture
def history(bus, unique):
    return EventLog(bus, unique)


async def test_events_come_back_in_order_and_whole(history):
    history.emit("state", "running", {"state": "running"}, "warning")
    for n in range(300):
        history.emit("metrics", f"step {n}", {"step": n})
    await history.wait_until_stored()
    found = await history.read()
    assert (found[0].type, found[0].level, found[0].message, found[0].data) == ("state", "warning", "running", {"state": "running"})
    assert [event.data["step"] for event in found[1:]] == list(range(300))
    assert [event.sequence for event in found] == sorted(event.sequence for event in found)


async def test_a_key_is_written_once_also_by_another_writer(bus, history, unique):
    history.emit("evaluation", "version 0", key="evaluation:0")
    await history.wait_until_stored()
    again = EventLog(bus, unique)
    again.emit("evaluation", "version 0", key="evaluation:0")
    again.emit("evaluation", "version 1", key="evaluation:1")
    await again.wait_until_stored()
    assert [event.message for event in await history.read()] == ["version 0", "version 1"]


async def test_an_event_that_nats_would_refuse_is_stored_without_its_data(history):
    history.emit("metrics", "step 0", {"x" * 5_000_000: 1.0})
    history.emit("metrics", "step 1", {"step": 1})
    await asyncio.wait_for(history.wait_until_stored(), 60)
    assert [(event.message, dict(event.data)) for event in await history.read()] == [("step 0", {}), ("step 1", {"step": 1})]


async def test_the_same_text_twice_is_two_events(history):
    history.emit("waiting", "for the scorer")
    history.emit("waiting", "for the scorer")
    await history.wait_until_stored()
    assert len(await history.read()) == 2


async def test_two_flushes_at_once_write_each_event_once(history):
    for n in range(600):
        history.emit("metrics", str(n))
    await asyncio.gather(*(history.wait_until_stored() for _ in range(3)))
    assert [event.message for event in await history.read()] == [str(n) for n in range(600)]


async def test_an_emitted_event_is_stored_without_a_flush(history):
    history.emit("state", "queued")
    async with asyncio.timeout(60):
        async for event in history.follow():
            assert event.message == "queued"
            break


async def test_reading_resumes_behind_a_sequence_and_stops_at_a_limit(history):
    for n in range(10):
        history.emit("metrics", str(n))
    await history.wait_until_stored()
    first = await history.read(limit=4)
    assert [event.message for event in first] == ["0", "1", "2", "3"]
    assert [event.message for event in await history.read(first[-1].sequence)] == ["4", "5", "6", "7", "8", "9"]
    assert await history.read(10**9) == []


async def test_a_run_without_history_reads_as_nothing(bus, unique):
    assert await EventLog(bus, unique).read() == []


async def test_readers_leave_no_consumers_behind(own_bus):
    history = EventLog(own_bus, "run")
    history.emit("state", "queued")
    await history.wait_until_stored()
    for _ in range(4):
        await history.read()
        reader = history.follow()
        await anext(reader)
        await reader.aclose()
    assert await own_bus.jetstream.consumers_info(subjects.EVENTS_STREAM) == []


async def test_a_follower_and_a_writer_go_on_after_the_server_was_killed(own_nats, own_bus):
    history = EventLog(own_bus, "run")
    history.emit("metrics", "0")
    seen, first = [], asyncio.Event()

    async def follow():
        async for event in history.follow():
            seen.append(event.message)
            first.set()
            if len(seen) == 3:
                return

    following = asyncio.create_task(follow())
    await first.wait()
    own_nats.kill()
    history.emit("metrics", "1")
    own_nats.start()
    history.emit("metrics", "2")
    await asyncio.wait_for(following, 60)
    assert seen == ["0", "1", "2"]


async def test_reading_ends_though_a_full_stream_drops_events_meanwhile(own_bus):
    history = EventLog(own_bus, "run")
    for n in range(3000):
        history.emit("metrics", str(n), {"text": "x" * 4096})
    await history.wait_until_stored()
    async with asyncio.timeout(60), aclosing(history.follow(until_current=True)) as reader:
        await anext(reader)
        await own_bus.jetstream.purge_stream(subjects.EVENTS_STREAM)
        rest = [event async for event in reader]
    assert len(rest) < 2999
