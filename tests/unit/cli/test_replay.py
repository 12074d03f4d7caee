"""`gradbus replay`: where it looks, and how its process answers. The process is a real one; what it trains has tests of its own."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gradbus.cli.__main__ import app
from gradbus.control import replay
from gradbus.errors import GradbusError, ReplayError, StackError


def replayed(*arguments):
    """Standard output; raises the command's error."""
    result = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    if isinstance(result.exception, GradbusError):
        raise result.exception
    return result.stdout


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    monkeypatch.delenv("GRADBUS_OBJECTS_URL", raising=False)


@pytest.fixture
def state(tmp_path):
    """The state folder of a stack that no run was submitted to."""
    (tmp_path / "state/objects").mkdir(parents=True)
    return tmp_path / "state"


def test_a_folder_that_is_no_stacks_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(StackError, match=r"has no object storage; name the stack's state folder by --state"):
        replayed("last", "--state", tmp_path)
    with pytest.raises(StackError, match=r"there is no folder .*/nowhere; give --objects"):
        replayed("last", "--objects", f"file://{tmp_path}/nowhere")
    assert list(tmp_path.iterdir()) == [], "nothing was made there"


def test_the_object_storage_of_the_options_comes_before_that_of_the_environment(state, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADBUS_OBJECTS_URL", f"file://{tmp_path}/nowhere")
    with pytest.raises(StackError, match="no folder"):
        replayed("last")
    with pytest.raises(ReplayError, match=f"file://{state}/objects holds no run"):
        replayed("last", "--state", state)


def test_an_address_of_no_object_storage_is_refused(state):
    with pytest.raises(ReplayError, match="ftp://host is no object storage; give file:///folder, s3://bucket"):
        replayed("last", "--objects", "ftp://host")


def test_a_step_below_zero_is_refused(state):
    result = CliRunner().invoke(app, ["replay", "last", "--to", "-1", "--state", str(state)])
    assert result.exit_code == 2
    assert "--to" in result.output


def test_a_process_that_ends_without_an_answer_is_told_with_its_status(state, monkeypatch):
    monkeypatch.setattr(replay, "REPLAY_MODULE", "gradbus.no_such_module")
    with pytest.raises(ReplayError, match=r"ended early \(exit code 1\)"):
        replayed("last", "--state", state)


def test_with_json_the_error_is_a_document_and_the_status_two(state):
    command = [sys.executable, "-m", "gradbus.cli", "replay", "last", "--json", "--state", str(state)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "holds no run" in json.loads(ended.stderr)["message"]
