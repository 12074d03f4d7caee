"""A step as metrics."""

from dataclasses import replace

import pytest

from gradbus.algorithms import Coefficients
from gradbus.telemetry import Metrics
from gradbus_trainer.learners.base import CriticMetrics, LossMetrics, PreferenceMetrics, RatioMetrics, StepMetrics
from gradbus_trainer.step.batch_builder import BatchStats
from gradbus_trainer.telemetry import step_metrics
from gradbus_trainer.telemetry.step_metrics import StepMetricsRecorder

METRICS = StepMetrics(
    noop=False,
    learning_rate=1e-3,
    tokens=120,
    grad_norm=2.0,
    loss=LossMetrics(1.0, 0.5, 0.25, 3.0),
    ratio=RatioMetrics(1.1, 4.0, 0.1, 0.2, 0.01),
)
SECONDS = {"wait": 1.0, "train": 2.0, "publish": 0.5}


def stats(**changes):
    made = BatchStats(rewards=[0.0, 1.0], staleness=[0, 1], lengths=[10, 30], truncated=1, masked=2, **changes)
    made.components["shape"] = [2.0, 2.0]
    made.by_verdict["trained"].add([10, 30])
    made.by_verdict["dropped"].add([])
    made.by_verdict["dropped"].add([90, 110])
    return made


@pytest.fixture
def exporting(monkeypatch):
    monkeypatch.setattr(step_metrics, "is_exporting", lambda: True)
    metrics = Metrics()
    steps = StepMetricsRecorder(metrics)
    return steps, lambda name: {tuple(one.attributes.values()): one.value for one in metrics.read(name)}


def test_time_is_added_up_by_phase(exporting):
    steps, read = exporting
    for _ in range(2):
        steps.step(METRICS, stats(), SECONDS)
    assert read("gradbus.run.time") == {("wait",): 2.0, ("train",): 4.0, ("publish",): 1.0}
    assert read("gradbus.trained.steps") == {(): 2}
    assert read("gradbus.trained.tokens") == {(): 240}


def test_rewards_have_a_mean_and_a_deviation_by_part(exporting):
    steps, read = exporting
    steps.step(METRICS, stats(), SECONDS)
    assert read("gradbus.reward.mean") == {("reward",): 0.5, ("shape",): 2.0}
    assert read("gradbus.reward.std") == {("reward",): 0.5, ("shape",): 0.0}
    assert read("gradbus.reward.range") == {("min",): 0.0, ("max",): 1.0}


def test_a_part_that_is_gone_has_no_curve_any_more_and_a_hundred_parts_have_sixteen(exporting):
    steps, read = exporting
    many = stats()
    many.components.update({f"part-{number}": [float(number)] for number in range(100)})
    steps.step(METRICS, many, SECONDS)
    assert len(read("gradbus.reward.mean")) == 16 + 2, "sixteen, the rest as one, and the whole"
    steps.step(METRICS, stats(), SECONDS)
    assert set(read("gradbus.reward.mean")) == {("reward",), ("shape",)}


def test_a_step_that_changed_nothing_leaves_the_policys_curves_where_they_were(exporting):
    steps, read = exporting
    steps.step(METRICS, stats(), SECONDS)
    steps.step(StepMetrics(noop=True, learning_rate=1e-3), BatchStats(), SECONDS)
    assert read("gradbus.policy.entropy") == {(): 3.0}
    assert read("gradbus.policy.clip_fraction") == {("low",): 0.1, ("high",): 0.2}
    assert read("gradbus.reward.mean")["reward",] == 0.5


def test_what_only_some_algorithms_report_has_curves_where_they_do(monkeypatch):
    monkeypatch.setattr(step_metrics, "is_exporting", lambda: True)
    metrics = Metrics()
    loss, ratio = (
        replace(METRICS.loss, kl_max=7.0, drift=0.5),
        replace(METRICS.ratio, outliers=0.25, covariance_clipped=0.5, total_variation=0.125),
    )
    step = replace(METRICS, loss=loss, ratio=ratio, coefficients=Coefficients(0.1, 0.2))
    names = ["policy_loss", "kl", "kl_max", "outliers", "covariance_clipped", "total_variation", "kl_coefficient", "entropy_coefficient"]
    StepMetricsRecorder(metrics, names).step(step, stats(), SECONDS)
    found = {name: {tuple(one.attributes.values()): one.value for one in metrics.read(f"gradbus.policy.{name}")} for name in names[2:6]}
    assert found == {"kl_max": {(): 7.0}, "outliers": {(): 0.25}, "covariance_clipped": {(): 0.5}, "total_variation": {(): 0.125}}
    weights = {tuple(one.attributes.values()): one.value for one in metrics.read("gradbus.policy.coefficient")}
    assert weights == {("kl",): 0.1, ("entropy",): 0.2}
    assert list(metrics.read("gradbus.policy.drift")) == []


