"""`python -m gradbus_agent`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_agent", description="Lets users' own agents play the episodes of runs. Settings: GRADBUS_* variables."
    ).parse_args()
    from gradbus.process import read_settings, run_process
    from gradbus_agent.service import serve
    from gradbus_agent.settings import AgentSettings

    settings = read_settings("agent", AgentSettings)
    return run_process("agent", settings, lambda process: serve(settings, process))


if __name__ == "__main__":
    sys.exit(main())
