import json

import pytest

from gradbus.sandbox.budget import ProcessBudget
from gradbus.v1 import reward_pb2
from gradbus_reward.graders.base import Capacity
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer


def asked(*responses, run_id="run-1", **item):
    """A request with one sample per response; item.n is the sample's number."""
    samples = [
        reward_pb2.ScoreSample(
            sample_id=f"0.{n}", response=text, finish_reason="stop", item_json=json.dumps({"n": n, "answer": "12"} | item)
        )
        for n, text in enumerate(responses)
    ]
    return reward_pb2.ScoreRequest(run_id=run_id, samples=samples)


@pytest.fixture
async def grader_scorer():
    """Makes scorers for graders; they are closed at the end."""
    made = []

    def make(grader, budget=None, **settings):
        allowed = {"python_graders": True, "pool": PoolSettings(processes=1)} | settings
        made.append(create_scorer(json.dumps({"grader": grader}), ScorerSettings(**allowed), Capacity(budget or ProcessBudget(8))))
        return made[-1]

    yield make
    for scorer in made:
        await scorer.close()


@pytest.fixture
def ask():
    return asked


@pytest.fixture
def grade(grader_scorer):
    """Grades samples by a Python source."""

    async def run(source, *responses, seconds=60.0):
        return await grader_scorer({"type": "python", "source": source}).score(asked(*(responses or ("12",))), seconds)

    return run
