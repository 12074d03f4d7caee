"""`docker compose` for the tests, and queries about runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from gradbus.client import Client, RetryPolicy, document
from gradbus.errors import ApiError

ROOT = Path(__file__).parents[2]
MADE = ROOT / ".gradbus" / "compose" / "addition"
PROJECT = "gradbus-test"
SERVICES = ("nats", "buffer", "objects", "weight-store", "reward", "reference", "conductor", "gateway", "rollout", "trainer")
LEVELS = {"debug", "info", "warning", "error", "critical"}
NOBODY = "http://127.0.0.1:9"
"""A proxy that answers nothing: port 9 is closed in every container."""
STEPS = 30
START_SECONDS = 1800
RUN_SECONDS = 1200
RESTART_SECONDS = 120.0
FINAL = ("succeeded", "failed", "cancelled")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Compose:
    """`docker compose` on a separate project."""

    def __init__(self) -> None:
        self.port, self.agent_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        overlays = [name for name in os.environ.get("GRADBUS_COMPOSE_OVERLAYS", "").split(":") if name]
        self.command = [
            "docker",
            "compose",
            "-p",
            PROJECT,
            *(part for name in ["docker-compose.yml", *overlays] for part in ("-f", name)),
        ]

    def __call__(self, *words: str, check: bool = True, seconds: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GATEWAY_PORT": str(self.port), "AGENT_PORT": str(self.agent_port), **variables}
        return subprocess.run(
            [*self.command, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=check, timeout=seconds
        )

    def up(self, *words: str, **variables: str) -> None:
        done = self("up", "--wait", *words, check=False, seconds=START_SECONDS, **variables)
        assert done.returncode == 0, done.stderr[-3000:] + self("ps", "-a").stdout

    def demo(self, steps: int, **variables: str) -> subprocess.CompletedProcess[str]:
        """The demo's script, whatever its status."""
        ports = {"GATEWAY_PORT": str(self.port), "AGENT_PORT": str(self.agent_port)}
        environment = {**os.environ, **ports, "COMPOSE": " ".join(self.command), **variables}
        command = ["examples/demo_compose.sh", str(steps)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)

    def made(self, secret: str) -> str:
        """What the job `secrets` has made: `key` or `authority`."""
        return self("run", "--rm", "--no-deps", "-T", "secrets", secret).stdout.strip()

    def client(self) -> Client:
        return Client(self.url, self.made("key"), RetryPolicy(RESTART_SECONDS))

    def python(self, service: str, code: str) -> str:
        """Output of a program in a service's container."""
        return self("exec", "-T", service, "python", "-c", code).stdout

    def containers(self) -> set[str]:
        """Ids of the containers that stay up."""
        return set(self("ps", "--quiet", "--no-trunc").stdout.split())

    def foreign_lines(self) -> list[str]:
        """Log lines of the services that are not JSON with a level."""
        containers = {service: self("ps", "-q", service).stdout.split() for service in SERVICES}
        assert all(containers.values()), containers
        return [line for ids in containers.values() for container in ids for line in lines_of(container) if not is_ours(line)]

    def crash(self, service: str) -> None:
        """Kills every process of the container but its init, which then ends with an error, as after a crash."""
        self("exec", "-T", service, "sh", "-c", "kill -9 -1", check=False)


def lines_of(container: str) -> list[str]:
    """The container's log. `docker compose logs` would add characters."""
    printed = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
    lines = (printed.stdout + printed.stderr).splitlines()
    assert lines, container
    return lines


def is_ours(line: str) -> bool:
    """Whether a log line is a JSON object with a level."""
    try:
        return json.loads(line)["level"] in LEVELS
    except (ValueError, TypeError, KeyError):
        return False


def proxied(folder: Path) -> str:
    """A copy of the user's Docker configuration in `folder` that gives containers a proxy which answers nothing."""
    own = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker"))
    copy = shutil.copytree(own, folder / "docker", symlinks=True) if own.is_dir() else folder
    file = copy / "config.json"
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | {"proxies": {"default": {"httpProxy": NOBODY, "httpsProxy": NOBODY}}}))
    return str(copy)


def until(client: Client, run_id: str, step: int) -> dict:
    """Waits until the run has published `step` or has ended."""
    deadline = time.monotonic() + RUN_SECONDS
    while True:
        try:
            run = document(client.run(run_id))
        except ApiError as error:
            if "type" in error.problem:
                raise
            # While a container stops, Docker before 25 forwards its port out of the machine (docs/deploy.md): somebody else answered.
            run = {"state": "", "progress": {"step": -1}, "waiting_for": error}
        if run["state"] in FINAL or run["progress"]["step"] >= step:
            return run
        assert time.monotonic() < deadline, run["waiting_for"]
        time.sleep(0.5)


def digest_of(client: Client, run_id: str) -> str:
    """The digest of the last version."""
    return document(client.versions_page(run_id, after=STEPS - 1))["data"][-1]["digest"]
