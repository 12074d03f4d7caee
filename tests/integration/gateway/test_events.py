"""A run's history as pages and as a stream."""

import asyncio
import json

import httpx2
import pytest

from gradbus.bus import EventLog


@pytest.fixture
async def history(bus, submitted):
    """Five events of the run, and the log to add more."""
    log = EventLog(bus, submitted["id"])
    for step in range(5):
        log.emit("metrics", f"step {step}", {"step": step})
    await log.flush()
    return log


async def test_pages_cover_the_history_in_order(http, submitted, history):
    steps, after = [], 0
    while after is not None:
        page = http.get(f"/v1/runs/{submitted['id']}/events", params={"after": after, "limit": 2}).json()
        steps += [event["data"]["step"] for event in page["data"]]
        after = page["next_after"]
    assert steps == [0, 1, 2, 3, 4]


async def test_a_run_without_history_has_an_empty_page(http, submitted):
    assert http.get(f"/v1/runs/{submitted['id']}/events").json()["data"] == []


async def read_stream(stack, run_id, after, enough=None):
    found = []
    headers = {"Authorization": f"Bearer {stack.key}", "Last-Event-ID": str(after)}
    async with (
        httpx2.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as http,
        http.sse(f"/v1/runs/{run_id}/events") as source,
    ):
        assert source.response.headers["content-type"].startswith("text/event-stream")
        async for event in source:
            found.append(event)
            if enough and len(found) >= enough:
                break
    return found


async def test_a_stream_goes_on_behind_the_last_event_id(stack, submitted, history):
    first = await read_stream(stack, submitted["id"], 0, enough=2)
    rest = await read_stream(stack, submitted["id"], int(first[-1].id), enough=3)
    assert [json.loads(event.data)["data"]["step"] for event in first + rest] == [0, 1, 2, 3, 4]
    assert {event.event for event in first} == {"metrics"}


async def test_a_stream_shows_what_comes_and_ends_with_the_run(stack, submitted, history, set_state):
    reading = asyncio.create_task(read_stream(stack, submitted["id"], 0))
    history.emit("state", "done", {"state": "succeeded"})
    await history.flush()
    await set_state(submitted["id"], "succeeded")
    events = await reading
    assert [event.event for event in events] == ["metrics"] * 5 + ["state"]


async def test_the_client_follows_to_the_end(client, submitted, history, set_state):
    await set_state(submitted["id"], "failed")
    events = await asyncio.to_thread(lambda: list(client.follow_events(submitted["id"])))
    assert [event["data"]["step"] for event in events] == [0, 1, 2, 3, 4]


async def test_a_stream_of_no_run_is_a_problem(http):
    answer = http.get("/v1/runs/run-none/events", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
