"""Thousands of episodes through the real service: what `loadtests/agent_*.py` measure, and what must hold at any speed."""

import pytest
from agent_endpoint import Load, play, running
from agent_queue import Queue


async def played(folder, episodes, turns, tool_seconds=0.0, rate=0.0):
    load = Load("many", episodes, turns, tool_seconds, rate)
    with running(folder) as service:
        await play(service, load)
    assert sorted(load.claimed) == sorted(f"train.0.{number}.0" for number in range(episodes)), "each one was claimed once"
    assert load.rewards == [1.0] * episodes
    assert len(load.waits) == episodes * turns, "each agent got the turns of its own episode"


async def test_episodes_side_by_side_are_not_confused(tmp_path):
    await played(tmp_path, 64, 3)


async def test_agents_that_ask_at_an_even_rate_play_all_their_turns(tmp_path):
    await played(tmp_path, 16, 3, rate=100.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thousand_episodes_are_not_confused(tmp_path):
    await played(tmp_path, 1000, 8, 0.05)


async def queued(folder, waiting):
    with running(folder) as service:
        queue = Queue(service, "queue", waiting)
        await queue.offer()
        load = Load("beside", 8, 3, 0.0)
        await play(service, load)
        await queue.ask()
        await play(service, Load("again", 8, 3, 0.0))
        await queue.answer()
    assert load.rewards == [1.0] * 8, "others are played beside them"


async def test_episodes_that_wait_are_claimed_once_and_their_requests_get_their_own_turns(tmp_path):
    await queued(tmp_path, 150)
