"""The processes of graders: how many there are, which run has them, and when they end."""

import asyncio
import time

import psutil
import pytest

from gradbus.sandbox.budget import ProcessBudget
from gradbus.sandbox.process import SourceError
from gradbus_reward.sandbox import pool as pool_module
from gradbus_reward.sandbox import process
from gradbus_reward.sandbox.pool import GraderPool, PoolSettings
from gradbus_reward.sandbox.process import GraderProcess

GOOD = "def grade(sample, item):\n    return 1.0"
HANGS = "def grade(sample, item):\n    while sample['output_text'] == 'hang': pass\n    return 1.0"
COUNTS = "n = 0\ndef grade(sample, item):\n    global n\n    n += 1\n    return n"
SLOW_TO_LOAD = "import time\ntime.sleep(2)\n" + GOOD
TICKS = """
import signal, time
ticks = 0
def tick(*_):
    global ticks
    ticks += 1
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
def grade(sample, item):
    return ticks
"""


def row(text=""):
    return (text, "stop", "{}")


@pytest.fixture
async def pools():
    made = []

    def make(source, budget=None, processes=1):
        made.append(GraderPool({"grader": source}, PoolSettings(processes), budget or ProcessBudget(8)))
        return made[-1]

    yield make
    for pool in made:
        await pool.close()


