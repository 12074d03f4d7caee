"""`python -m gradbus_load.stub_trainer`: the real trainer service around a stub learner.

GRADBUS_LOAD_LEARNER holds the timing as JSON; everything else is set as for the service itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gradbus.process import RunServer, WorkerClients, run_worker
from gradbus.spec import RunSpec
from gradbus_load.calibration import LearnerTiming
from gradbus_load.stub_learner import StubLearner
from gradbus_trainer.learners.base import Learner
from gradbus_trainer.learners.registry import Learners
from gradbus_trainer.service import TrainerService
from gradbus_trainer.settings import Settings, TorchrunRank

TIMING = "GRADBUS_LOAD_LEARNER"


class StubLearners(Learners):
    """Opens the stub for every spec."""

    def __init__(self, settings: Settings, timing: LearnerTiming) -> None:
        super().__init__(settings, TorchrunRank())
        self._timing = timing

    def open(self, folder: Path, spec: RunSpec) -> Learner:
        """See `Learners`."""
        return StubLearner(folder, spec, self._timing)


def main() -> int:
    """Serves until SIGTERM."""
    settings, timing = Settings(), LearnerTiming(**json.loads(os.environ.get(TIMING, "{}")))

    async def build(clients: WorkerClients) -> RunServer:
        return TrainerService(settings, clients, StubLearners(settings, timing))

    return run_worker("trainer", settings, settings.weight_store, build)


if __name__ == "__main__":
    sys.exit(main())
