"""Many followers of one run: each gets every event once and in order, and together they read the stream once."""

import asyncio
import json
from contextlib import AsyncExitStack

import httpx2
import pytest

from gradbus.bus import Buckets, EventLog
from gradbus_gateway.events.feeds import EventFeeds
from gradbus_gateway.runs.listing import RunList
from gradbus_gateway.runs.store import RunStore

FOLLOWERS = 60


@pytest.fixture
async def history(bus, submitted):
    """Adds metrics events to the run's history; the payload makes each several thousand bytes long."""
    log = EventLog(bus, submitted["id"])

    async def add(first, last):
        for step in range(first, last):
            log.emit("metrics", f"step {step}", {"step": step, "payload": "x" * 4000})
        await log.wait_until_stored()

    return add


@pytest.fixture
async def follow(stack, submitted):
    """Opens event streams of the run."""
    async with AsyncExitStack() as streams:
        headers = {"Authorization": f"Bearer {stack.key}"}
        limits = httpx2.Limits(max_connections=None)
        http = await streams.enter_async_context(httpx2.AsyncClient(base_url=stack.url, headers=headers, timeout=60, limits=limits))

        async def begin(after=0):
            stream = await streams.enter_async_context(http.sse(f"/v1/runs/{submitted['id']}/events?after={after}"))
            return aiter(stream)

        yield begin


async def take(events, count):
    """The steps of the next events."""
    return [json.loads((await anext(events)).data)["data"]["step"] for _ in range(count)]


async def test_followers_of_a_run_are_served_by_one_reader(bus, history, follow):
    await history(0, 20)
    streams = [await follow() for _ in range(FOLLOWERS)]
    assert await asyncio.gather(*(take(events, 20) for events in streams)) == [list(range(20))] * FOLLOWERS
    consumers = (await bus.jetstream.stream_info("EVENTS")).state.consumer_count
    await history(20, 25)
    assert await asyncio.gather(*(take(events, 5) for events in streams)) == [list(range(20, 25))] * FOLLOWERS
    assert consumers < FOLLOWERS / 2


async def test_a_follower_that_comes_late_or_reads_slowly_misses_nothing(history, follow):
    """The feed keeps a megabyte; what is older is read from the event log."""
    await history(0, 300)
    first = await follow()
    assert await take(first, 10) == list(range(10))
    await history(300, 700)
    late = await follow()
    assert await asyncio.gather(take(late, 700), take(first, 690)) == [list(range(700)), list(range(10, 700))]
    await history(700, 710)
    assert await asyncio.gather(take(first, 10), take(late, 10)) == [list(range(700, 710))] * 2


async def test_a_number_that_is_no_event_hides_nothing_from_the_next_follower(history, follow):
    await history(0, 5)
    lost = await follow(after=2**40)
    second = await follow()
    assert await take(second, 5) == list(range(5))
    await history(5, 8)
    assert await take(second, 3) == [5, 6, 7]
    del lost


@pytest.fixture
async def feeds(bus, submitted, monkeypatch):
    """Feeds of this process; `read` lists the runs that they have asked NATS for."""
    bucket = await bus.bucket(Buckets.RUNS)
    runs = RunStore(bucket)
    read, get = [], runs.get
    monkeypatch.setattr(runs, "get", lambda run_id: read.append(run_id) or get(run_id))
    async with bucket.view("*.*") as view:
        feeds = EventFeeds(bus, runs, RunList(view), asyncio.Event())
        feeds.read = read
        yield feeds


async def test_a_run_that_is_followed_costs_no_request_until_it_is_over(feeds, history, submitted, set_state):
    """A user may follow hundreds of runs at once."""
    await history(0, 1)
    stream = feeds.follow(submitted["id"], 0)
    assert b"step 0" in await anext(stream)
    await asyncio.sleep(2.5)  # it looks at the run every second
    await set_state(submitted["id"], "succeeded")
    assert [batch async for batch in stream] == []
    assert feeds.read == []


async def test_the_stream_of_a_run_that_is_deleted_ends(feeds, history, submitted, bus):
    await history(0, 1)
    stream = feeds.follow(submitted["id"], 0)
    assert b"step 0" in await anext(stream)
    await (await bus.bucket(Buckets.RUNS)).put(f"{submitted['id']}.desired", b'"deleted"')
    assert [batch async for batch in stream] == []


async def test_the_last_follower_closes_the_feed_and_the_next_one_opens_another(stack, history, follow, submitted, http):
    await history(0, 3)
    for _ in range(3):
        headers = {"Authorization": f"Bearer {stack.key}"}
        async with (
            httpx2.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as own,
            own.sse(f"/v1/runs/{submitted['id']}/events") as stream,
        ):
            assert await take(aiter(stream), 3) == [0, 1, 2]
