"""The command without a stack: help, and errors as text."""

import subprocess
import sys

import pytest

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


def test_a_gateway_that_does_not_answer_is_named():
    done = gradbus("runs", GRADBUS_URL="http://127.0.0.1:9", GRADBUS_KEY="a.b")
    assert (done.returncode, "http://127.0.0.1:9" in done.stderr) == (2, True)
