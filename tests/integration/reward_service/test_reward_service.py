"""The reward service as a process, asked as the conductor asks."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from gradbus.rpc import open_channel, token_hash
from gradbus.v1.reward_pb2 import RewardStatus, ScoreRequest, ScoreSample
from gradbus.v1.reward_service_pb2_grpc import RewardServiceStub

TOKEN = "of-the-test"
EXACT = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}", "operation": "eq"}
KEPT_MIB = 60
"""Of what calls took, once their runs are over."""
OK, ERROR = RewardStatus.REWARD_STATUS_OK, RewardStatus.REWARD_STATUS_ERROR


@pytest.fixture(scope="module")
def service(tmp_path_factory, free_port):
    port = free_port()
    environment = {
        **os.environ,
        "GRADBUS_LISTEN": f"127.0.0.1:{port}",
        "GRADBUS_RPC_CALLERS": json.dumps({"conductor": token_hash(TOKEN)}),
        "GRADBUS_PYTHON_GRADERS": "true",
        "GRADBUS_ALLOW_LOOPBACK": "true",
        "GRADBUS_ALLOW_UNISOLATED_NETWORK": "true",
        "GRADBUS_SCORERS": "2",
        "GRADBUS_GRADER_PROCESSES": "1",
        "GRADBUS_CALLS_PER_SCORER": "1",
    }
    with (tmp_path_factory.mktemp("reward") / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "gradbus_reward"], env=environment, stderr=log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield process, port
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, "SIGTERM drains and ends with 0"


@pytest.fixture
async def stub(service):
    channel = open_channel(f"127.0.0.1:{service[1]}", TOKEN)
    yield RewardServiceStub(channel)
    await channel.close()


def request(reward, *responses, run_id="run-a"):
    samples = [
        ScoreSample(sample_id=f"{n}.0", group_id=str(n), prompt="40+2=", response=text, item_json='{"answer": "42"}', finish_reason="stop")
        for n, text in enumerate(responses)
    ]
    return ScoreRequest(run_id=run_id, reward_json=json.dumps(reward), samples=samples)


def resident_kib(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def anonymous_mib(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) >> 10


def found(response):
    return {one.sample_id: (one.status, one.reward) for one in response.results}


async def test_every_sample_gets_its_own_result(stub):
    response = await stub.Score(request({"grader": EXACT}, "42", "41", "42"), timeout=60)
    assert found(response) == {"0.0": (OK, 1.0), "1.0": (OK, 0.0), "2.0": (OK, 1.0)}


async def test_an_invalid_section_is_an_error_with_a_reason_not_a_zero(stub):
    response = await stub.Score(request({"grader": {"type": "nonsense"}}, "42"), timeout=60)
    assert [one.status for one in response.results] == [ERROR]
    assert "submit the run again" in response.results[0].reason


async def test_a_python_grader_that_hangs_ends_at_its_own_timeout(stub):
    source = "import time\ndef grade(sample, item):\n    while sample['output_text'] == 'hang': time.sleep(1)\n    return 0.5\n"
    reward = {"grader": {"type": "python", "source": source}, "timeout_seconds": 6.0}
    response = await stub.Score(request(reward, "hang", "fine"), timeout=60)
    answers = {one.sample_id: one for one in response.results}
    assert answers["0.0"].status == ERROR
    assert answers["0.0"].reason
    assert found(response)["1.0"] == (OK, 0.5)


async def test_a_hanging_scorer_does_not_stop_another(stub):
    source = "import time\ndef grade(sample, item):\n    time.sleep(60)\n"
    hanging = request({"grader": {"type": "python", "source": source}, "timeout_seconds": 6.0}, "x")
    await stub.Score(request({"grader": EXACT}, "42"), timeout=60)  # to start a scorer takes time as well
    slow = asyncio.ensure_future(stub.Score(hanging, timeout=60))
    quick = await stub.Score(request({"grader": EXACT}, "42"), timeout=60)
    assert found(quick) == {"0.0": (OK, 1.0)}
    assert not slow.done(), "the quick scorer answered while the slow one still worked"
    assert [one.status for one in (await slow).results] == [ERROR]


async def test_a_run_whose_calls_and_processes_all_hang_holds_up_no_run_with_the_same_grader(stub):
    source = "def grade(sample, item):\n    while sample['output_text'] == 'hang': pass\n    return 0.5\n"
    reward = {"grader": {"type": "python", "source": source}, "timeout_seconds": 60.0}
    hanging = [asyncio.ensure_future(stub.Score(request(reward, "hang"), timeout=60)) for _ in range(4)]
    other = await stub.Score(request(reward, "fine", run_id="run-b"), timeout=60)
    assert found(other) == {"0.0": (OK, 0.5)}
    assert not any(call.done() for call in hanging)
    for call in hanging:
        call.cancel()


async def test_more_scorers_than_the_cache_holds_all_score(stub):
    references = [str(number) for number in range(6)]
    calls = [stub.Score(request({"grader": EXACT | {"reference": reference}}, "3"), timeout=60) for reference in references * 2]
    rewards = [found(response)["0.0"] for response in await asyncio.gather(*calls)]
    assert rewards == [(OK, float(reference == "3")) for reference in references * 2]


async def test_a_call_without_the_token_is_refused(service):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service[1]}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RewardServiceStub(channel).Score(request({"grader": EXACT}, "42"))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
async def test_it_stays_small(stub, service):
    await stub.Score(request({"grader": EXACT}, "42"), timeout=60)
    assert resident_kib(service[0].pid) < 150 * 1024


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_the_memory_of_large_calls_is_returned_after_their_runs(service, stub, rounds):
    source = "def grade(sample, item):\n    return {'reward': 1.0, **{f'{n:02}' * 95: 1.0 for n in range(62)}}"
    reward = {"grader": {"type": "python", "source": source}, "timeout_seconds": 120.0}
    large = [request(reward, *map(str, range(1024)), run_id=f"run-{n}") for n in range(12)]
    before = most = anonymous_mib(service[0].pid)
    for _ in range(rounds):
        calls = asyncio.gather(*(stub.Score(call, timeout=120) for call in large))
        while not calls.done():
            most = max(most, anonymous_mib(service[0].pid))
            await asyncio.sleep(0.05)
        await calls
    assert most > before + KEPT_MIB, "there is something to return"
    deadline = time.monotonic() + 120
    while anonymous_mib(service[0].pid) > before + KEPT_MIB:
        assert time.monotonic() < deadline, f"{anonymous_mib(service[0].pid)} MiB, {before} before"
        await asyncio.sleep(1)
