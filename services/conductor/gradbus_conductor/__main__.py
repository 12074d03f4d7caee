"""`python -m gradbus_conductor`: reads settings, connects, drives runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradbus.process import Process


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_conductor",
        description="Drives runs: data order, admission, scoring, evaluation and the experience log. Settings: GRADBUS_* variables.",
    ).parse_args()
    from gradbus.process import read_settings, run_process
    from gradbus_conductor.clients import Clients
    from gradbus_conductor.service import Conductor
    from gradbus_conductor.settings import Settings

    settings = read_settings("conductor", Settings)

    async def serve(process: Process) -> None:
        clients = await Clients.open(settings)
        try:
            await Conductor(clients, settings).serve(process)
        finally:
            await clients.close()

    return run_process("conductor", settings, serve)


if __name__ == "__main__":
    sys.exit(main())
