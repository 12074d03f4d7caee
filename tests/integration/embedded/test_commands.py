"""`gradbus up`, `down` and `status` as a user runs them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gradbus.cli.stack import down, up
from gradbus.cli.status import status
from gradbus.embedded import Stack, StateFolder

SUPERVISOR = Path(__file__).with_name("supervisor.py")
app = typer.Typer()
for command in (up, down, status):
    app.command()(command)


def gradbus(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})


def test_status_and_down_say_that_no_stack_runs(tmp_path):
    shown = gradbus("status", "--state", tmp_path)
    assert shown.exit_code == 3
    assert "no stack runs on" in shown.output
    stopped = gradbus("down", "--state", tmp_path)
    assert stopped.exit_code == 0
    assert "no stack runs on" in stopped.output


async def test_status_shows_each_process(stack_config):
    async with Stack(stack_config()) as stack:
        await stack.kill("reward")
        await stack.until_ready(["reward"], 60.0)
        shown = await asyncio.to_thread(gradbus, "status", "--state", stack.state.root)
        assert shown.exit_code == 0
        rows = {line.split()[0]: line.split() for line in shown.output.splitlines() if line.split() and line.split()[0] in stack.processes}
        assert rows.keys() == stack.processes.keys()
        assert rows["nats"][1:3] == ["running", "-"]
        assert rows["reward"][1:5] == ["running", "yes", str(stack.processes["reward"].pid), "1"]
        assert stack.url in shown.output


def test_down_returns_when_everything_has_stopped(tmp_path):
    state = StateFolder(tmp_path)
    with subprocess.Popen([sys.executable, str(SUPERVISOR), str(tmp_path)], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout.readline() == b"ready\n"
        stopped = gradbus("down", "--state", tmp_path)
        assert stopped.exit_code == 0
        assert "all state is kept in" in stopped.output
        assert supervisor.wait(60) == 0
    assert state.owner() is None
    assert not (tmp_path / "stack.json").exists()


@pytest.mark.parametrize("mode", [[], ["--detach"]])
def test_up_on_a_folder_in_use_is_refused(tmp_path, mode):
    state = StateFolder(tmp_path)
    state.lock()
    command = [sys.executable, "-m", "gradbus.cli", "up", "--state", str(tmp_path), "--port", "0", *mode]
    refused = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert f"pid {os.getpid()}" in refused.stderr
    assert "Traceback" not in refused.stderr
    state.unlock()


@pytest.mark.parametrize("wrong", [["--rollouts", "0"], ["--port", "many"]])
def test_up_refuses_options_that_make_no_sense(wrong):
    assert gradbus("up", *wrong).exit_code == 2
