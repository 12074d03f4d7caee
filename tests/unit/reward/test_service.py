"""The boundary of a call: whatever a scorer raises becomes results."""

import sys
from types import SimpleNamespace

import pytest

from gradbus.v1 import reward_pb2
from gradbus_reward import service
from gradbus_reward.scorers.factory import ScorerSettings


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


async def test_comparisons_of_long_texts_let_the_event_loop_go_on_soon(monkeypatch):
    """A thread keeps the interpreter for the whole interval, and each step of every run's calls would wait for the threads of all."""

    def no_server(_options):
        raise ConnectionRefusedError

    monkeypatch.setattr(service, "RpcServer", no_server)
    settings = SimpleNamespace(python_graders=False, scorer=ScorerSettings(), scorers=1, calls_per_scorer=1, rpc=None)
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)  # Python's own
    try:
        with pytest.raises(ConnectionRefusedError):
            await service.serve(settings, SimpleNamespace())
        assert sys.getswitchinterval() <= 0.0005
    finally:
        sys.setswitchinterval(before)
