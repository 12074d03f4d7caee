"""The command without a stack: help, and errors as text."""

import subprocess
import sys
from dataclasses import replace

import pytest

from gradbus.cli.options import connect
from gradbus.errors import StackError

VERBS = ["", "up", "down", "status", "run", "runs", "show", "samples", "events", "pause", "resume", "cancel", "export", "keys"]
HEAVY = {"torch", "transformers", "grpc", "nats", "redis", "fastapi", "httpx2", "obstore", "pydantic", "opentelemetry"}


def gradbus(*arguments, **environment):
    line = [sys.executable, "-m", "gradbus.cli", *arguments]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin", **environment})


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb):
    done = gradbus(*verb.split(), "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


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
            client.runs()
    assert "retrying for" in capsys.readouterr().err


def test_a_key_is_not_made_where_no_stack_ever_was(tmp_path):
    done = gradbus("keys", "create", "guest", "--state", str(tmp_path / "nowhere"))
    assert (done.returncode, "--state" in done.stderr, done.stdout) == (2, True, "")
    assert not (tmp_path / "nowhere").exists()
