"""`python -m gradbus_load.stub_rollout`: the real rollout service around a stub engine.

GRADBUS_LOAD_ENGINE holds the timing as JSON; everything else is set as for the service itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gradbus.process import RunServer, WorkerClients, run_worker
from gradbus.spec import RunSpec
from gradbus.tokenizer.launcher import ForkServer
from gradbus_load.calibration import EngineTiming
from gradbus_load.stub_engine import StubEngine
from gradbus_rollout.engines.base import Engine
from gradbus_rollout.engines.registry import EngineFactory
from gradbus_rollout.engines.torch import TorchEngineConfig
from gradbus_rollout.service import RolloutService
from gradbus_rollout.settings import Settings

TIMING = "GRADBUS_LOAD_ENGINE"


class StubEngineFactory(EngineFactory):
    """Opens the stub for every spec."""

    def __init__(self, settings: Settings, timing: EngineTiming) -> None:
        super().__init__(settings)
        self._timing = timing

    async def open(self, folder: Path, spec: RunSpec, stop_token_ids: frozenset[int]) -> Engine:
        """See `EngineFactory.open`."""
        config = TorchEngineConfig(
            slots=spec.rollout.slots,
            max_new_tokens=spec.rollout.max_new_tokens,
            stop_token_ids=stop_token_ids,
            max_prompt_tokens=spec.rollout.max_prompt_tokens,
        )
        return StubEngine(folder, config, self._timing)


def main() -> int:
    """Serves until SIGTERM."""
    settings, timing = Settings(), EngineTiming(**json.loads(os.environ.get(TIMING, "{}")))

    async def build(clients: WorkerClients) -> RunServer:
        tokenizers = ForkServer()
        await tokenizers.start()
        return RolloutService(settings, clients, StubEngineFactory(settings, timing), tokenizers)

    return run_worker("rollout", settings, settings.weight_store, build)


if __name__ == "__main__":
    sys.exit(main())
