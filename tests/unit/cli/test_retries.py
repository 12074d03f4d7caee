"""Requests are retried while the gateway restarts; one that stays unavailable is an error."""

import pytest

from gradbus.client import RetryPolicy
from gradbus.errors import ApiError, StackError


class Gateway:
    """Fails as often as it is told to, then answers."""

    def __init__(self, failures, error=None):
        self.failures = failures
        self.error = error or StackError("the gateway at http://there does not answer (refused); see `gradbus status`")
        self.asked = 0

    def __call__(self):
        self.asked += 1
        if self.asked <= self.failures:
            raise self.error
        return "here"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that passes only by sleeping."""
    now = [100.0]
    monkeypatch.setattr("gradbus.client.retries.time.monotonic", lambda: now[0])
    monkeypatch.setattr("gradbus.client.retries.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_an_answer_at_once_is_given_at_once(clock):
    assert RetryPolicy(notify=pytest.fail).run(Gateway(0)) == "here"
    assert clock[0] == 100.0


def test_a_restart_is_waited_for_and_said_once():
    said = []
    gateway = Gateway(5)
    assert RetryPolicy(15.0, said.append).run(gateway) == "here"
    assert gateway.asked == 6
    assert said == ["the gateway at http://there does not answer (refused); retrying for 15 s"]


def test_a_gateway_that_stays_away_is_an_error_in_time(clock):
    with pytest.raises(StackError, match="gradbus status"):
        RetryPolicy(15.0).run(Gateway(1000))
    assert clock[0] <= 115.0


def test_a_gateway_that_names_a_time_is_not_asked_before_it(clock):
    gateway = Gateway(2, ApiError(429, {"title": "Too many requests", "detail": "send fewer"}, retry_after=3.0))
    said = []
    assert RetryPolicy(15.0, said.append).run(gateway) == "here"
    assert 106.0 <= clock[0] <= 107.5
    assert said == ["429 Too many requests: send fewer; retrying for 15 s"]


def test_a_time_that_is_too_far_away_is_not_waited_for(clock):
    with pytest.raises(ApiError, match="send fewer"):
        RetryPolicy(15.0).run(Gateway(1, ApiError(429, {"title": "Too many requests", "detail": "send fewer"}, retry_after=60.0)))
    assert clock[0] == 100.0


def test_a_refusal_is_not_asked_again():
    gateway = Gateway(1, ApiError(404, {"title": "No such run"}))
    with pytest.raises(ApiError):
        RetryPolicy().run(gateway)
    assert gateway.asked == 1
