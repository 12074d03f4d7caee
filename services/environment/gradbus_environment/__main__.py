"""`python -m gradbus_environment`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_environment", description="Runs users' environments of many turns. Settings: GRADBUS_* variables."
    ).parse_args()
    from gradbus.process import read_settings, run_process
    from gradbus_environment.service import serve
    from gradbus_environment.settings import EnvironmentSettings

    settings = read_settings("environment", EnvironmentSettings)
    return run_process("environment", settings, lambda process: serve(settings, process))


if __name__ == "__main__":
    sys.exit(main())
