"""The command without a stack: help, and errors as text."""

import json
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import pytest

from gradbus.cli.options import connect
from gradbus.errors import StackError

RUN_VERBS = ["run", "runs", "show", "samples", "events", "pause", "resume", "cancel", "delete", "export", "lineage", "advise", "open"]
VERBS = ["up", "down", "status", *RUN_VERBS, "keys create", "keys list", "keys revoke"]
HEAVY = {"torch", "transformers", "grpc", "nats", "redis", "fastapi", "httpx2", "obstore", "pydantic", "opentelemetry"}


def gradbus(*arguments, **environment):
    line = [sys.executable, "-m", "gradbus.cli", *arguments]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin", **environment})


SEVERAL = """
import contextlib, io, json, runpy, sys
found = []
for line in json.load(sys.stdin):
    sys.argv, out, error, status = ["gradbus", *line], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            runpy.run_module("gradbus.cli", run_name="__main__")
        except SystemExit as ended:
            status = ended.code or 0
    found.append((status, out.getvalue(), error.getvalue()))
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def said():
    """By arguments, the status and both outputs of commands, in one process for all: each would take a second to start."""
    commands = [(*verb.split(), "--help") for verb in VERBS] + [(*given, *as_json) for given in BAD_INPUT for as_json in ((), ("--json",))]
    line, given = [sys.executable, "-c", SEVERAL], json.dumps(commands)
    done = subprocess.run(line, check=False, input=given, capture_output=True, text=True, timeout=120, env={"PATH": "/usr/bin"})
    assert done.returncode == 0, done.stderr
    return {command: subprocess.CompletedProcess(command, *found) for command, found in zip(commands, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_and_prints_json(said, verb):
    done = said[*verb.split(), "--help"]
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert "--json" in done.stdout


def test_a_verb_is_the_same_by_itself(said):
    alone, among_others = gradbus("runs", "--limit", "0"), said["runs", "--limit", "0"]
    assert (alone.returncode, alone.stdout) == (among_others.returncode, among_others.stdout)
    assert alone.stderr.replace("python -m gradbus.cli", "gradbus") == among_others.stderr


@pytest.mark.parametrize("group", ["", "keys"])
def test_a_group_lists_its_verbs(group):
    assert "Usage" in gradbus(*group.split(), "--help").stdout


def test_the_version_is_the_package_s():
    assert gradbus("--version").stdout == f"gradbus {version('gradbus')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_the_command(shell):
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the test's own shell may be any
    assert "gradbus" in gradbus("--show-completion", shell, **named).stdout


BAD_INPUT = [
    ("runs", "--bogus"),
    ("bogus",),
    ("show",),
    ("runs", "--limit", "0"),
    ("runs", "--limit", "x"),
    ("events", "last", "--after", str(2**63)),
    ("events", "last", "--level", "loud"),
    ("export", "last"),
    ("run", "nowhere.toml"),
    ("run", "nowhere.toml", "--dry-run", "--follow"),
    ("run", "nowhere.toml", "--tag", "two words"),
    ("up", "--port", "99999"),
    ("keys", "list", "--file", "nowhere.json"),
    ("show", "last", "--state", "nowhere"),
    ("delete", "--finished-before", "999999d"),
    ("delete", "--finished-before", "yesterday"),
]


@pytest.mark.parametrize("arguments", BAD_INPUT, ids=" ".join)
def test_bad_input_ends_with_two_and_a_sentence(said, arguments):
    for text in (said[arguments], said[*arguments, "--json"]):
        assert (text.returncode, text.stdout) == (2, "")
        assert "Traceback" not in text.stderr
    error = json.loads(text.stderr)
    assert (error["object"], bool(error["message"])) == ("error", True)


def test_faults_of_a_spec_are_listed_in_json_too(tmp_path):
    (tmp_path / "run.toml").write_text("not TOML")
    error = json.loads(gradbus("run", str(tmp_path / "run.toml"), "--json").stderr)
    assert [fault["path"] for fault in error["faults"]] == ["(file)"]


@pytest.mark.parametrize("key", ["a.b\n", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused(key):
    done = gradbus("runs", GRADBUS_URL="http://127.0.0.1:9", GRADBUS_KEY=key)
    assert (done.returncode, "GRADBUS_KEY" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_a_closed_pipe_is_silent():
    line = f"{sys.executable} -m gradbus.cli --help | true"
    done = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_ctrl_c_ends_with_130_in_silence():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {"PATH": "/usr/bin", "GRADBUS_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "GRADBUS_KEY": "a.b"}
        line = [sys.executable, "-m", "gradbus.cli", "runs"]
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests that run in the background inherit that it is ignored
        process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed)  # noqa: PLW1509 - no other thread
        connection, _ = silent.accept()  # the command waits for an answer now
        process.send_signal(signal.SIGINT)
        assert (*process.communicate(timeout=60), process.returncode) == (b"", b"", 130)
        connection.close()


def test_the_status_of_a_gateway_that_is_away_is_three():
    environment = {"GRADBUS_URL": "http://127.0.0.1:9", "GRADBUS_KEY": "a.b"}
    assert gradbus("status", **environment).returncode == 3
    done = gradbus("status", "--json", **environment)
    assert (done.returncode, json.loads(done.stdout)["ready"]) == (3, False)


def test_help_imports_nothing_heavy():
    source = "import gradbus.cli.__main__, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True, timeout=60)
    assert HEAVY.isdisjoint(done.stdout.split())


def test_without_a_stack_verbs_end_with_two_and_what_to_do(tmp_path):
    done = gradbus("runs", GRADBUS_STATE=str(tmp_path))
    assert done.returncode == 2
    assert "gradbus up" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_that_does_not_answer_is_waited_for_and_named(monkeypatch, capsys):
    monkeypatch.setenv("GRADBUS_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("GRADBUS_KEY", "a.b")
    with connect(None) as client:
        client.retries = replace(client.retries, seconds=0.3)
        with pytest.raises(StackError, match=r"http://127\.0\.0\.1:9 does not answer"):
            client.runs_page()
    assert "retrying for" in capsys.readouterr().err


def test_a_key_is_not_made_where_no_stack_ever_was(tmp_path):
    done = gradbus("keys", "create", "guest", "--state", str(tmp_path / "nowhere"))
    assert (done.returncode, "--state" in done.stderr, done.stdout) == (2, True, "")
    assert not (tmp_path / "nowhere").exists()
