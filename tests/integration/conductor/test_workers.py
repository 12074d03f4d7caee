"""Assignments by compare-and-set on a real NATS."""

import asyncio
import secrets

import pytest

from gradbus.bus import Buckets
from gradbus.control.runs import WorkerPresence
from gradbus_conductor.workers import WorkerPool


@pytest.fixture
async def buckets(bus):
    """Buckets of this test alone, whose keys do not expire, however long the test takes."""
    names = [f"{name}-{secrets.token_hex(6)}" for name in (Buckets.WORKERS, Buckets.ASSIGNMENTS)]
    yield [await bus.bucket(name) for name in names]
    for name in names:
        await bus.jetstream.delete_key_value(name)


@pytest.fixture
async def two(buckets):
    """Two conductors' views of the same workers: a trainer and four rollouts."""
    workers, assignments = buckets
    for name in ("trainer", "rollout-0", "rollout-1", "rollout-2", "rollout-3"):
        presence = WorkerPresence(worker=name, role=name.split("-")[0], incarnation="1")
        await workers.put(name, presence.to_bytes())
    async with workers.view() as present, assignments.view() as first, assignments.view() as second:
        yield WorkerPool(assignments, present, first), WorkerPool(assignments, present, second), (first, second)


class Unchanging:
    """A view that is behind."""

    def __init__(self, entries):
        self.entries = dict(entries)
        self.get = self.entries.get

    def listen(self, listener):
        for key in self.entries:
            listener(key)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there are three views
            await asyncio.sleep(0.02)


async def test_of_two_conductors_one_gets_the_trainer(two):
    one, other, _ = two
    claims = await asyncio.gather(
        one.claim("run-1", "trainer", most=1, queue="default"), other.claim("run-2", "trainer", most=1, queue="default")
    )
    assert sorted(claims) == [[], ["trainer"]]


async def test_every_worker_serves_one_run(two):
    one, other, views = two
    first, second = await asyncio.gather(one.claim("run-1", "rollout"), other.claim("run-2", "rollout"))
    assert sorted(first + second) == ["rollout-0", "rollout-1", "rollout-2", "rollout-3"]
    await until(lambda: len(views[0].entries) == len(views[1].entries) == 4)
    assert sorted(one.assigned_to("run-1")) == sorted(other.assigned_to("run-1")) == sorted(first)
    assert await one.claim("run-3", "rollout") == []


async def test_a_bound_is_kept_and_released_workers_can_be_claimed(two):
    one, other, views = two
    assert await one.claim("run-1", "rollout", most=3) == ["rollout-0", "rollout-1", "rollout-2"]
    await until(lambda: len(views[0].entries) == 3)
    await one.release("run-1")
    await until(lambda: not views[0].entries and not views[1].entries)
    assert len(await other.claim("run-2", "rollout")) == 4


async def test_runs_with_a_trainer_share_the_rollouts(two, buckets):
    one, other, _ = two
    await one.claim("run-1", "trainer", most=1, queue="default")
    await until(lambda: one.run_of("trainer") == "run-1")
    await one.share_rollouts("run-1")
    await until(lambda: len(one.assigned_to("run-1")) == 5)

    await buckets[0].put("trainer-1", WorkerPresence(worker="trainer-1", role="trainer", incarnation="1").to_bytes())
    await buckets[1].create("trainer-1", b'"run-2"')
    await until(lambda: one.run_of("trainer-1") == other.run_of("trainer-1") == "run-2" and len(one.live.of_role("trainer")) == 2)
    await one.share_rollouts("run-1")
    await until(lambda: len(one.assigned_to("run-1")) == len(other.assigned_to("run-1")) == 3)
    await other.share_rollouts("run-2")
    await until(lambda: not {"rollout-2", "rollout-3"} - one._assigned.entries.keys())
    await one.share_rollouts("run-1")
    assert sorted(one.assigned_to("run-1")) == ["rollout-0", "rollout-1", "trainer"]
    assert sorted(one.assigned_to("run-2")) == ["rollout-2", "rollout-3", "trainer-1"]


