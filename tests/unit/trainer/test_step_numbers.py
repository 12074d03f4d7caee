"""A step as metrics."""

import pytest

from gradbus.telemetry import Numbers
from gradbus_trainer import step_numbers
from gradbus_trainer.learner import LossMetrics, RatioMetrics, StepMetrics
from gradbus_trainer.rows import BatchFacts
from gradbus_trainer.step_numbers import StepNumbers

METRICS = StepMetrics(
    noop=False,
    learning_rate=1e-3,
    tokens=120,
    grad_norm=2.0,
    loss=LossMetrics(1.0, 0.5, 0.25, 3.0),
    ratio=RatioMetrics(1.1, 4.0, 0.1, 0.2, 0.01),
)
SECONDS = {"wait": 1.0, "train": 2.0, "publish": 0.5}


def facts(**changes):
    made = BatchFacts(rewards=[0.0, 1.0], staleness=[0, 1], lengths=[10, 30], truncated=1, masked=2, **changes)
    made.components["shape"] = [2.0, 2.0]
    made.left["trained"].add([10, 30])
    made.left["dropped"].add([])
    made.left["dropped"].add([90, 110])
    return made


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.setattr(step_numbers, "are_read", lambda: True)
    numbers = Numbers()
    steps = StepNumbers(numbers)
    return steps, lambda name: {tuple(one.attributes.values()): one.value for one in numbers.read(name)}


def test_time_is_added_up_by_phase(shown):
    steps, read = shown
    for _ in range(2):
        steps.step(METRICS, facts(), SECONDS)
    assert read("gradbus.run.time") == {("wait",): 2.0, ("train",): 4.0, ("publish",): 1.0}
    assert read("gradbus.trained.steps") == {(): 2}
    assert read("gradbus.trained.tokens") == {(): 240}


def test_rewards_have_a_mean_and_a_spread_by_part(shown):
    steps, read = shown
    steps.step(METRICS, facts(), SECONDS)
    assert read("gradbus.reward.mean") == {("reward",): 0.5, ("shape",): 2.0}
    assert read("gradbus.reward.deviation") == {("reward",): 0.5, ("shape",): 0.0}


def test_a_part_that_is_gone_has_no_curve_any_more_and_a_hundred_parts_have_sixteen(shown):
    steps, read = shown
    many = facts()
    many.components.update({f"part-{number}": [float(number)] for number in range(100)})
    steps.step(METRICS, many, SECONDS)
    assert len(read("gradbus.reward.mean")) == 16 + 2, "sixteen, the rest as one, and the whole"
    steps.step(METRICS, facts(), SECONDS)
    assert set(read("gradbus.reward.mean")) == {("reward",), ("shape",)}


def test_a_step_that_changed_nothing_leaves_the_policys_curves_where_they_were(shown):
    steps, read = shown
    steps.step(METRICS, facts(), SECONDS)
    steps.step(StepMetrics(noop=True, learning_rate=1e-3), BatchFacts(), SECONDS)
    assert read("gradbus.policy.entropy") == {(): 3.0}
    assert read("gradbus.policy.clipped") == {("low",): 0.1, ("high",): 0.2}
    assert read("gradbus.reward.mean")["reward",] == 0.5


def test_length_by_verdict_is_tokens_by_samples(shown):
    steps, read = shown
    steps.step(METRICS, facts(), SECONDS)
    assert read("gradbus.groups") == {("trained",): 1, ("filtered",): 0, ("dropped",): 2}
    assert read("gradbus.groups.tokens")["dropped",] / read("gradbus.groups.samples")["dropped",] == 100
    assert read("gradbus.response.length") == {("mean",): 20, ("p95",): 30, ("max",): 30}
    assert read("gradbus.response.truncated") == {(): 0.5}


def test_nothing_is_worked_out_for_nobody(shown, monkeypatch):
    steps, read = shown
    monkeypatch.setattr(step_numbers, "are_read", lambda: False)
    steps.step(METRICS, facts(), SECONDS)
    assert read("gradbus.reward.mean") == {}
