"""Scorers in metrics: their names, their results, and the causes of their failures."""

import json

import pytest

from gradbus.telemetry import Metrics
from gradbus.v1.reward_pb2 import REWARD_STATUS_ERROR, REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward, ScoreSample
from gradbus_reward.scorers import results, telemetry


@pytest.fixture
def read(monkeypatch):
    metrics = Metrics()
    monkeypatch.setattr(telemetry, "PROCESS", metrics)
    monkeypatch.setattr(results, "PROCESS", metrics)
    return lambda name: {tuple(point.attributes.values()): point.value for point in metrics.read(name)}


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"service": "grpc://my-reward:50051"}, "my-reward:50051"),
        ({"service": "https://user:secret@scorer.example/score?key=1"}, "scorer.example"),
        ({"grader": {"type": "string_check", "input": "a", "operation": "eq", "reference": "a"}}, "graders"),
        ({"nonsense": 1}, "graders"),
    ],
)
def test_a_scorer_is_named_by_its_host_and_never_by_what_is_secret(section, name):
    assert telemetry.scorer_name(json.dumps(section)) == name


def test_samples_are_counted_by_status(read):
    returned = [SampleReward(status=status) for status in (REWARD_STATUS_OK, REWARD_STATUS_OK, REWARD_STATUS_INVALID)]
    mine = telemetry.CallMetrics("mine")
    assert read("gradbus.reward.samples") == {("mine", "ok"): 0, ("mine", "invalid"): 0, ("mine", "error"): 0}
    mine.count_results(returned)
    assert read("gradbus.reward.samples") == {("mine", "ok"): 2, ("mine", "invalid"): 1, ("mine", "error"): 0}


def test_a_call_is_in_flight_until_it_goes(read):
    mine = telemetry.CallMetrics("mine")
    mine.add_in_flight(1)
    assert read("gradbus.reward.calls") == {("mine",): 1}
    mine.add_in_flight(-1)
    assert read("gradbus.reward.calls") == {("mine",): 0}


def test_errors_are_counted_by_their_cause(read):
    samples = [ScoreSample(sample_id=name) for name in "abcde"]
    returned = [
        SampleReward(sample_id="a", status=REWARD_STATUS_ERROR, reason="it broke"),
        SampleReward(sample_id="b", status=REWARD_STATUS_OK, reward=float("nan")),
        SampleReward(sample_id="c", status=REWARD_STATUS_OK, reward=1.0),
        SampleReward(sample_id="d", status=REWARD_STATUS_OK, reward=1.0),
        SampleReward(sample_id="d", status=REWARD_STATUS_OK, reward=1.0),
    ]
    results.complete_results(samples, returned)
    results.failed_results(samples, "too slow", "timeout")
    assert read("gradbus.reward.failures") == {("scorer",): 1, ("malformed",): 2, ("missing",): 1, ("timeout",): 5}
