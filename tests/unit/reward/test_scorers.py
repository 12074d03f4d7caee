"""The scorers that are kept, when more runs come than there is room for."""

import asyncio
import json

from gradbus_reward.service import Scorers
from gradbus_reward.settings import RewardSettings


def section(number):
    source = f"def grade(sample, item):\n    return {number}.0\n"
    return json.dumps({"grader": {"type": "python", "source": source}})


async def test_a_scorer_that_is_asked_for_while_others_are_closed_is_not_closed_under_its_call(ask):
    scorers = Scorers(RewardSettings(scorers=1, python_graders=True, allow_unisolated_network=True))

    async def reward(number):
        async with scorers.use(section(number)) as kept:
            (answer,) = await kept.scorer.score(ask("12"), 60.0)
            return answer.reward

    async with scorers.use(section(1)):
        await reward(1)  # its process takes a moment to end
        async with scorers.use(section(2)), scorers.use(section(3)):
            pass
    assert await asyncio.gather(reward(4), reward(2)) == [4.0, 2.0]
    await scorers.close()
