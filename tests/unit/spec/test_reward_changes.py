"""Scorers that take over from a group on."""

import pytest

from gradbus.errors import SpecError
from gradbus.spec import RewardChange, RewardSpec, parse_spec

BODY = {"name": "r", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 1}}
FIRST = {"grader": {"type": "length", "full": 4, "zero": 8}, "timeout_seconds": 3.0, "shadow": {"s": {"service": "http://a/b"}}}
LATER = {"from_group": 8, "service": "http://a/c"}


def faults(reward, **sections):
    try:
        parse_spec(BODY | {"reward": reward} | sections)
    except SpecError as error:
        return {fault.path: fault.message for fault in error.faults}
    return {}


def test_a_group_is_judged_by_the_newest_scorer_up_to_it_with_the_timeout_and_the_shadows_of_the_section():
    reward = RewardSpec(**FIRST, changes=[LATER, {"from_group": 9, "grader": {"type": "tags"}}])
    sections = [reward.in_turn[reward.turn_of_group(n)] for n in (0, 7, 8, 9, 99)]
    assert [(section.service, section.grader is None) for section in sections] == [
        (None, False),
        (None, False),
        ("http://a/c", True),
        (None, False),
        (None, False),
    ]
    assert all((one.timeout_seconds, list(one.shadow), one.changes) == (3.0, ["s"], ()) for one in reward.in_turn)


def test_a_version_is_judged_by_the_scorer_of_the_step_that_trains_it_or_by_what_was_decided():
    reward = RewardSpec(**FIRST, changes=[LATER, {"from_group": 40, "from_version": 3, "grader": {"type": "tags"}}])
    assert [reward.turn_of_version(n, 4) for n in range(5)] == [0, 0, 1, 2, 2]
    assert [reward.turn_of_version(n, 3) for n in range(4)] == [0, 0, 0, 2], "a step that has some of its groups goes by its first"


def test_a_change_takes_its_place_among_the_others():
    reward = RewardSpec(**FIRST, changes=[LATER]).with_change(RewardChange(from_group=3, service="http://a/d"))
    assert [change.from_group for change in reward.changes] == [3, 8]


def test_changes_of_a_grader_and_of_a_service_are_valid():
    assert faults(FIRST | {"changes": [LATER]}) == {}
    assert faults({"service": "http://a/b", "changes": [{"from_group": 0, "grader": {"type": "tags"}}, LATER]}) == {}


@pytest.mark.parametrize(
    ("reward", "field", "told"),
    [
        (FIRST | {"changes": [LATER, LATER]}, "reward.changes.1.from_group", "order of their groups"),
        (FIRST | {"changes": [{"from_group": 8}]}, "reward.changes.0", "exactly one source"),
        (FIRST | {"changes": [LATER | {"grader": {"type": "tags"}}]}, "reward.changes.0", "exactly one source"),
        (FIRST | {"changes": [{"service": "http://a/c"}]}, "reward.changes.0.from_group", "required"),
        (FIRST | {"changes": [LATER | {"from_group": -1}]}, "reward.changes.0.from_group", "greater than or equal to 0"),
        (FIRST | {"changes": [LATER | {"service": "ftp://a"}]}, "reward.changes.0.service", "not the address"),
        (FIRST | {"changes": [LATER | {"timeout_seconds": 1.0}]}, "reward.changes.0.timeout_seconds", "nknown"),
        ({"model": {"path": "m"}, "changes": [LATER]}, "reward.changes", "as long as the run lasts"),
        (FIRST | {"changes": [LATER | {"from_group": n} for n in range(65)]}, "reward.changes", "64"),
    ],
)
def test_what_cannot_be_is_told(reward, field, told):
    found = faults(reward)
    assert field in found, found
    assert told in found[field]