def test_a_critic_has_curves_of_its_own_also_in_a_warm_up_that_leaves_the_policy_alone(exporting):
    steps, read = exporting
    steps.step(METRICS, stats(), SECONDS)
    assert read("gradbus.critic.loss") == {}
    steps.step(replace(METRICS, noop=True, critic=CriticMetrics(0.5, -0.25, 2.0)), stats(), SECONDS)
    names = ("gradbus.critic.loss", "gradbus.critic.explained_variance", "gradbus.critic.grad_norm")
    assert [read(name) for name in names] == [{(): 0.5}, {(): -0.25}, {(): 2.0}]
    steps.step(StepMetrics(noop=True, learning_rate=1e-3), BatchStats(), SECONDS)
    assert read("gradbus.critic.loss") == {(): 0.5}, "a step that trained no critic"


def test_pairs_have_curves_of_their_own_and_none_of_sampling(exporting):
    steps, read = exporting
    steps.step(
        replace(METRICS, preference=PreferenceMetrics(0.75, 0.5, -3.0, -4.0)),
        BatchStats(sampled=False, scored=False, lengths=[4, 6]),
        SECONDS,
    )
    assert read("gradbus.preference.accuracy") == {(): 0.75}
    assert read("gradbus.preference.margin") == {(): 0.5}
    assert read("gradbus.preference.response") == {("chosen",): -3.0, ("rejected",): -4.0}
    assert read("gradbus.policy.loss") == {(): 1.0}
    assert read("gradbus.policy.learning_rate") == {(): 1e-3}
    assert read("gradbus.response.length")["mean",] == 5.0
    names = ("kl", "entropy", "ratio", "clip_fraction", "logprob_difference")
    assert [read(f"gradbus.policy.{name}") for name in names] == [{}] * 5
    assert read("gradbus.reward.mean") == {}
    assert set(read("gradbus.samples.staleness").values()) == {0}


def test_labelled_responses_have_curves_by_label_and_keep_what_a_step_lacks(exporting):
    steps, read = exporting
    learned = replace(METRICS, loss=replace(METRICS.loss, kl=0.25), preference=PreferenceMetrics(None, 0.5, 2.0, -3.0))
    steps.step(learned, BatchStats(sampled=False, scored=False), SECONDS)
    steps.step(replace(learned, preference=PreferenceMetrics(None, None, None, -4.0)), BatchStats(sampled=False, scored=False), SECONDS)
    assert read("gradbus.preference.response") == {("desirable",): 2.0, ("undesirable",): -4.0}
    assert (read("gradbus.preference.margin"), read("gradbus.policy.kl")) == ({(): 0.5}, {(): 0.25})
    assert read("gradbus.preference.accuracy") == {}


def test_completions_have_an_entropy_and_no_pairs(exporting):
    steps, read = exporting
    steps.step(METRICS, BatchStats(sampled=False, scored=False), SECONDS)
    assert read("gradbus.policy.entropy") == {(): 3.0}
    assert read("gradbus.policy.kl") == read("gradbus.preference.accuracy") == {}


def test_only_a_run_with_a_teacher_has_a_divergence_from_it(exporting):
    steps, read = exporting
    steps.step(METRICS, stats(), SECONDS)
    assert read("gradbus.policy.teacher_kl") == {}
    steps.step(replace(METRICS, teacher_kl=0.25), BatchStats(scored=False, staleness=[1]), SECONDS)
    assert read("gradbus.policy.teacher_kl") == {(): 0.25}


def test_each_kind_of_alarm_is_0_or_1(exporting):
    steps, read = exporting
    steps.alarms({"off_policy": 1, "kl_explosion": 0})
    assert read("gradbus.alarms") == {("off_policy",): 1, ("kl_explosion",): 0}
    steps.alarms({"off_policy": 0, "kl_explosion": 0})
    assert set(read("gradbus.alarms").values()) == {0}


def test_length_by_verdict_is_tokens_by_samples(exporting):
    steps, read = exporting
    steps.step(METRICS, stats(), SECONDS)
    assert read("gradbus.groups") == {("trained",): 1, ("filtered",): 0, ("dropped",): 2}
    assert read("gradbus.groups.tokens")["dropped",] / read("gradbus.groups.samples")["dropped",] == 100
    assert read("gradbus.response.length") == {("mean",): 20, ("p95",): 30, ("max",): 30}
    assert read("gradbus.response.truncated") == {(): 0.5}


def test_nothing_is_computed_without_an_exporter(exporting, monkeypatch):
    steps, read = exporting
    monkeypatch.setattr(step_metrics, "is_exporting", lambda: False)
    steps.step(METRICS, stats(), SECONDS)
    assert read("gradbus.reward.mean") == {}
