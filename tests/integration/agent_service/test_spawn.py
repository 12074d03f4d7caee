"""Agents that the service starts, one process an episode, confined."""

import asyncio
import json
import os
import signal
from pathlib import Path

import grpc
import pytest

from gradbus.access.api_keys import write_api_keys
from gradbus.process import Process
from gradbus.rpc import open_channel, token_hash
from gradbus.sandbox.commands import run
from gradbus.sandbox.commands.run import found_level
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub
from gradbus_agent.service import serve
from gradbus_agent.settings import AgentSettings
from gradbus_agent.spawn import AgentCommand

from .conftest import TOKEN, Worker, start_service

OK, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_ERROR
CODE = (Path(__file__).parent / "spawned_agent.py").read_text()
COMMANDS = {
    "player": {"command": ["python", "-c", CODE], "environment": {"MINE": "0.5"}},
    "missing": {"command": ["/usr/bin/no-such-program"]},
}
pytestmark = pytest.mark.skipif(asyncio.run(found_level())[0] is None, reason="this kernel gives no namespaces")


@pytest.fixture(scope="module")
def spawning(tmp_path_factory, free_port):
    folder = tmp_path_factory.mktemp("spawn")
    settings = {"GRADBUS_AGENT_COMMANDS": json.dumps(COMMANDS), "GRADBUS_MAX_AGENT_PROCESSES": "2", "GRADBUS_PUBLIC_URL": ""}
    started = start_service(folder, free_port, **settings)
    yield started
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(60) == 0
    assert "crashed" not in (folder / "agent.log").read_text()


@pytest.fixture
async def worker_of(spawning, request):
    """A worker whose agent's row says what it does."""
    async with open_channel(f"127.0.0.1:{spawning.port}", TOKEN) as channel:
        made = []

        def worker(do, agent="spawn://player", **section):
            stub = EnvironmentServiceStub(channel)
            made.append(Worker(stub, {"agent": agent, "step_seconds": 20, **section}, f"{request.node.name}-{len(made)}", {"do": do}))
            return made[-1]

        yield worker
        for one in made:
            await one.close()


def below(process):
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def children(service):
    """Processes of the service, by the kernel."""
    return [one for one in below(service.process.pid) if "launch" in Path(f"/proc/{one}/cmdline").read_text()]


async def until_none(service):
    async with asyncio.timeout(30):
        while children(service):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.05)


async def test_a_command_plays_by_the_variables_of_the_sdks(worker_of, spawning):
    worker = worker_of("end")
    opened = await worker.open()
    assert (opened.status, opened.conversation.messages[0].content) == (OK, "end"), opened.reason
    answer = await worker.step("b")
    assert (answer.done, answer.reward, dict(answer.components)) == (True, 1.0, {"mine": 0.5}), answer.reason
    await until_none(spawning)


async def test_it_reaches_this_service_alone(worker_of):
    worker = worker_of("reach")
    await worker.open()
    assert (await worker.step("b")).reward == 1.0


async def test_a_command_that_ends_well_without_a_word_has_no_reward_of_its_own(worker_of):
    worker = worker_of("nothing")
    await worker.open()
    answer = await worker.step("b")
    assert (answer.status, answer.done, answer.HasField("reward")) == (OK, True, False)


async def test_a_command_that_fails_fails_its_episode_with_what_it_said(worker_of):
    worker = worker_of("fail")
    await worker.open()
    answer = await worker.step("b")
    assert answer.status == ERROR
    assert "ended with the status 1 before the episode did: no idea what to do" in answer.reason
    again = await worker.open(attempt=1)
    assert again.status == OK, "another attempt has a process of its own"


async def test_a_command_whose_sandbox_is_killed_fails_its_episode(worker_of, spawning):
    await until_none(spawning)
    worker = worker_of("sleep")
    await worker.open()
    answering = asyncio.create_task(worker.step("b"))
    (launcher,) = children(spawning)
    (first,) = below(launcher)
    os.kill(int(first), signal.SIGKILL)
    answer = await answering
    assert (answer.status, "ended with the status 137 before the episode did" in answer.reason) == (ERROR, True)


