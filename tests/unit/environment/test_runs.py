"""Sessions of a run, in a world that this process plays."""

import asyncio

import pytest

from gradbus.spec.sections import EnvironmentSpec
from gradbus_environment.contract import Answer, Opening
from gradbus_environment.runs import OpenRun


class SlowWorld:
    """Begins a session and then takes its time to say so."""

    def __init__(self):
        self.begun, self.open_sessions = asyncio.Event(), set()

    async def open(self, session, seconds):
        self.open_sessions.add(session.id)
        self.begun.set()
        await asyncio.sleep(seconds)

    async def close(self, session):
        await asyncio.sleep(0)
        self.open_sessions.remove(session.id)


class QuickWorld(SlowWorld):
    """Begins a session at once."""

    async def open(self, session, seconds):
        self.open_sessions.add(session.id)
        return Answer()


async def test_sessions_of_workers_that_are_gone_are_closed_and_no_others():
    world = QuickWorld()
    run = OpenRun(EnvironmentSpec(service="http://127.0.0.1:1/"), world)
    openings = [Opening("r", f"e{n}", 0, "{}", 1, player) for n, player in enumerate(("p", "p", "p", ""))]
    sessions = [(await run.open(opening, 60.0, worker))[0] for opening, worker in zip(openings, ("a", "b", "", "a"), strict=True)]
    await run.close_lost({"a", "c"})
    assert world.open_sessions == set(sessions[1:]), "the last one has a journal"
    await run.close_lost(set())
    assert [run.has(session) for session in sessions] == [False, True, True, True]


async def test_a_caller_who_gives_up_an_opening_leaves_no_session_at_the_server():
    world = SlowWorld()
    run = OpenRun(EnvironmentSpec(service="http://127.0.0.1:1/"), world)
    opening = asyncio.create_task(run.open(Opening(run_id="r", episode_id="e", attempt=0, item_json="{}", seed=1), 60.0))
    await world.begun.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (world.open_sessions, run.is_empty) == (set(), True)
