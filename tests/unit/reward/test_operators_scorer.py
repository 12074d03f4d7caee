"""GRADBUS_REWARD_SERVICE at the reward service: allowed beside the patterns, and checked before the service is ready."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gradbus.errors import UserCodeError
from gradbus.process import Process
from gradbus.rpc import token_hash
from gradbus_reward.service import serve
from gradbus_reward.settings import RewardSettings

CALLERS = {"conductor": token_hash("of-the-test")}


async def test_its_host_is_allowed_and_no_other():
    policy = RewardSettings(reward_service="grpc://192.0.2.7:50051", allowed_hosts=("scorer",)).addresses
    assert (await policy.resolve("grpc://192.0.2.7:50051")).host == "192.0.2.7"
    with pytest.raises(UserCodeError, match="not allowed"):
        await policy.resolve("grpc://192.0.2.8:50051")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("grpc://127.0.0.1:50051", "leads to loopback"),
        ("my-reward:50051", "lacks a host or port"),
        ("grpc://169.254.169.254:1", "no scorer may use"),
    ],
)
async def test_while_it_cannot_be_called_the_service_is_not_ready_and_says_why(address, said):
    process = Process("reward")
    with capture_logs() as logs:
        serving = asyncio.create_task(serve(RewardSettings(reward_service=address, rpc_callers=CALLERS), process))
        async with asyncio.timeout(60):
            while not logs:  # noqa: ASYNC110 - what is waited for is a line of the log
                await asyncio.sleep(0.02)
        assert process.ready is False
        process.stopping.set()
        await serving
    assert logs[0]["error"].startswith(f"REWARD_SERVICE={address}: ")
    assert said in logs[0]["error"]
    assert process.ready is False


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("grpc://192.0.2.7:50051", []),
        (
            "grpc://nowhere.invalid:50051",
            ["REWARD_SERVICE=grpc://nowhere.invalid:50051: the scorer's host 'nowhere.invalid' has no address"],
        ),
    ],
)
async def test_it_is_ready_before_the_scorer_runs_and_says_so(address, said):
    process = Process("reward")
    settings = RewardSettings(reward_service=address, rpc_callers=CALLERS)
    with capture_logs() as logs:
        await until_ready(settings, process)
    assert [line["error"].partition(" (")[0] for line in logs if line["event"] == "scorer_not_found"] == said


async def until_ready(settings, process):
    serving = asyncio.create_task(serve(settings, process))
    async with asyncio.timeout(60):
        while not process.ready:  # noqa: ASYNC110 - readiness is a flag
            await asyncio.sleep(0.02)
    process.stopping.set()
    await serving
