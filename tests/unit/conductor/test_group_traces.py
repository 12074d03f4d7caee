"""What the trace of a group says of its rewards."""

import pytest

from gradbus.v1.reward_pb2 import SampleReward
from gradbus_conductor.groups.traces import ServiceCall


def recorded(rewards):
    call = ServiceCall({7: "traced"})
    call.answered(7, rewards)
    return call.results[7]


def test_the_parts_of_a_group_are_lists_in_order_of_its_samples():
    rewards = [SampleReward(reward=1.0, components={"a": 0.5}), SampleReward(reward=2.0, components={"b": 3.0})]
    assert recorded(rewards) == {
        "gradbus.rewards": [1.0, 2.0],
        "gradbus.reward.part.a": [0.5, 0.0],
        "gradbus.reward.part.b": [0.0, 3.0],
    }


def test_a_group_that_is_not_traced_records_nothing():
    call = ServiceCall({})
    call.answered(7, [SampleReward(reward=1.0)])
    assert call.results == {}


@pytest.mark.timeout(60)
def test_a_scorer_that_names_the_parts_of_every_sample_differently_records_few():
    rewards = [SampleReward(components={f"{n}.{part}": 1.0 for part in range(60)}) for n in range(1024)]
    assert len(recorded(rewards)) == 1 + 64
