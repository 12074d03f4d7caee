"""The boundary of a call: whatever a scorer raises becomes results."""

import pytest

from gradbus.v1 import reward_pb2
from gradbus_reward import service


@pytest.fixture
def broken():
    class Broken:
        async def score(self, _request, _seconds):
            raise TypeError("a fault of ours")

    return Broken()


async def test_a_fault_of_the_service_ends_the_run_that_met_it_and_is_not_waited_for(broken, ask):
    results = await service._results(broken, ask("a", "b"), 1.0)
    assert [(result.sample_id, result.status, result.permanent) for result in results] == [
        (f"0.{n}", reward_pb2.REWARD_STATUS_ERROR, True) for n in range(2)
    ]
    assert "TypeError: a fault of ours" in results[0].reason
