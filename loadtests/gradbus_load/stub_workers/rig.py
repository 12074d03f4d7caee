"""An embedded stack whose worker processes hold many stub workers each, and whose numbers change while it runs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from gradbus.embedded import Stack, StackConfig
from gradbus_load.calibration import LearnerTiming
from gradbus_load.rig import SOURCES
from gradbus_load.stub_workers import COUNT, GROUP_SECONDS, HELD, LEARNER

_TRAINERS: Final = "trainer-0"
_READY_SECONDS: Final = 120.0
_NOTHING: Final = [sys.executable, "-c", "import time; time.sleep(1e6)"]
"""A process in the place of one that is not to come back."""


@dataclass(frozen=True, slots=True)
class WorkersRig:
    """Rollout workers in `processes`, and trainers in one."""

    processes: int = 4
    group_seconds: float = 1.0
    """Of a call of a stub engine."""
    learner: LearnerTiming = field(default_factory=LearnerTiming)

    @property
    def rollouts(self) -> list[str]:
        """Names of the processes of rollout workers."""
        return [f"rollout-{number}" for number in range(self.processes)]

    def config(self, state: Path) -> StackConfig:
        """A stack with one worker in each process."""
        stubs = {name: _command(name) for name in (*self.rollouts, _TRAINERS)}
        shared = {
            "PYTHONPATH": SOURCES,
            COUNT: "1",
            HELD: str(held_folder(state)),
            GROUP_SECONDS: str(self.group_seconds),
            LEARNER: json.dumps(asdict(self.learner)),
        }
        unlimited = {"GRADBUS_LIMIT_REQUESTS_PER_SECOND": "0", "GRADBUS_LIMIT_REQUESTS": "0"}
        environments = {name: dict(shared) for name in stubs} | {"gateway": unlimited}
        return StackConfig(state, port=0, rollouts=self.processes, command_overrides=stubs, environment_overrides=environments)

    async def resize(self, stack: Stack, workers: int, trainers: int) -> None:
        """Starts the worker processes anew, with so many workers in all. Raises StackError if they do not get ready."""
        counts = {name: workers // self.processes + (at < workers % self.processes) for at, name in enumerate(self.rollouts)}
        for name, count in (counts | {_TRAINERS: trainers}).items():
            stack.config.command_overrides[name] = _command(name)
            stack.config.environment_overrides[name][COUNT] = str(count)
            await stack.kill(name)
        await stack.until_ready([*counts, _TRAINERS], _READY_SECONDS)

    async def lose(self, stack: Stack) -> int:
        """Kills the last process of rollout workers, which does not come back; returns how many workers it had."""
        name = self.rollouts[-1]
        stack.config.command_overrides[name] = _NOTHING
        await stack.kill(name)
        return int(stack.config.environment_overrides[name][COUNT])


def held_folder(state: Path) -> Path:
    """Where worker processes write which version they hold since when."""
    return state / "held"


def _command(name: str) -> list[str]:
    return [sys.executable, "-m", "gradbus_load.stub_workers", name.partition("-")[0]]
