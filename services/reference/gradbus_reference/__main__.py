"""`python -m gradbus_reference`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_reference", description="Computes log-probabilities and scores of frozen models. Settings: GRADBUS_* variables."
    ).parse_args()
    from gradbus.process import read_settings, run_process
    from gradbus_reference.service import serve
    from gradbus_reference.settings import ReferenceSettings

    settings = read_settings("reference", ReferenceSettings)
    return run_process("reference", settings, lambda process: serve(settings, process))


if __name__ == "__main__":
    sys.exit(main())
