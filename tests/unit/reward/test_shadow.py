"""Shadow scorers: their rewards are beside the one that trains, and whatever they do changes nothing of it."""

import json

import pytest

from gradbus.algorithms import SHADOW
from gradbus.v1 import reward_pb2
from gradbus_reward.graders.base import Capacity
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer
from gradbus_reward.scorers.results import failed_results
from gradbus_reward.scorers.shadow import ShadowedScorer

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR
EXACT = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
LENGTH = {"type": "length", "full": 2, "zero": 4}


def section(shadow, **more):
    return {"grader": {"type": "multi", "graders": {"exact": EXACT}, "calculate_output": "exact"}, "shadow": shadow, **more}


async def scored(request, reward, seconds=30.0):
    scorer = create_scorer(json.dumps(reward), ScorerSettings(python_graders=True), Capacity())
    try:
        return await scorer.score(request, seconds)
    finally:
        await scorer.close()


async def test_what_a_shadow_gives_is_a_component_with_its_difference(ask):
    first, second = await scored(ask("12", "123"), section({"length": {"grader": LENGTH}}))
    assert (first.reward, dict(first.components)) == (1.0, {"exact": 1.0, "shadow.length": 1.0, "shadow.length.difference": 0.0})
    assert (second.reward, dict(second.components)) == (0.0, {"exact": 0.0, "shadow.length": 0.5, "shadow.length.difference": 0.5})


FAILING = {
    "raises": {"grader": {"type": "python", "source": "def grade(s, i):\n    raise ValueError"}},
    "hangs": {"grader": {"type": "python", "source": "def grade(s, i):\n    while True: pass"}},
    "does not load": {"grader": {"type": "python", "source": "no Python"}},
    "not allowed": {"service": "http://169.254.169.254/"},
    "not there": {"service": "grpc://127.0.0.1:9"},
    "no column": {"grader": EXACT | {"reference": "{{ item.no }}"}},
}


@pytest.mark.parametrize("kind", FAILING)
async def test_a_shadow_that_fails_costs_no_sample_its_reward(ask, kind):
    with_shadow = await scored(ask("12", "13"), section({"bad": FAILING[kind], "good": {"grader": LENGTH}}), seconds=4.0)
    alone = await scored(ask("12", "13"), section({}))
    assert [(result.status, result.reward) for result in with_shadow] == [(result.status, result.reward) for result in alone]
    names = {name for result in with_shadow for name in result.components if name.startswith(SHADOW)}
    assert names == {"shadow.good", "shadow.good.difference"}


class Broken:
    async def score(self, _request, _deadline_seconds):
        raise RuntimeError("a fault of ours")

    async def close(self):
        pass


class Failing(Broken):
    async def score(self, request, _deadline_seconds):
        return failed_results(request.samples, "away", "unreachable")


async def test_a_fault_in_a_shadow_is_logged_and_left_out(ask, grader_scorer):
    (result,) = await ShadowedScorer(grader_scorer(EXACT), {"s": Broken()}).score(ask("12"), 5.0)
    assert (result.status, result.reward, dict(result.components)) == (OK, 1.0, {})


async def test_a_sample_without_a_reward_gets_none_from_a_shadow(ask, grader_scorer):
    (result,) = await ShadowedScorer(Failing(), {"s": grader_scorer(EXACT)}).score(ask("12"), 5.0)
    assert (result.status, result.reward, dict(result.components)) == (ERROR, 0.0, {})
