"""A run's history as pages and as a stream."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from gradbus.access.api_keys import new_api_key, read_api_keys, write_api_keys
from gradbus.bus import EventLog, subjects
from gradbus.client import document
from gradbus.v1.event_pb2 import RunEvent


@pytest.fixture
async def history(bus, submitted):
    """Five events of the run, and the log to add more."""
    log = EventLog(bus, submitted["id"])
    for step in range(5):
        log.emit("metrics", f"step {step}", {"step": step})
    await log.wait_until_stored()
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
    await history.wait_until_stored()
    await set_state(submitted["id"], "succeeded")
    events = await reading
    assert [event.event for event in events] == ["metrics"] * 5 + ["state"]


async def test_the_client_follows_to_the_end(client, submitted, history, set_state):
    await set_state(submitted["id"], "failed")
    events = await asyncio.to_thread(lambda: list(map(document, client.stream(submitted["id"]))))
    assert [event["data"]["step"] for event in events] == [0, 1, 2, 3, 4]


async def test_a_stream_of_no_run_is_a_problem(http):
    answer = http.get("/v1/runs/run-none/events", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


GARBAGE = {
    "no message": b"\xff\xff",
    "data that is no JSON": RunEvent(type="metrics", data_json="{").SerializeToString(),
    "data that is no object": RunEvent(type="metrics", data_json="[1]").SerializeToString(),
    "data with half a character": RunEvent(type="metrics", data_json='{"a": "\\ud800"}').SerializeToString(),
    "a time that is none": RunEvent(type="metrics", created_unix_ns=2**63 - 1).SerializeToString(),
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE)
async def test_an_event_that_cannot_be_read_hides_no_other(client, http, bus, submitted, history, set_state, payload):
    await bus.jetstream.publish(subjects.events(submitted["id"]), payload)
    history.emit("metrics", "after it", {"step": 5, "loss": float("nan")})
    await history.wait_until_stored()
    await set_state(submitted["id"], "succeeded")
    for found in (http.get(f"/v1/runs/{submitted['id']}/events").json()["data"], list(map(document, client.stream(submitted["id"])))):
        assert [event["type"] for event in found] == ["metrics"] * 5 + ["unreadable", "metrics"]
        assert "cannot be read" in found[5]["message"]
        assert found[6]["data"] == {"step": 5, "loss": None}


@pytest.mark.parametrize("parameter", ["events?after", "versions?after", "samples?step", "samples?index", "samples?row", "export?version"])
def test_a_number_out_of_range_is_a_wrong_parameter(http, submitted, parameter):
    for given in (2**63, 2**64, 10**30, -2):
        assert http.get(f"/v1/runs/{submitted['id']}/{parameter}={given}").status_code == 422
    assert http.get(f"/v1/runs/{submitted['id']}/{parameter}={2**63 - 1}").status_code in {200, 409}


@pytest.mark.parametrize("after", ["-1", str(2**63), "x"])
def test_a_last_event_id_out_of_range_is_a_wrong_parameter(http, submitted, after):
    assert http.get(f"/v1/runs/{submitted['id']}/events", headers={"Last-Event-ID": after}).status_code == 422


@asynccontextmanager
async def key_for_a_while(stack):
    """Headers of a key that is revoked at the block's end."""
    path = Path(stack.environment["GRADBUS_API_KEYS_FILE"])
    before = read_api_keys(path)
    key, record = new_api_key("for a while", ["runs:read"])
    write_api_keys(path, [*before, record])
    yield {"Authorization": f"Bearer {key}"}
    write_api_keys(path, before)


@asynccontextmanager
async def session_for_a_while(stack):
    """Headers of a browser that signs out at the block's end."""
    origin = {"Origin": stack.url}
    async with httpx2.AsyncClient(base_url=stack.url) as browser:
        link = (await browser.post("/v1/sign-ins", headers={"Authorization": f"Bearer {stack.key}"})).json()["path"]
        signed_in = await browser.post("/sign-in", json={"code": link.partition("#")[2]}, headers=origin)
        yield {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
        assert (await browser.post("/sign-out", headers=origin)).status_code == 204


@pytest.fixture
async def more_events(history):
    """Events of the run, all the time."""

    async def emit():
        while True:
            history.emit("metrics", "one more", {})
            await history.flush()
            await asyncio.sleep(0.5)

    emitting = asyncio.create_task(emit())
    yield
    emitting.cancel()


@pytest.mark.parametrize("for_a_while", [key_for_a_while, session_for_a_while])
async def test_a_stream_ends_after_its_caller_may_not_read_any_more(stack, submitted, more_events, for_a_while):
    async with AsyncExitStack() as opened:
        http = await opened.enter_async_context(httpx2.AsyncClient(base_url=stack.url, timeout=60))
        async with for_a_while(stack) as headers:
            asked = {**headers, "Accept": "text/event-stream"}
            answer = await opened.enter_async_context(http.stream("GET", f"/v1/runs/{submitted['id']}/events", headers=asked))
            pieces = answer.aiter_text()
            assert "step 0" in await anext(pieces)
        async with asyncio.timeout(60):
            assert "one more" in "".join([piece async for piece in pieces])
