"""How long an agent may do nothing, and how long it may only beat."""

import pytest

from gradbus_agent.episodes import lease as module
from gradbus_agent.episodes.lease import Lease


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass: a list of one."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_an_agent_that_does_nothing_is_given_up(clock):
    lease = Lease(60.0)
    clock[0] += 59
    assert lease.left == 1
    lease.renew()
    clock[0] += 60
    assert lease.left <= 0
    assert lease.why_over() == "did nothing for 60 s; let it send a beat while it works, or raise environment.step_seconds"


@pytest.mark.parametrize(("seconds", "most"), [(60.0, 600.0), (5.0, 600.0), (100.0, 1000.0)])
def test_beats_keep_an_agent_for_a_while(clock, seconds, most):
    lease, began = Lease(seconds), clock[0]
    while lease.left > 0:
        clock[0] += 1
        lease.beat()
    assert clock[0] - began == most
    assert lease.why_over().startswith(f"asked nothing new for {most:g} s; ")
    lease.renew()
    assert lease.left == seconds


def test_after_a_limit_beats_count_no_more(clock):
    lease = Lease(60.0)
    clock[0] += 30
    lease.renew_last()
    clock[0] += 59
    lease.beat()
    assert lease.left == 1
    clock[0] += 1
    lease.beat()
    assert lease.left <= 0
    assert lease.why_over().startswith("did not end it within 60 s of the run's limit; ")
