"""A run's metrics as columns, over a real event log."""

import asyncio
import math

import pytest
from nats.js.errors import APIError

from gradbus.bus import EventLog
from gradbus.client import AsyncClient
from gradbus.errors import NotFoundError
from gradbus_gateway.history import histories
from gradbus_gateway.history.histories import Histories

STEPS = 700


@pytest.fixture
async def log(bus, submitted):
    return EventLog(bus, submitted["id"])


@pytest.fixture
async def trained(submitted, log):
    """A run of 700 steps with one spike, a step that was trained again, evaluations, and a change of the scorer after step 99."""
    for step in range(STEPS):
        data = {"step": step, "reward": 9.0 if step == 333 else 0.5, "noop": False, "seconds": {"wait": 0.25}}
        if step == 50:
            data["reward"] = math.nan
        log.emit("metrics", f"step {step}", data)
        if step == 99:
            log.emit("scorer", "another scorer", {"from_group": 400})
        if step == 600:
            log.emit("metrics", "step 10", {"step": 10, "reward": 77.0})
        if step % 100 == 0:
            log.emit("evaluation", f"version {step}", {"version": step, "accuracy": step / 1000})
    await log.wait_until_stored()
    return submitted["id"]


def test_a_spike_survives_and_what_is_zoomed_to_is_exact(client, trained):
    history = client.history(trained, points=20, events=400)
    assert history.is_whole
    reward = history.metrics.columns["reward"]
    assert max(reward.max) == 9.0
    assert (history.metrics.first[0], history.metrics.last[-1], sum(history.metrics.steps)) == (0, STEPS - 1, STEPS)
    assert len(history.metrics.first) <= 20 + 2 + 50
    assert set(history.metrics.columns) == {"reward", "seconds/wait"}
    assert history.evaluations.columns["accuracy"].last[-1] == 0.6
    assert [(event.type, event.step) for event in history.events if event.type == "scorer"] == [("scorer", 100)]
    part = client.history(trained, start=40, end=60, column="reward").metrics
    assert part.first == part.last == list(range(40, 61))
    assert part.columns["reward"].last == [0.5] * 10 + [None] + [0.5] * 10
    assert part.columns["reward"].min == []
    assert list(part.columns) == ["reward"]


async def test_what_came_since_is_there_and_later_events_follow_the_newest(stack, trained, log):
    async with AsyncClient(stack.url, stack.key) as client:
        before = await client.history(trained, column=["reward", "entropy"])
        log.emit("metrics", f"step {STEPS}", {"step": STEPS, "entropy": 1.5})
        await log.wait_until_stored()
        after = await client.history(trained, column=["reward", "entropy"])
        newest = await client.events_page(trained, before.newest)
    assert (before.metrics.last[-1], after.metrics.last[-1]) == (STEPS - 1, STEPS)
    assert after.metrics.columns["entropy"].last == [None] * (len(after.metrics.first) - 1) + [1.5]
    assert [event.id for event in newest.data] == [after.newest]


def test_a_run_without_events_has_empty_tables(client, http, submitted):
    history = client.history(submitted["id"])
    assert (history.newest, history.is_whole, history.metrics.first, history.metrics.columns) == (0, True, [], {})
    with pytest.raises(NotFoundError):
        client.history("run-000000000000-000000")
    assert http.get(f"/v1/runs/{submitted['id']}/history", params={"point": 3}).status_code == 422


async def test_a_history_is_read_once_whoever_asks_and_an_answer_does_not_wait_for_its_end(bus, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(histories, "_WAIT_SECONDS", 0.0)
    read = Histories(bus, tmp_path / "new")
    first, second = await asyncio.gather(read.of(trained), read.of(trained))
    assert first[0] is second[0]
    assert not first[1]
    monkeypatch.setattr(histories, "_WAIT_SECONDS", 60.0)
    history, is_whole = await read.of(trained)
    assert (history, is_whole, sum(history.steps.select(None, None, 9, None).downsampled().rows)) == (first[0], True, STEPS)
    await read.close()


async def test_the_histories_that_were_asked_for_longest_ago_are_forgotten(bus, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(histories, "_MOST_RUNS", 1)
    read = Histories(bus, tmp_path)
    first, _ = await read.of(trained)
    assert (await read.of(trained))[0] is first
    await read.of("run-000000000000-000000")
    assert (await read.of(trained))[0] is not first
    await read.close()


async def test_a_reading_that_fails_is_told_and_the_next_one_begins_where_it_ended(bus, trained, tmp_path, monkeypatch):
    read, original, fails = Histories(bus, tmp_path), EventLog.follow, True

    async def follow(log, after=0, until_current=False):
        async for event in original(log, after, until_current):
            if fails and event.data.get("step") == 100:
                raise APIError(code=503)
            yield event

    monkeypatch.setattr(EventLog, "follow", follow)
    with pytest.raises(APIError):
        await read.of(trained)
    fails = False
    history, is_whole = await read.of(trained)
    assert (is_whole, sum(history.steps.select(None, None, 9, None).downsampled().rows)) == (True, STEPS)
    await read.close()
