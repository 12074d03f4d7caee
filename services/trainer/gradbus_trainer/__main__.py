"""`python -m gradbus_trainer`: reads settings, opens the wires, trains the runs it is assigned to."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradbus.process import RunServer, WorkerWires
    from gradbus_trainer.launch import Launch
    from gradbus_trainer.settings import Settings


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_trainer",
        description="Train the runs this worker is assigned to, alone or as the ranks of torchrun. Settings: GRADBUS_* variables.",
    ).parse_args()
    from gradbus_trainer.launch import Launch, choose_accelerator, end_with_launcher
    from gradbus_trainer.settings import Settings

    end_with_launcher()
    settings, launch = Settings(), Launch.of(os.environ)
    choose_accelerator(settings.device)
    return _lead(settings, launch) if launch.rank == 0 else _follow(settings, launch)


def _lead(settings: Settings, launch: Launch) -> int:
    """Rank 0 holds every wire."""
    from gradbus.process import run_worker
    from gradbus_trainer.learners import Learners

    learners = Learners(settings, launch)

    async def build(wires: WorkerWires) -> RunServer:
        from gradbus_trainer.service import TrainerService

        await asyncio.to_thread(learners.start)
        return TrainerService(settings, wires, learners)

    try:
        return run_worker("trainer", settings, settings.weight_store, build)
    finally:
        learners.close()


def _follow(settings: Settings, launch: Launch) -> int:
    """The other ranks only compute."""
    from gradbus_trainer.deepspeed_learner.follower import follow

    return follow(settings, launch)


if __name__ == "__main__":
    sys.exit(main())
