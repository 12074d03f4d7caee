"""The lines of `gradbus advise`."""

from gradbus.cli.specs.advise import _lines
from gradbus.plan.loop import Advice, Loop, Pace


def test_each_number_of_rollouts_has_its_gain_against_one_fewer():
    loop = Loop(8, 8, 1, False, ((10,),) * 8, 2)
    found = _lines(Pace(1.5, 0.93, 0.42, 0.04), loop, "token", [Advice(1, 3.0, -0.5), Advice(3, 1.08, 0.38), Advice(4, 1.06, 0.02)])
    assert list(found) == [
        "2 rollouts: 1.5 s a step; rollouts sample 93% of the time and load weights 4%, and the trainer waits 42%",
        "   sampling is the limit: more rollouts, faster ones, or more rollout.slots if they have the memory",
        "1 rollout: 3 s a step, -50%",
        "3 rollouts: 1.08 s a step, +38%",
        "4 rollouts: 1.06 s a step, +2% against 3",
    ]
