"""`python -m gradbus_rollout`: reads settings, opens its clients and serves the runs that it is assigned to."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradbus.process import RunServer, WorkerClients


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_rollout", description="Sample groups for the runs this worker is assigned to. Settings: GRADBUS_* variables."
    ).parse_args()
    from gradbus.process import read_settings, run_worker
    from gradbus_rollout.settings import Settings

    settings = read_settings("rollout", Settings)

    async def build(clients: WorkerClients) -> RunServer:
        from gradbus.tokenizer.launcher import ForkServer
        from gradbus_rollout.engines.registry import EngineFactory
        from gradbus_rollout.service import RolloutService

        engines, tokenizers = EngineFactory(settings), ForkServer()
        starting = asyncio.create_task(tokenizers.start(), name="fork server starts")
        await asyncio.sleep(0)  # it imports transformers while this process imports torch
        engines.preload()
        await starting
        return RolloutService(settings, clients, engines, tokenizers)

    return run_worker("rollout", settings, settings.weight_store, build)


if __name__ == "__main__":
    sys.exit(main())
