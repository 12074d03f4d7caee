"""`python -m gradbus_trainer`: reads settings, connects, trains the runs it is assigned to."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradbus.process import RunServer, WorkerClients
    from gradbus_trainer.settings import Settings, TorchrunRank


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_trainer",
        description="Train the runs this worker is assigned to, alone or as the ranks of torchrun. Settings: GRADBUS_* variables.",
    ).parse_args()
    from gradbus.memory.allocator import share_arenas
    from gradbus.process import read_settings
    from gradbus_trainer.settings import Settings, TorchrunRank, choose_accelerator, end_with_launcher

    share_arenas(1)  # only the first arena returns the free memory at its end, and a learner's is large
    end_with_launcher()
    settings, torchrun = read_settings("trainer", Settings), TorchrunRank.of(os.environ)
    choose_accelerator(settings.device)
    return _lead(settings, torchrun) if torchrun.rank == 0 else _follow(settings, torchrun)


def _lead(settings: Settings, torchrun: TorchrunRank) -> int:
    """Rank 0 holds every connection."""
    from gradbus.process import run_worker
    from gradbus_trainer.learners.registry import Learners

    learners = Learners(settings, torchrun)

    async def build(clients: WorkerClients) -> RunServer:
        from gradbus_trainer.service import TrainerService

        await asyncio.to_thread(learners.start)
        return TrainerService(settings, clients, learners)

    try:
        return run_worker("trainer", settings, settings.weight_store, build)
    finally:
        learners.close()


def _follow(settings: Settings, torchrun: TorchrunRank) -> int:
    """The other ranks only compute."""
    from gradbus_trainer.learners.deepspeed.follower import follow

    return follow(settings, torchrun)


if __name__ == "__main__":
    sys.exit(main())
