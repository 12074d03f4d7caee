"""Sessions of a run, in a world that this process plays."""

import asyncio

import pytest

from gradbus.spec.sections import EnvironmentSpec
from gradbus_environment.contract import Opening
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


async def test_a_caller_who_gives_up_an_opening_leaves_no_session_at_the_server():
    world = SlowWorld()
    run = OpenRun(EnvironmentSpec(service="http://127.0.0.1:1/"), world)
    opening = asyncio.create_task(run.open(Opening(run_id="r", episode_id="e", attempt=0, item_json="{}", seed=1), 60.0))
    await world.begun.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (world.open_sessions, run.is_empty) == (set(), True)
