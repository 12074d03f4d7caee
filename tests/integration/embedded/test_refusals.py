"""Errors of the stack and their messages."""

import socket
import sys

import pytest

from gradbus.deploy.layout import read_layout
from gradbus.embedded import Stack, StackConfig
from gradbus.embedded.supervisor import start_detached
from gradbus.errors import StackError


@pytest.fixture
def taken_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


async def test_a_second_stack_on_the_same_folder_is_refused_and_the_first_runs_on(stack_config):
    async with Stack(stack_config()) as first:
        with pytest.raises(StackError, match=r"a stack runs on .* already"):
            async with Stack(stack_config()):
                pass
        await first.until_ready(list(first.processes), 60.0)


async def test_a_taken_port_is_refused_before_anything_starts(stack_config, taken_port):
    stack = Stack(stack_config(port=taken_port))
    with pytest.raises(StackError, match=f"port {taken_port} is taken"):
        async with stack:
            pass
    assert not stack.processes
    assert stack.state.owner() is None


async def test_a_service_that_dies_at_its_start_is_named_with_the_end_of_its_log(stack_config, is_alive):
    broken = [sys.executable, "-c", "raise SystemExit('no such model')"]
    stack = Stack(stack_config(command_overrides={"conductor": broken}))
    with pytest.raises(StackError, match=r"(?s)conductor ended 5 times.*no such model.*conductor\.log"):
        async with stack:
            pass
    assert {process.state for process in stack.processes.values()} == {"stopped"}
    assert {process.pid for process in stack.processes.values()} == {None}


async def test_a_wrong_setting_ends_the_start_at_its_first_death(stack_config):
    wrong = {"reward": {"GRADBUS_ALLOWED_HOSTS": "127.0.0.1"}}
    stack = Stack(stack_config(command_overrides={"reward": [sys.executable, "-m", "gradbus_reward"]}, environment_overrides=wrong))
    with pytest.raises(StackError, match=r"(?s)reward has a wrong setting.*GRADBUS_ALLOWED_HOSTS is not JSON"):
        async with stack:
            pass
    assert stack.processes["reward"].restarts <= 1


async def test_a_service_that_never_gets_ready_is_named(stack_config):
    stack = Stack(stack_config(command_overrides={"reward": ["sleep", "600"]}, ready_seconds=10.0))
    with pytest.raises(StackError, match="reward did not get ready"):
        async with stack:
            pass


async def test_a_command_that_does_not_exist_is_named(stack_config):
    with pytest.raises(StackError, match=r"(?s)gateway ended 5 times.*No such file"):
        async with Stack(stack_config(command_overrides={"gateway": ["/no/such/program"]})):
            pass


def test_a_detached_start_that_fails_says_why(tmp_path, taken_port):
    with pytest.raises(StackError, match=f"port {taken_port} is taken"):
        start_detached(StackConfig(tmp_path, taken_port))


async def test_a_layout_that_this_machine_cannot_serve_is_refused_before_anything_starts(stack_config, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "layout.toml").write_text('[[trainers]]\ndevices = ["cuda:0"]\n[[rollouts]]\ndevices = ["cpu"]\n')
    stack = Stack(stack_config(layout=read_layout(tmp_path / "layout.toml")))
    with pytest.raises(StackError, match=r"trainers\[0\]: cuda:0 is not here, 0 GPUs are visible"):
        async with stack:
            pass
    assert not stack.processes
    with pytest.raises(StackError, match=r"trainers\[0\]: cuda:0 is not here"):
        start_detached(stack.config, tmp_path / "layout.toml")
