"""examples/demo_compose.sh against a gateway that is away, hangs, refuses, or whose run fails: it ends, with status 1 and the reason."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture
def run(tmp_path):
    """Runs a copy of the script beside a made model, with a `docker compose` that only prints a key."""
    shutil.copytree(ROOT / "examples/addition", tmp_path / "examples/addition")
    shutil.copy(ROOT / "examples/demo_compose.sh", tmp_path / "examples")
    made = tmp_path / ".gradbus/compose/addition"
    (made / "model").mkdir(parents=True)
    for name in ("train.jsonl", "eval.jsonl", "model/config.json", "model/model.safetensors"):
        (made / name).write_text("content")
    compose = tmp_path / "compose"
    compose.write_text("#!/bin/sh\necho id.secret\n")
    compose.chmod(0o755)

    def start(port, **variables):
        environment = {**os.environ, "COMPOSE": str(compose), "GATEWAY_PORT": str(port), "PATIENCE": "2", **variables}
        return subprocess.run(
            [tmp_path / "examples/demo_compose.sh", "3"], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return start


@pytest.fixture
def gateway():
    """Answers with the next of `states`; without one it is away."""

    class Handler(http.server.BaseHTTPRequestHandler):
        states: list[str] = []  # noqa: RUF012
        submitted: list[tuple[str, str]] = []  # noqa: RUF012

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if self.path == "/v1/runs":
                self.submitted.append((self.headers["Idempotency-Key"], body))
            self.answer({"id": "run-1" if self.path == "/v1/runs" else "f" * 64})

        def do_GET(self):
            if not self.states:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.answer({"id": "run-1", "state": self.states.pop(0), "progress": {"step": 3}, "reason": "of the test"})

        def answer(self, content):
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    Handler.states, Handler.submitted = [], []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_run_that_succeeds_ends_it_with_status_0(run, gateway):
    gateway.RequestHandlerClass.states = ["running", "succeeded"]
    done = run(gateway.server_port)
    assert done.returncode == 0, done.stderr
    assert "succeeded  step 3 of 3" in done.stdout
    ((key, spec),) = gateway.RequestHandlerClass.submitted
    assert key.startswith("demo-")
    assert f'train = "{"f" * 64}"' in spec
    assert f'"model.safetensors" = "{"f" * 64}"' in spec


def test_the_key_goes_to_no_proxy(run, gateway, free_port):
    gateway.RequestHandlerClass.states = ["succeeded"]
    done = run(gateway.server_port, http_proxy=f"http://127.0.0.1:{free_port()}", no_proxy="", NO_PROXY="")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_run_that_does_not_succeed_ends_it_with_the_reason(run, gateway, state):
    gateway.RequestHandlerClass.states = [state]
    done = run(gateway.server_port)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == f"{state} of the test"


def test_a_gateway_that_goes_away_ends_it(run, gateway):
    gateway.RequestHandlerClass.states = []
    done = run(gateway.server_port)
    assert done.returncode == 1
    assert "is away; the run goes on" in done.stderr


def test_a_gateway_that_is_not_there_ends_it(run, free_port):
    done = run(free_port())
    assert done.returncode == 1
    assert "did not take .gradbus/compose/addition/train.jsonl" in done.stderr


def test_a_gateway_that_hangs_ends_it(run):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(silent.getsockname()[1])
    assert done.returncode == 1
    assert "did not take .gradbus/compose/addition/train.jsonl" in done.stderr