def children():
    return {child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


def rewards(call):
    return [call.results[n]["grader"][0] for n in sorted(call.results)]


async def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came"
        await asyncio.sleep(0.02)


async def test_a_pool_starts_no_more_processes_than_it_may_and_keeps_them(pools):
    before = children()
    pool = pools(COUNTS, processes=2)
    calls = await asyncio.gather(*(pool.grade([row()] * 70, frozenset(), 60.0) for _ in range(4)))
    assert len(children() - before) <= 2
    assert sum(len(call.results) for call in calls) == 280
    await pool.close()
    await until(lambda: children() <= before)


async def test_pools_count_by_themselves(pools):
    first, second = pools(COUNTS), pools(COUNTS)
    assert rewards(await first.grade([row()] * 3, frozenset(), 60.0)) == [1.0, 2.0, 3.0]
    assert rewards(await second.grade([row()] * 3, frozenset(), 60.0)) == [1.0, 2.0, 3.0]


async def test_at_the_limit_the_idle_process_of_another_pool_makes_room(pools):
    before, budget = children(), ProcessBudget(1)
    first, second = pools(COUNTS, budget), pools(COUNTS, budget)
    for _ in range(2):
        assert rewards(await first.grade([row()], frozenset(), 60.0)) == [1.0], "a new process"
        assert rewards(await second.grade([row()], frozenset(), 60.0)) == [1.0], "a new process"
        assert len(children() - before) == 1


async def test_at_the_limit_a_busy_process_is_waited_for(pools):
    budget = ProcessBudget(1)
    busy, waiting = pools(HANGS, budget), pools(GOOD, budget)
    assert rewards(await busy.grade([row()], frozenset(), 60.0)) == [1.0]
    hanging = asyncio.create_task(busy.grade([row("hang")], frozenset(), 12.0))
    await asyncio.sleep(0.2)
    assert rewards(await waiting.grade([row()], frozenset(), 60.0)) == [1.0]
    assert "stopped after 3.0 s" in (await hanging).stopped[0]


async def test_a_start_that_outlasts_its_call_serves_the_next(pools):
    before, pool = children(), pools(SLOW_TO_LOAD)
    call = await pool.grade([row()], frozenset(), 0.2)
    assert (call.results, call.stopped) == ({}, {})
    assert rewards(await pool.grade([row()], frozenset(), 60.0)) == [1.0]
    assert len(children() - before) == 1


async def test_a_pool_that_is_closed_while_its_process_starts_leaves_none(pools):
    before, pool = children(), pools(SLOW_TO_LOAD)
    await pool.grade([row()], frozenset(), 0.2)
    await pool.close()
    await until(lambda: children() <= before)


async def test_a_call_that_is_cancelled_after_its_pool_was_closed_gives_its_process_back(pools):
    before, budget = children(), ProcessBudget(1)
    pool = pools(SLOW_TO_LOAD, budget)
    call = asyncio.create_task(pool.grade([row()], frozenset(), 60.0))
    await until(lambda: children() > before)
    await pool.close()
    call.cancel()
    await asyncio.wait({call})
    await until(lambda: children() <= before)
    assert rewards(await pools(GOOD, budget).grade([row()], frozenset(), 20.0)) == [1.0]


async def test_a_source_that_does_not_load_is_not_loaded_again_at_once(pools, monkeypatch):
    starts = []

    async def start(*arguments, start=GraderProcess.start, **options):
        starts.append(time.monotonic())
        return await start(*arguments, **options)

    monkeypatch.setattr(GraderProcess, "start", start)
    pool = pools("1 / 0")
    for _ in range(3):
        with pytest.raises(SourceError, match="ZeroDivisionError"):
            await pool.grade([row()], frozenset(), 60.0)
    assert len(starts) == 1
    monkeypatch.setattr(pool_module, "_FAULT_SECONDS", 0.0)
    with pytest.raises(SourceError, match="ZeroDivisionError"):
        await pool.grade([row()], frozenset(), 60.0)
    assert len(starts) == 2


async def test_a_source_that_never_loads_is_found_out_beyond_the_end_of_a_call(pools, monkeypatch):
    monkeypatch.setattr(process, "LOAD_SECONDS", 1.0)
    pool = pools("while True: pass")
    await pool.grade([row()], frozenset(), 0.2)
    with pytest.raises(SourceError, match="did not load"):
        await pool.grade([row()], frozenset(), 60.0)


async def test_between_batches_a_process_computes_nothing(pools):
    pool = pools(TICKS)
    (before,) = rewards(await pool.grade([row()], frozenset(), 60.0))
    await asyncio.sleep(1.0)
    (after,) = rewards(await pool.grade([row()], frozenset(), 60.0))
    assert after - before < 50, "a timer of 10 ms would have fired a hundred times"


async def test_results_that_came_before_a_process_stopped_are_kept(pools):
    pool = pools(COUNTS.replace("    n += 1\n", "    n += 1\n    while n == 4: pass\n"))
    call = await pool.grade([row()] * 6, frozenset(), 20.0)
    assert rewards(call) == [1.0, 2.0, 3.0, 1.0, 2.0]
    assert list(call.stopped) == [3]


@pytest.fixture
def tries(monkeypatch):
    """The rows of every message that a process got."""
    seen = []

    async def grade(self, rows, *arguments, grade=GraderProcess.grade, **options):
        seen.append([text for text, *_ in rows])
        await grade(self, rows, *arguments, **options)

    monkeypatch.setattr(GraderProcess, "grade", grade)
    return seen


async def test_a_grader_that_never_had_a_result_is_not_tried_anew_by_every_call(pools, tries):
    pool = pools(HANGS)
    calls = await asyncio.gather(*(pool.grade([row("hang")] * 3, frozenset(), 16.0) for _ in range(4)))
    calls.append(await pool.grade([row("hang")] * 3, frozenset(), 16.0))
    assert sum(len(call.stopped) for call in calls) == 2
    assert {call.stops[-1] for call in calls} == {"the grader was stopped after 4.0 s; bound its work per sample"}
    assert [call.results for call in calls] == [{}] * 5
    assert len(tries) == 2, "the first two rows have found it out for all the others"


async def test_a_grader_that_never_had_a_result_is_tried_again_after_a_moment(pools, monkeypatch):
    pool = pools(HANGS)
    await pool.grade([row("hang")] * 3, frozenset(), 4.0)
    monkeypatch.setattr(pool_module, "_USELESS_SECONDS", 0.0)
    assert rewards(await pool.grade([row("good")], frozenset(), 60.0)) == [1.0]
    monkeypatch.undo()
    hung = await pool.grade([row("hang")] * 3, frozenset(), 10.0)
    assert len(hung.stopped) == 2
    assert rewards(await pool.grade([row("good")], frozenset(), 60.0)) == [1.0], "one that has graded is never given up"


async def test_a_grader_that_stops_on_all_that_is_new_counts_as_one_without_results(pools, monkeypatch):
    monkeypatch.setattr(pool_module, "_VAIN_CALLS", 2)
    pool = pools(HANGS)
    await pool.grade([row("good")], frozenset(), 60.0)
    for _ in range(pool_module._VAIN_CALLS):
        assert pool.has_results
        assert (await pool.grade([row("hang")], frozenset(), 3.0)).stops
    assert not pool.has_results
    tried_again = await pool.grade([row("good")], frozenset(), 60.0)
    assert tried_again.results == {}, "for a moment no call tries it"


async def test_samples_that_are_tried_again_prove_nothing_about_their_grader(pools, monkeypatch):
    monkeypatch.setattr(pool_module, "_VAIN_CALLS", 2)
    pool = pools(HANGS)
    await pool.grade([row("good")], frozenset(), 60.0)
    for _ in range(pool_module._VAIN_CALLS):
        assert (await pool.grade([row("hang")], frozenset({0}), 3.0)).stops
    assert pool.has_results


async def test_the_idle_processes_of_the_other_runs_make_room_in_turn(pools):
    budget = ProcessBudget(2)
    first, second, third = (pools(COUNTS, budget) for _ in range(3))
    for pool in (first, second, third, first, second):
        assert rewards(await pool.grade([row()], frozenset(), 60.0)) == [1.0], "a new process"
    assert rewards(await first.grade([row()], frozenset(), 60.0)) == [2.0], "the third made room for the second, not the first again"
