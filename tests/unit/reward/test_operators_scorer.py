"""GRADBUS_REWARD_SERVICE at the reward service: allowed beside the patterns, and looked up before anything is served."""

import pytest

from gradbus.errors import ScorerError, SettingsError
from gradbus.process import Process
from gradbus_reward.service import serve
from gradbus_reward.settings import RewardSettings


async def test_its_host_is_allowed_and_no_other():
    policy = RewardSettings(reward_service="grpc://192.0.2.7:50051", allowed_hosts=("scorer",)).addresses
    assert (await policy.resolve("grpc://192.0.2.7:50051")).host == "192.0.2.7"
    with pytest.raises(ScorerError, match="not allowed"):
        await policy.resolve("grpc://192.0.2.8:50051")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("grpc://nowhere.invalid:50051", "the scorer's host 'nowhere.invalid' has no address"),
        ("grpc://127.0.0.1:50051", "leads to loopback"),
        ("my-reward:50051", "lacks a host or port"),
        ("grpc://169.254.169.254:1", "no scorer may use"),
    ],
)
async def test_one_that_cannot_be_called_ends_the_start(address, said):
    process = Process("reward")
    with pytest.raises(SettingsError, match=said) as refused:
        await serve(RewardSettings(reward_service=address), process)
    assert str(refused.value).startswith(f"REWARD_SERVICE={address}: ")
    assert process.ready is False