async def test_a_program_that_is_missing_is_told(worker_of):
    opened = await worker_of("end", "spawn://missing").open()
    assert opened.status == ERROR
    assert "no-such-program: No such file" in opened.reason


async def test_a_command_ends_with_its_episode(worker_of, spawning):
    hanging, closed, idle = worker_of("hang"), worker_of("sleep"), worker_of("sleep", step_seconds=1)
    await hanging.open()
    assert (await hanging.step("b")).done
    await closed.open()
    await closed.close()
    await until_none(spawning)
    await idle.open()
    answer = await idle.step("b")
    assert (answer.status, "did nothing for 1 s" in answer.reason) == (ERROR, True)
    await until_none(spawning)


async def test_beyond_the_limit_episodes_are_queued(worker_of):
    first, second, third = (worker_of("sleep") for _ in range(3))
    await first.open()
    await second.open()
    waiting = asyncio.create_task(third.open(timeout=4))
    answer = await waiting
    assert (answer.is_away, answer.is_queued) == (True, True)
    waiting = asyncio.create_task(third.open())
    await first.close()
    assert (await waiting).status == OK


async def test_a_name_that_the_operator_does_not_know_is_refused(worker_of):
    worker = worker_of("end")
    for agent in ("spawn://other", "spawn://"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await worker.stub.Describe(pb.DescribeRequest(run_id="r", environment_json=json.dumps({"agent": agent})))
        assert "names no agent" in refused.value.details()
        assert "player, missing" in refused.value.details()
    described = await worker.stub.Describe(pb.DescribeRequest(run_id="r", environment_json=json.dumps(worker.section)))
    assert described.name == "agent"


NONE_LEFT = (
    "import sys; sys.path[:0] = sys.argv[1:3]; from gradbus.sandbox.commands import launch; "
    "launch._CLONE = dict.fromkeys(launch._CLONE, 1 << 20); launch.ctypes.get_errno = lambda: 11; launch.main()"
)
"""Boots a launcher whose kernel has no process left for now."""


async def test_a_machine_that_gives_no_sandbox_for_now_is_asked_again(free_port, tmp_path, monkeypatch):
    write_api_keys(tmp_path / "keys.json", [])
    settings = AgentSettings(
        listen=f"127.0.0.1:{free_port()}",
        api_keys_file=tmp_path / "keys.json",
        rpc_callers={"rollout": token_hash(TOKEN)},
        agent_commands={"player": AgentCommand(("python", "-c", CODE))},
    )
    process = Process("agent")
    serving = asyncio.create_task(serve(settings, process))
    await asyncio.wait_for(process.has_been_ready.wait(), 30)
    async with open_channel(settings.listen, TOKEN) as channel:
        worker = Worker(EnvironmentServiceStub(channel), {"agent": "spawn://player", "step_seconds": 20}, "run", {"do": "nothing"})
        describe = pb.DescribeRequest(run_id="run", environment_json=json.dumps(worker.section))
        with monkeypatch.context() as without:
            without.setattr(run, "boot", lambda _: NONE_LEFT)
            with pytest.raises(grpc.aio.AioRpcError, match="no sandbox for now") as away:
                await worker.stub.Describe(describe)
            assert away.value.code() is grpc.StatusCode.UNAVAILABLE
            assert_away(await worker.open())
        assert (await worker.stub.Describe(describe)).name == "agent"
        with monkeypatch.context() as without:
            without.setattr(run, "boot", lambda _: NONE_LEFT)
            assert_away(await worker.open())
        assert (await worker.open()).conversation.messages[0].content == "nothing"
        assert (await worker.step("b")).done
    process.stopping.set()
    await serving


def assert_away(opened):
    assert (opened.status, opened.is_away, opened.is_queued) == (ERROR, True, False)
    assert "the agent's command was not started: no sandbox for now" in opened.reason
