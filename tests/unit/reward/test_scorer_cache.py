"""The cache of scorers, with more runs than it has room for."""

import asyncio
import json

import psutil
import pytest

from gradbus_reward.sandbox.process import GraderProcess
from gradbus_reward.scorers import cache
from gradbus_reward.scorers.cache import ScorerCache
from gradbus_reward.settings import RewardSettings


def section(number):
    source = f"def grade(sample, item):\n    return {number}.0\n"
    return json.dumps({"grader": {"type": "python", "source": source}})


async def test_a_scorer_that_is_used_while_others_are_closed_is_not_closed_under_its_call(ask, monkeypatch):
    monkeypatch.setattr(cache, "_KEPT_SECONDS", 0.0)
    settings = RewardSettings(python_graders=True, allow_unisolated_network=True)
    scorers = ScorerCache(settings.scorer, size=1, concurrency=32)

    async def reward(number):
        async with scorers.use("run-1", section(number)) as entry:
            (result,) = await entry.scorer.score(ask("12"), 60.0)
            return result.reward

    async with scorers.use("run-1", section(1)):
        await reward(1)  # its process takes a moment to end
        async with scorers.use("run-1", section(2)), scorers.use("run-1", section(3)):
            pass
    assert await asyncio.gather(reward(4), reward(2)) == [4.0, 2.0]
    await scorers.close()


COUNTS = json.dumps({"grader": {"type": "python", "source": "n = 0\ndef grade(sample, item):\n    global n\n    n += 1\n    return n"}})


@pytest.fixture
async def scorers():
    made = ScorerCache(RewardSettings(python_graders=True, allow_unisolated_network=True).scorer, size=8, concurrency=1)
    yield made
    await made.close()


async def score(scorers, run_id, request):
    async with scorers.use(run_id, COUNTS) as entry:
        return [result.reward for result in await entry.scorer.score(request, 60.0)]


async def test_a_counter_in_one_runs_grader_does_not_go_on_in_anothers(scorers, ask):
    assert await score(scorers, "run-1", ask("a", "b")) == [1.0, 2.0]
    assert await score(scorers, "run-2", ask("a", "b")) == [1.0, 2.0]
    assert await score(scorers, "run-1", ask("a", "b")) == [3.0, 4.0]


async def test_calls_of_one_run_take_no_slot_of_anothers(scorers, ask):
    async with scorers.use("run-1", COUNTS) as entry, entry.slots:
        assert entry.slots.locked()
        async with scorers.use("run-2", COUNTS) as other:
            assert not other.slots.locked()


async def test_what_no_call_holds_for_a_while_ends_with_its_processes(scorers, ask):
    before = set(psutil.Process().children())
    await score(scorers, "run-1", ask("a"))
    (child,) = set(psutil.Process().children()) - before
    await scorers.close_idle(3600.0)
    assert child.is_running()
    async with scorers.use("run-1", COUNTS):
        await scorers.close_idle(0.0)
        assert child.is_running(), "a call holds it"
    await scorers.close_idle(0.0)
    assert not child.is_running()
    assert await score(scorers, "run-1", ask("a")) == [1.0]


async def test_more_runs_than_the_cache_has_room_for_do_not_close_each_others_scorers(ask, monkeypatch):
    monkeypatch.setattr(cache, "_KEPT_SECONDS", 3600.0)
    scorers = ScorerCache(RewardSettings(python_graders=True, allow_unisolated_network=True).scorer, size=1, concurrency=1)
    for count in (1.0, 2.0):
        assert [await score(scorers, f"run-{n}", ask("a")) for n in range(3)] == [[count]] * 3
    await scorers.close()


async def test_a_call_waits_for_no_process_of_another_run_to_end(ask, monkeypatch):
    may_end = asyncio.Event()

    async def stop(self, stop=GraderProcess.stop):
        await may_end.wait()
        return await stop(self)

    scorers = ScorerCache(RewardSettings(python_graders=True, allow_unisolated_network=True).scorer, size=1, concurrency=1)
    before = set(psutil.Process().children())
    await score(scorers, "run-1", ask("a"))
    (child,) = set(psutil.Process().children()) - before
    monkeypatch.setattr(GraderProcess, "stop", stop)
    monkeypatch.setattr(cache, "_KEPT_SECONDS", 0.0)
    async with asyncio.timeout(60), scorers.use("run-2", COUNTS):
        assert child.is_running()
    may_end.set()
    await scorers.close()
    assert not child.is_running()
