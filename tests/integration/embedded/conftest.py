"""A stack with the real servers; services are small programs that answer /readyz and drain on SIGTERM."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from gradbus.embedded import StackConfig
from gradbus.embedded.processes import is_running
from gradbus.embedded.services import ON_DEMAND, service_names

STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def stack_config(tmp_path):
    """Makes a StackConfig whose services are stand-ins."""

    def make(**settings) -> StackConfig:
        services = service_names(settings.get("trainers", 1), settings.get("rollouts", 1))
        stand_ins = {name: [sys.executable, str(STAND_IN), name] for name in [*services, *ON_DEMAND]}
        overrides = stand_ins | settings.pop("command_overrides", {})
        return StackConfig(**{"state": tmp_path / "state", "port": 0, "ready_seconds": 120.0} | settings, command_overrides=overrides)

    return make


@pytest.fixture
def is_alive():
    if not os.path.isdir("/proc/self"):
        pytest.skip("asks /proc which processes live")
    return is_running


@pytest.fixture
def until():
    """Waits until a condition holds."""

    async def until(condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come true"
            await asyncio.sleep(0.02)

    return until
