"""`python -m gradbus_weight_store`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_weight_store", description="Owns policy versions, checkpoint heads and attestations. Settings: GRADBUS_* variables."
    ).parse_args()
    from gradbus.process import read_settings, run_process
    from gradbus_weight_store.service import serve
    from gradbus_weight_store.settings import WeightStoreSettings

    settings = read_settings("weight_store", WeightStoreSettings)
    return run_process("weight_store", settings, lambda process: serve(settings, process))


if __name__ == "__main__":
    sys.exit(main())