async def test_of_two_runs_and_one_rollout_the_older_has_it(two, buckets):
    one, other, views = two
    for name in ("rollout-1", "rollout-2", "rollout-3"):
        await buckets[0].delete(name)
    await buckets[0].put("trainer-1", WorkerPresence(worker="trainer-1", role="trainer", incarnation="1").to_bytes())
    await buckets[1].create("trainer", b'"run-2"')
    await buckets[1].create("trainer-1", b'"run-1"')
    await until(lambda: len(one.live.of_role("rollout")) == 1 and all(len(view.entries) == 2 for view in views))
    await other.share_rollouts("run-2")
    assert await buckets[1].get("rollout-0") is None
    await one.share_rollouts("run-1")
    assert (await buckets[1].get("rollout-0")).value == b'"run-1"'


async def test_a_view_that_is_behind_takes_no_worker_from_another_run(two, buckets):
    one, other, views = two
    await one.claim("run-1", "rollout", most=1)
    await until(lambda: one.run_of("rollout-0") == other.run_of("rollout-0") == "run-1")
    stale = WorkerPool(buckets[1], one._workers, Unchanging(views[1].entries))
    await one.release("run-1")
    await until(lambda: not views[0].entries)
    await one.claim("run-2", "rollout", most=1)
    await stale.release("run-1")
    assert (await buckets[1].get("rollout-0")).value == b'"run-2"'


async def test_a_trainer_that_is_gone_is_replaced_by_one_that_is_free(two, buckets):
    one, _, _ = two
    workers, assignments = buckets
    assert await one.keep_trainer("run-1", "default")
    await until(lambda: one.run_of("trainer") == "run-1")
    assert await one.keep_trainer("run-1", "default")
    await workers.delete("trainer")
    await until(lambda: one.live.of_role("trainer") == [])
    assert not await one.keep_trainer("run-1", "default"), "none is free"
    assert (await assignments.get("trainer")).value == b'"run-1"', "it may come back"
    await workers.put("trainer-1", WorkerPresence(worker="trainer-1", role="trainer", incarnation="1").to_bytes())
    await until(lambda: one.live.of_role("trainer"))
    assert await one.keep_trainer("run-1", "default")
    assert (await assignments.get("trainer-1")).value == b'"run-1"'
    assert await assignments.get("trainer") is None


async def test_a_worker_serves_once_it_has_taken_the_run_up(two, buckets):
    one, _, _ = two
    await one.claim("run-1", "rollout", most=1)
    await until(lambda: one.run_of("rollout-0") == "run-1")
    assert one.serving("run-1", "rollout") == []
    await buckets[0].put("rollout-0", WorkerPresence(worker="rollout-0", role="rollout", incarnation="1", run_id="run-1").to_bytes())
    await until(lambda: len(one.serving("run-1", "rollout")) == 1)


async def test_an_unreadable_presence_hides_nobody_else(two, buckets):
    one, _, _ = two
    await buckets[0].put("broken", b'{"role": 1}')
    await until(lambda: "broken" in one._workers.entries)
    assert [worker.worker for worker in one.live.of_role("trainer")] == ["trainer"]


async def test_a_run_at_which_every_worker_of_a_role_fails_again_and_again_is_at_fault(two, buckets):
    one, _, _ = two
    workers, _ = buckets
    await one.claim("run-1", "rollout", most=2)
    await until(lambda: len(one.assigned_to("run-1")) == 2)

    async def show(name, **fields):
        presence = WorkerPresence(worker=name, role="rollout", incarnation="1", **fields)
        await workers.put(name, presence.to_bytes())
        await until(lambda: presence in one.live.of_role("rollout"))
        return one.run_fault("run-1")

    failed = {"failures": 3, "failure": "KeyError: 'a'"}
    assert await show("rollout-0", run_id="run-1", **failed) == "", "the other one may serve it"
    assert await show("rollout-1", run_id="run-0", **failed) == "", "these are failures of the run before"
    assert await show("rollout-1", run_id="run-1", failures=2) == ""
    assert (await show("rollout-1", run_id="run-1", **failed)).startswith(
        "rollout-0 failed 3 times in the same way: KeyError: 'a'; correct"
    )
    assert await show("rollout-1", run_id="run-1", reached=4) == "", "it serves the run"
    assert await show("rollout-1", run_id="run-1", fatal=True, trouble="the model has no tokenizer") == "the model has no tokenizer"
