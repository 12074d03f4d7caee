"""What a trainer reports of a step: the shares of its time, its critic, and alarms."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gradbus.control.runs import WorkerPresence
from gradbus.telemetry import Metrics
from gradbus_trainer.learners.base import CriticMetrics, LossMetrics, PreferenceMetrics, RatioMetrics, StepMetrics
from gradbus_trainer.step.batch_builder import BatchStats
from gradbus_trainer.telemetry.learning_alarms import LearningAlarms
from gradbus_trainer.telemetry.step_metrics import StepMetricsRecorder
from gradbus_trainer.telemetry.step_report import StepReporter

USUAL = StepMetrics(noop=False, learning_rate=1e-3, loss=LossMetrics(entropy=0.5))


class Events:
    """Keeps what is emitted."""

    def __init__(self):
        self.alarms = []

    def emit(self, kind, message, data, level="info", key=""):
        if kind == "alarm":
            self.alarms.append((message, data, level, key))


@pytest.fixture
def reporter(make_spec):
    presence = WorkerPresence(worker="t", role="trainer", incarnation="1")
    return StepReporter(Events(), SimpleNamespace(presence=presence), StepMetricsRecorder(Metrics()), (), LearningAlarms(make_spec()))


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [
        ({"wait": 1.0, "train": 3.0, "publish": 0.1}, {"wait": 0.25, "train": 0.75}),
        ({"wait": 1.0, "train": 2.0, "switch": 1.0, "publish": 0.1}, {"wait": 0.25, "train": 0.5, "switch": 0.25}),
    ],
    ids=["a device of its own", "in turns"],
)
def test_the_time_of_switches_is_a_share_of_a_trainer_that_takes_turns_alone(reporter, seconds, shares):
    reporter.trained(0, USUAL, BatchStats(staleness=[0, 1]), seconds)
    presence = reporter.heartbeat.presence
    assert (presence.shares, presence.staleness, presence.explained_variance) == (shares, 0.5, None)


def test_given_responses_show_a_loss_and_pairs_an_accuracy_in_place_of_staleness(reporter):
    presence = reporter.heartbeat.presence
    reporter.trained(0, USUAL, BatchStats(staleness=[0, 1]), {})
    assert (presence.staleness, presence.loss, presence.pair_accuracy) == (0.5, None, None)
    learned = replace(USUAL, loss=LossMetrics(total=0.25))
    reporter.trained(1, learned, BatchStats(sampled=False, scored=False), {})
    assert (presence.staleness, presence.loss, presence.pair_accuracy) == (None, 0.25, None)
    reporter.trained(2, replace(learned, preference=PreferenceMetrics(accuracy=0.75)), BatchStats(sampled=False, scored=False), {})
    assert (presence.staleness, presence.loss, presence.pair_accuracy) == (None, 0.25, 0.75)


def test_what_a_critic_explained_last_is_shown(reporter):
    reporter.trained(0, replace(USUAL, critic=CriticMetrics(explained_variance=0.5)), BatchStats(), {})
    reporter.trained(1, USUAL, BatchStats(), {})
    assert reporter.heartbeat.presence.explained_variance == 0.5


def test_a_run_that_only_a_teacher_judges_shows_how_far_it_is_from_it(reporter):
    reporter.trained(0, replace(USUAL, teacher_kl=0.25), BatchStats(scored=False, staleness=[1]), {})
    presence = reporter.heartbeat.presence
    assert (presence.teacher_kl, presence.staleness, presence.loss) == (0.25, 1.0, None)
    reporter.trained(1, USUAL, BatchStats(), {})
    assert presence.teacher_kl == 0.25, "a step that trained no token has none, and the last one stays"


def test_an_alarm_is_one_event_and_shown_as_long_as_it_lasts(reporter):
    far = replace(USUAL, ratio=RatioMetrics(logprob_diff=1.5))

    def train(steps, metrics):
        for step in steps:
            reporter.trained(step, metrics, BatchStats(rewards=[0.0, 1.0]), {})
        lasting = {one.attributes["gradbus.alarm"] for one in reporter.recorder._metrics.read("gradbus.alarms") if one.value}
        return lasting, reporter.heartbeat.presence.warning

    assert train(range(9), far) == (set(), "")
    lasting, warning = train(range(9, 40), far)
    assert lasting == {"off_policy"}
    assert warning.startswith("step 9: trainer and rollout differ by 1.5 nats a token; ")
    assert reporter.events.alarms == [(warning, {"step": 9, "kind": "off_policy"}, "warning", "off_policy:9")]
    assert train(range(40, 50), USUAL) == (set(), "")
    assert len(reporter.events.alarms) == 1
