"""A run's metrics as columns, over a real event log."""

import asyncio
import math
from types import SimpleNamespace

import pytest
from nats.js.errors import APIError

from gradbus.bus import Buckets, EventLog
from gradbus.client import AsyncClient, RetryPolicy
from gradbus.errors import NotFoundError, StackError
from gradbus_gateway.history import histories
from gradbus_gateway.history.histories import Histories
from gradbus_gateway.history.run_history import RunHistory
from gradbus_gateway.history.size import Size
from gradbus_gateway.http.admission import Admission, Admissions
from gradbus_gateway.routes import events
from gradbus_gateway.runs.store import RunStore
from gradbus_gateway.settings import RequestLimits

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
    for wrong in ({"point": 3}, {"from": 5, "to": 4}):
        assert http.get(f"/v1/runs/{submitted['id']}/history", params=wrong).status_code == 422
    assert http.get(f"/v1/runs/{submitted['id']}/history", params={"from": 5, "to": 5}).status_code == 200


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


@pytest.mark.parametrize("most", [{"runs": 1}, {"memory_bytes": 10_000}])
async def test_the_histories_that_were_asked_for_longest_ago_are_forgotten(bus, trained, tmp_path, monkeypatch, most):
    monkeypatch.setattr(histories, "_MOST", histories._MOST._replace(**most))
    read = Histories(bus, tmp_path)
    first, _ = await read.of(trained)
    assert (await read.of(trained))[0] is first
    await read.of("run-000000000000-000000")
    assert (await read.of(trained))[0] is not first
    await read.close()


async def test_a_request_measures_its_own_history_alone_and_the_total_is_that_of_all(bus, trained, log, tmp_path, monkeypatch):
    monkeypatch.setattr(histories, "_WAIT_SECONDS", 60.0)
    read, measured, original = Histories(bus, tmp_path), [], RunHistory.size.fget
    for number in range(5):
        await read.of(f"run-00000000000{number}-000000")
    first, _ = await read.of(trained)
    monkeypatch.setattr(RunHistory, "size", property(lambda history: measured.append(history) or original(history)))
    log.emit("metrics", "step 9000", {"step": 9000, "reward": 0.5})
    await log.wait_until_stored()
    before = read.size
    history, _ = await read.of(trained)
    assert history is first
    assert {id(one) for one in measured} == {id(history)}
    assert (read.size.runs, read.size.files, before.files) == (6, 1, 0)
    monkeypatch.setattr(histories, "_MOST", histories._MOST._replace(runs=1))
    await read.of(trained)
    assert read.size == original(history), "the others are forgotten"
    await read.close()
    assert read.size == Size()


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
    assert read.size.memory_bytes > RunHistory(trained, tmp_path).size.memory_bytes, "what was read before it failed is counted"
    fails = False
    history, is_whole = await read.of(trained)
    assert read.size == history.size
    assert (is_whole, sum(history.steps.select(None, None, 9, None).downsampled().rows)) == (True, STEPS)
    await read.close()


async def test_a_history_that_is_being_read_is_not_forgotten(bus, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(histories, "_MOST", histories._MOST._replace(runs=1))
    monkeypatch.setattr(histories, "_WAIT_SECONDS", 0.0)
    read, original, goes_on = Histories(bus, tmp_path), EventLog.follow, asyncio.Event()

    async def follow(log, after=0, until_current=False):
        async for event in original(log, after, until_current):
            yield event
            if event.data.get("step") == 100:
                await goes_on.wait()

    monkeypatch.setattr(EventLog, "follow", follow)
    first, _ = await read.of(trained)
    monkeypatch.setattr(histories, "_WAIT_SECONDS", 60.0)
    assert (await read.of("run-000000000000-000000"))[1]
    goes_on.set()
    assert await read.of(trained) == (first, True)
    await read.close()


async def test_a_folder_that_cannot_be_written_is_a_503_that_says_so_and_a_short_run_needs_none(stack, trained, log, start_gateway):
    url, _ = start_gateway(cache_dir="/proc/none")
    async with AsyncClient(url, stack.key, RetryPolicy(seconds=0.0)) as client:
        assert (await client.history(trained)).is_whole
        log.emit("metrics", "step 5000", {"step": 5000, "reward": 0.5})
        await log.wait_until_stored()
        with pytest.raises(StackError, match="GRADBUS_CACHE_DIR"):
            await client.history(trained)


async def test_a_request_that_waits_for_the_reading_keeps_no_turn_from_other_lists(bus, trained, tmp_path, monkeypatch):
    admissions, begun, goes_on, original = Admissions(RequestLimits(lists=1)), asyncio.Event(), asyncio.Event(), EventLog.follow

    async def follow(log, after=0, until_current=False):
        begun.set()
        await goes_on.wait()
        async for event in original(log, after, until_current):
            yield event

    monkeypatch.setattr(EventLog, "follow", follow)
    monkeypatch.setattr(histories, "_WAIT_SECONDS", 60.0)
    gateway = SimpleNamespace(runs=RunStore(await bus.bucket(Buckets.RUNS)), histories=Histories(bus, tmp_path))
    admission, other = Admission(admissions, ""), Admission(admissions, "")
    request = SimpleNamespace(state=SimpleNamespace(admission=admission))
    answer = asyncio.create_task(events.get_history(trained, request, gateway, await events._asked(500, None, None, ())))
    await begun.wait()
    async with asyncio.timeout(60):
        await other.take_list_turn()
        goes_on.set()
        await asyncio.wait({gateway.histories._entries[trained].reading})
        assert not answer.done()
        other.end()
        assert b'"is_whole":true' in (await answer).body
        admission.end()
        await other.take_list_turn()
    await gateway.histories.close()
