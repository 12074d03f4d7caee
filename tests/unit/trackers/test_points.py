"""Points from events."""

from gradbus.resources.runs import EventResource
from gradbus.trackers import PointReader
from gradbus.trackers.points import EVENT


def event(number, type_="metrics", **data):
    return EventResource(id=number, type=type_, level="info", message="", data=data, created_at="2026-11-27T03:00:00+00:00")


def test_numbers_are_named_by_their_path_and_nothing_else_is_a_value():
    data = {"step": 3, "reward": 0.5, "kl": None, "noop": False, "seconds": {"wait": 1, "train": float("nan")}, "kinds": ["a"]}
    point = PointReader().point(event(1 << 40, **data))
    assert (point.group, point.step, point.unix_seconds) == ("train", 3, 1795748400.0)
    assert point.values == {"train/step": 3.0, "train/reward": 0.5, "train/seconds/wait": 1.0, EVENT: float(1 << 40)}


def test_steps_that_a_restarted_trainer_repeats_are_left_out():
    given = [(1, 0), (2, 1), (3, 2), (5, 1), (6, 2), (7, 3)]
    reader = PointReader()
    points = [reader.point(event(number, step=step, reward=0.0)) for number, step in given]
    assert [point.event for point in points if point] == [1, 2, 3, 7]
    assert reader.point(event(8, "evaluation", version=1, accuracy=1.0)).group == "eval", "versions have an order of their own"
    assert reader.point(event(9, "evaluation", version=1, accuracy=1.0)) is None


def test_events_without_a_step_or_a_value_have_no_point():
    others = [event(1, "state", state="running"), event(2, reward=1.0), event(3, step=True, reward=1.0), event(4, "evaluation", version=2)]
    assert [PointReader().point(other) for other in others] == [None] * 4
