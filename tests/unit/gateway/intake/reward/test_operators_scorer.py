"""GRADBUS_REWARD_SERVICE: the operator's scorer takes the place of the spec's."""

import pytest

from gradbus.spec import RewardSpec
from gradbus_gateway.intake.spec.faults import reward_faults
from gradbus_gateway.intake.spec.intake import with_operator_scorer
from gradbus_gateway.settings import GatewaySettings

SERVICE = "grpc://my-reward:50051"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"grader": {"type": "string_check"}, "timeout_seconds": 3}, {"timeout_seconds": 3, "service": SERVICE}),
        ({"service": "http://elsewhere/x"}, {"service": SERVICE}),
        ({"grader": {}, "changes": [{"from_group": 0, "grader": {}}]}, {"service": SERVICE}),
        (None, {"service": SERVICE}),
        ("nonsense", {"service": SERVICE}),
    ],
)
def test_it_takes_the_place_of_grader_and_service_and_leaves_the_deadline(given, expected):
    body = {"name": "run", "reward": given}
    assert with_operator_scorer(body, SERVICE) == {"name": "run", "reward": expected}
    assert body["reward"] == given


@pytest.mark.parametrize("body", [[], "text", None])
def test_a_body_that_is_no_spec_is_left_to_the_parser(body):
    assert with_operator_scorer(body, SERVICE) == body


def test_it_judges_no_samples_of_a_run_that_a_teacher_judges_and_its_held_out_rows():
    body = {"algorithm": {"name": "opd"}, "data": {"train": "t"}}
    assert with_operator_scorer(body, SERVICE) is body
    assert with_operator_scorer(body | {"data": {"eval": "e"}}, SERVICE)["reward"] == {"service": SERVICE}
    assert with_operator_scorer(body | {"algorithm": {"name": "grpo"}}, SERVICE)["reward"] == {"service": SERVICE}


def test_without_it_the_spec_decides():
    body = {"reward": {"service": "http://elsewhere/x"}}
    assert with_operator_scorer(body, "") is body


def test_the_operators_address_needs_no_permission_and_a_users_does():
    settings = GatewaySettings(reward_service=SERVICE)
    assert list(reward_faults(RewardSpec(service=SERVICE), None, settings)) == []
    assert [fault.path for fault in reward_faults(RewardSpec(service="grpc://other:1"), None, settings)] == ["reward.service"]


@pytest.mark.parametrize("reward", [None, {}, RewardSpec().model_dump()])
def test_it_adds_nothing_to_the_rewards_of_an_environment(reward):
    body = {"name": "run", "environment": {"source": "class Environment: ..."}, "reward": reward}
    assert with_operator_scorer(body, SERVICE) is body
    scored = body | {"reward": {"service": "http://elsewhere/x"}}
    assert with_operator_scorer(scored, SERVICE)["reward"] == {"service": SERVICE}
