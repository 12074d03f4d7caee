"""`python -m gradbus_load.stub_workers rollout|trainer`: the process of many workers.

GRADBUS_LOAD_WORKERS is their number, GRADBUS_LOAD_GROUP_SECONDS how long a task is sampled, GRADBUS_LOAD_HELD a folder for the times at
which each rollout worker held each version, GRADBUS_LOAD_LEARNER the learner's timing as JSON. All else is set as for the service itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from gradbus.aio.tasks import gather_or_cancel
from gradbus.process import Process, RunServer, WorkerClients, run_process, serve_worker
from gradbus_load.stub_workers import COUNT, GROUP_SECONDS, HELD, LEARNER

Build = Callable[[WorkerClients], Awaitable[RunServer]]


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

            own = [settings.model_copy(update={"worker_id": name}) for name in _names(settings.worker_id)]
            await gather_or_cancel([serve_worker(process, "rollout", one, one.weight_store, build) for one in own])

    return run_process("rollout", settings, serve)


def _trainers() -> int:
    from gradbus_load.calibration import LearnerTiming
    from gradbus_load.stub_trainer import StubLearners
    from gradbus_trainer.service import TrainerService
    from gradbus_trainer.settings import Settings

    settings, timing = Settings(), LearnerTiming(**json.loads(os.environ.get(LEARNER, "{}")))

    def building(own: Settings) -> Build:
        async def build(clients: WorkerClients) -> RunServer:
            return TrainerService(own, clients, StubLearners(own, timing))

        return build

    async def serve(process: Process) -> None:
        own = [settings.model_copy(update={"worker_id": name}) for name in _names(settings.worker_id)]
        await gather_or_cancel([serve_worker(process, "trainer", one, one.weight_store, building(one)) for one in own])

    return run_process("trainer", settings, serve)


def _names(prefix: str) -> list[str]:
    return [f"{prefix}-{number:04}" for number in range(int(os.environ.get(COUNT, "1")))]


if __name__ == "__main__":
    sys.exit(main())
