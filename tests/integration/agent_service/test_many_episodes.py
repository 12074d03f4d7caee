"""A thousand episodes at once through the real service: what `loadtests/agent_endpoint.py` measures, and what must hold at any speed."""

import pytest
from agent_endpoint import Load, play, running


async def played(folder, episodes, turns, tool_seconds):
    load = Load("many", episodes, turns, tool_seconds)
    with running(folder) as service:
        await play(service, load)
    assert sorted(load.claimed) == sorted(f"train.0.{number}.0" for number in range(episodes)), "each one was claimed once"
    assert load.rewards == [1.0] * episodes
    assert len(load.waits) == episodes * turns, "each agent got the turns of its own episode"


async def test_episodes_side_by_side_are_not_confused(tmp_path):
    await played(tmp_path, 64, 3, 0.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thousand_episodes_are_not_confused(tmp_path):
    await played(tmp_path, 1000, 8, 0.05)
