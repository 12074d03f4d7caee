"""The stack in containers, as a separate project; skipped where no Docker engine answers.

GRADBUS_COMPOSE_OVERLAYS names more compose files, with `:` between them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from compose_lab import MADE, ROOT, RUN_SECONDS, START_SECONDS, STEPS, Compose, digest_of

from gradbus.client import load_spec


def pytest_collection_modifyitems(items):
    reason = no_engine()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("compose")
            item.add_marker(pytest.mark.timeout(START_SECONDS + 2 * RUN_SECONDS))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def no_engine() -> str:
    if shutil.which("docker") is None:
        return "docker is not installed; these tests start the stack in containers"
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    asked = asked if asked.returncode else subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30)
    return "" if asked.returncode == 0 else "no Docker engine with compose v2 answers: start one to run these tests"


@pytest.fixture(scope="session")
def compose():
    project = Compose()
    project("down", "--volumes", "--remove-orphans", "--timeout", "30", check=False)
    project("--profile", "example-reward", "build", seconds=START_SECONDS)
    project.up("--no-build")
    yield project
    project("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "30", check=False)


@pytest.fixture(scope="session")
def demo(compose):
    """Output of the demo's script: the id of the run that curl submitted, and its result."""
    return compose.demo(STEPS)


@pytest.fixture(scope="session")
def true_digest(compose, demo):
    """Final digest of the undisturbed run."""
    assert demo.returncode == 0, demo.stdout[-2000:] + demo.stderr[-2000:]
    with compose.client() as client:
        return digest_of(client, re.search(r"^run (run-[\w-]+),", demo.stdout, re.MULTILINE)[1])


@pytest.fixture
def submit(compose, true_digest):
    """Submits the demo's run again."""
    changes = {"model.path": MADE / "model", "data.train": MADE / "train.jsonl", "data.eval": MADE / "eval.jsonl", "schedule.steps": STEPS}
    spec = load_spec(ROOT / "examples/addition/addition.toml", [f"{name}={value}" for name, value in changes.items()])
    return lambda client: client.submit(spec, ROOT / "examples/addition").id
