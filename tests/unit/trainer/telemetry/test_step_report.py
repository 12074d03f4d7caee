"""The shares of a trainer's time in its heartbeat."""

from types import SimpleNamespace

import pytest

from gradbus_trainer.telemetry.step_report import StepReporter


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [
        ({"wait": 1.0, "train": 3.0, "publish": 0.1}, {"wait": 0.25, "train": 0.75}),
        ({"wait": 1.0, "train": 2.0, "switch": 1.0, "publish": 0.1}, {"wait": 0.25, "train": 0.5, "switch": 0.25}),
    ],
    ids=["a device of its own", "in turns"],
)
def test_the_time_of_switches_is_a_share_of_a_trainer_that_takes_turns_alone(seconds, shares):
    presence = SimpleNamespace(shares={}, staleness=None)
    reporter = StepReporter(None, SimpleNamespace(presence=presence), None, ())
    reporter._update_presence(seconds, SimpleNamespace(mean_staleness=0.5))
    assert (presence.shares, presence.staleness) == (shares, 0.5)
