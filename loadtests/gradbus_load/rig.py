"""The embedded stack with stubs in place of hardware, and the queries of the scenarios."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gradbus.buffer import BufferSettings, open_buffer
from gradbus.bus import Bus, BusSettings
from gradbus.client import Client, document
from gradbus.control.runs import FINAL_STATES
from gradbus.deploy.credentials import Credentials
from gradbus.embedded import Stack, StackConfig
from gradbus_load import material, stub_rollout, stub_trainer
from gradbus_load.calibration import EngineTiming, LearnerTiming
from gradbus_load.processes import Usage, usage

SOURCES = str(Path(__file__).resolve().parents[1])
_POLL_SECONDS = 0.25
_PAGE = 1000
Json = dict[str, Any]


class LoadError(Exception):
    """A run under load did not end as expected."""


@dataclass(frozen=True, slots=True)
class Rig:
    """The simulated hardware of the stubs."""

    engine: EngineTiming = field(default_factory=EngineTiming)
    learner: LearnerTiming = field(default_factory=LearnerTiming)
    rollouts: int = 1

    def config(self, state: Path) -> StackConfig:
        """A stack whose rollout workers and trainer are the real services around stubs."""
        commands = {f"rollout-{number}": _command("stub_rollout") for number in range(self.rollouts)} | {
            "trainer-0": _command("stub_trainer")
        }
        shared = {
            "PYTHONPATH": SOURCES,
            stub_rollout.TIMING: json.dumps(asdict(self.engine)),
            stub_trainer.TIMING: json.dumps(asdict(self.learner)),
        }
        # One key sends the load of all users; what a key may do is not what is measured.
        unlimited = {"GRADBUS_LIMIT_REQUESTS_PER_SECOND": "0", "GRADBUS_LIMIT_REQUESTS": "0"}
        environments = dict.fromkeys(commands, shared) | {"gateway": unlimited}
        return StackConfig(state, port=0, rollouts=self.rollouts, command_overrides=commands, environment_overrides=environments)


@dataclass(frozen=True, slots=True)
class Bench:
    """A running stack."""

    stack: Stack
    client: Client
    material: Path

    def pids(self) -> dict[str, int]:
        """Pids of the processes of the stack."""
        return {name: process.pid for name, process in self.stack.processes.items() if process.pid}

    def usage(self) -> dict[str, Usage]:
        """Current usage of the processes of the stack."""
        return usage(self.pids())

    def spec(self, name: str, **sections: Json) -> Json:
        """A run spec with this bench's model and data."""
        return material.spec(self.material, name, **sections)

    async def submit(self, body: Json) -> str:
        """Submits a run; returns its id."""
        return (await asyncio.to_thread(self.client.submit, body)).id

    async def ends(self, run_id: str, seconds: float) -> Json:
        """Waits until the run has succeeded. Raises LoadError when it ends otherwise or not in time."""
        deadline = time.monotonic() + seconds
        while (run := document(await asyncio.to_thread(self.client.run, run_id)))["state"] not in FINAL_STATES:
            if time.monotonic() > deadline:
                raise LoadError(f"{run_id} is {run['state']} at step {run['progress']['step']} after {seconds:.0f} s; {run['waiting_for']}")
            await asyncio.sleep(_POLL_SECONDS)
        if run["state"] != "succeeded":
            raise LoadError(f"{run_id} is {run['state']}: {run['reason']}")
        return run

    async def trains(self, run_id: str, seconds: float, steps: int = 1) -> Json:
        """Waits until the run has trained so many steps; returns it. Raises LoadError when it ends before."""
        deadline = time.monotonic() + seconds
        while (run := document(await asyncio.to_thread(self.client.run, run_id)))["progress"]["step"] < steps:
            if run["state"] in FINAL_STATES or time.monotonic() > deadline:
                raise LoadError(f"{run_id} is {run['state']} before step {steps}: {run['reason']}{run['waiting_for']}")
            await asyncio.sleep(_POLL_SECONDS)
        return run

    async def steps(self, run_id: str) -> list[Json]:
        """The trainer's metrics event of each step, in order, with `at`, its time in seconds, and `event`, its id."""
        found: list[Json] = []
        after = 0
        while True:
            page = document(await asyncio.to_thread(self.client.events_page, run_id, after, _PAGE))
            events = [event for event in page["data"] if event["type"] == "metrics"]
            found += [
                event["data"] | {"at": datetime.fromisoformat(event["created_at"]).timestamp(), "event": event["id"]} for event in events
            ]
            if not page["has_more"]:
                return sorted(found, key=lambda step: step["step"])
            after = int(page["next_after"])

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[tuple[Bus, Any]]:
        """Clients of NATS, with a conductor's permissions, and of the buffer, with permission to read the log."""
        state, credentials = self.stack.state, Credentials(self.stack.state.secrets)
        ports = state.read("ports.json")
        bus = await Bus.connect(
            BusSettings(f"nats://127.0.0.1:{ports['nats']}", "conductor", credentials.nats_password("conductor")), "load test"
        )
        buffer = open_buffer(BufferSettings(f"redis://127.0.0.1:{ports['buffer']}/0", "gateway", credentials.buffer_password("gateway")))
        try:
            yield bus, buffer
        finally:
            await buffer.aclose()
            await bus.close()


@asynccontextmanager
async def running(folder: Path, rig: Rig) -> AsyncIterator[Bench]:
    """Runs a stack below `folder` inside the block, on free loopback ports."""
    made = await asyncio.to_thread(material.make, folder / "material")
    async with Stack(rig.config(folder / "state")) as stack:
        with Client(stack.url, stack.api_key) as client:
            yield Bench(stack, client, made)


def _command(module: str) -> list[str]:
    return [sys.executable, "-m", f"gradbus_load.{module}"]


def rounded(values: Mapping[str, float], digits: int = 3) -> dict[str, float]:
    """Rounds the values for the report."""
    return {name: round(value, digits) for name, value in values.items()}
