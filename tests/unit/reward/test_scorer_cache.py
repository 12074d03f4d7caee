"""The cache of scorers, with more runs than it has room for."""

import asyncio
import json

from gradbus_reward.scorers.cache import ScorerCache
from gradbus_reward.settings import RewardSettings


def section(number):
    source = f"def grade(sample, item):\n    return {number}.0\n"
    return json.dumps({"grader": {"type": "python", "source": source}})


async def test_a_scorer_that_is_used_while_others_are_closed_is_not_closed_under_its_call(ask):
    settings = RewardSettings(python_graders=True, allow_unisolated_network=True)
    scorers = ScorerCache(settings.scorer, size=1, concurrency=32)

    async def reward(number):
        async with scorers.use(section(number)) as entry:
            (result,) = await entry.scorer.score(ask("12"), 60.0)
            return result.reward

    async with scorers.use(section(1)):
        await reward(1)  # its process takes a moment to end
        async with scorers.use(section(2)), scorers.use(section(3)):
            pass
    assert await asyncio.gather(reward(4), reward(2)) == [4.0, 2.0]
    await scorers.close()
