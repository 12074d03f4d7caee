"""What a gateway refuses of a reward that is valid by itself: for its rows and its settings."""

import pytest

from gradbus.spec import DataSpec, RewardSpec
from gradbus_gateway.intake.data import StoredData
from gradbus_gateway.intake.spec.faults import reward_faults
from gradbus_gateway.settings import GatewaySettings

DATA = StoredData(DataSpec(train="t"), frozenset({"prompt", "answer"}), chat=False, longest_row=64)
OPEN = {"allow_loopback": True, "python_graders": True, "reward_modules": ("trl.rewards",)}
JUDGE = {"type": "score_model", "url": "http://127.0.0.1:8000/v1", "model": "m", "input": "{{ sample.output_text }}"}
MODULE = {"type": "python", "interface": "trl", "module": "trl.rewards:accuracy_reward"}
CODE = {"type": "code", "tests": "{{ item.answer }}"}

PEER = {"service": "openrlhf+http://127.0.0.1:5000/"}


def faults(reward, **settings):
    return [
        (fault.path, fault.given) for fault in reward_faults(RewardSpec.model_validate(reward), DATA, GatewaySettings(**OPEN | settings))
    ]


@pytest.mark.parametrize("reward", [PEER, {"grader": JUDGE}, {"grader": MODULE}, {"grader": CODE}])
def test_what_the_server_allows_has_no_fault(reward):
    assert faults(reward) == []


@pytest.mark.parametrize(
    ("reward", "settings", "fault"),
    [
        ({"service": "slime+http://127.0.0.1:5000/", "label": "gold"}, {}, ("reward.label", "gold")),
        (PEER, {"allow_loopback": False}, ("reward.service", "127.0.0.1")),
        ({"service": "vllm+http://169.254.169.254/score", "served_model": "m"}, {}, ("reward.service", "169.254.169.254")),
        ({"grader": JUDGE}, {"allow_loopback": False}, ("reward.grader", "127.0.0.1")),
        ({"grader": JUDGE | {"url": "http://judge.example/v1"}}, {}, ("reward.grader", "judge.example")),
        ({"grader": MODULE | {"module": "os:system"}}, {}, ("reward.grader", "os")),
        ({"grader": CODE}, {"python_graders": False}, ("reward.grader", "code")),
    ],
)
def test_what_it_does_not_allow_is_refused_at_submission(reward, settings, fault):
    assert faults(reward, **settings) == [fault]


def test_a_module_of_the_operators_is_no_users_python():
    assert faults({"grader": MODULE}, python_graders=False) == []
    joined = {"type": "multi", "graders": {"a": MODULE | {"module": "os:system"}}, "calculate_output": "a"}
    assert faults({"grader": joined}) == [("reward.grader", "os")]


@pytest.mark.parametrize(
    ("shadow", "fault"),
    [
        ({"service": "http://other.example/score"}, ("reward.shadow.s.service", "other.example")),
        ({"service": "slime+http://127.0.0.1:1/", "label": "gold"}, ("reward.shadow.s.label", "gold")),
        ({"grader": {"type": "math", "reference": "{{ item.no }}"}}, ("reward.shadow.s.grader.reference", "`no`")),
        ({"grader": MODULE | {"module": "os:system"}}, ("reward.shadow.s.grader", "os")),
    ],
)
def test_a_shadow_is_checked_like_a_scorer(shadow, fault):
    assert faults({"grader": CODE, "shadow": {"s": shadow}}) == [fault]
