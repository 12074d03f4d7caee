"""`python -m gradbus_load.stub_workers rollout|trainer`: the process of many workers.

GRADBUS_LOAD_WORKERS is their number, GRADBUS_LOAD_GROUP_SECONDS how long a task is sampled, GRADBUS_LOAD_HELD a folder for the times at
which each rollout worker held each version, GRADBUS_LOAD_LEARNER the learner's timing as JSON. All else is set as for the service itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from gradbus.aio.tasks import gather_or_cancel
from gradbus.process import Process, ProcessSettings, RunServer, WorkerClients, run_process, serve_worker
from gradbus_load.stub_workers import COUNT, GROUP_SECONDS, HELD, LEARNER

Build = Callable[[WorkerClients], Awaitable[RunServer]]
_CONNECTING = 8
"""Workers that connect at a time: of hundreds none would be in time."""


def main() -> int:
    """Serves until SIGTERM."""
    return _rollouts() if sys.argv[1] == "rollout" else _trainers()


def _rollouts() -> int:
    from gradbus_load.stub_workers.rollouts import Digests, HeldVersions, StubRollout
    from gradbus_rollout.settings import Settings

    settings, seconds = Settings(), float(os.environ.get(GROUP_SECONDS, "0"))

    async def serve(process: Process) -> None:
        digests = Digests()
        with HeldVersions.open(Path(os.environ[HELD]) / settings.worker_id) as held:

            async def build(clients: WorkerClients) -> RunServer:
                return StubRollout(settings, clients, digests, held, seconds)

            await _serve(process, "rollout", settings, settings.weight_store, lambda _: build)

    return run_process("rollout", settings, serve)


def _trainers() -> int:
    from gradbus_load.calibration import LearnerTiming
    from gradbus_load.stub_trainer import StubLearners
    from gradbus_trainer.service import TrainerService
    from gradbus_trainer.settings import Settings

    settings, timing = Settings(), LearnerTiming(**json.loads(os.environ.get(LEARNER, "{}")))

    def building(worker: str) -> Build:
        own = settings.model_copy(update={"worker_id": worker})

        async def build(clients: WorkerClients) -> RunServer:
            return TrainerService(own, clients, StubLearners(own, timing))

        return build

    return run_process("trainer", settings, lambda process: _serve(process, "trainer", settings, settings.weight_store, building))


async def _serve(
    process: Process,
    role: Literal["rollout", "trainer"],
    settings: ProcessSettings,
    weight_store: str,
    building: Callable[[str], Build],
) -> None:
    """All workers of the process; `building` gives how the worker of a name is built."""
    connecting = asyncio.Semaphore(_CONNECTING)

    async def serve_one(name: str) -> None:
        await connecting.acquire()
        build = building(name)

        async def build_connected(clients: WorkerClients) -> RunServer:
            connecting.release()
            return await build(clients)

        await serve_worker(process, role, settings.model_copy(update={"worker_id": name}), weight_store, build_connected)

    count = int(os.environ.get(COUNT, "1"))
    await gather_or_cancel([serve_one(f"{settings.worker_id}-{number:04}") for number in range(count)])


if __name__ == "__main__":
    sys.exit(main())
