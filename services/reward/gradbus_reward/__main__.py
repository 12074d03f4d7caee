"""`python -m gradbus_reward`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Reads settings from the environment and serves until SIGTERM."""
    argparse.ArgumentParser(
        prog="gradbus_reward", description="Scores samples, by graders or by a user's service. Settings: GRADBUS_* variables."
    ).parse_args()
    from gradbus.process import read_settings, run_process
    from gradbus_reward.service import serve
    from gradbus_reward.settings import RewardSettings

    settings = read_settings("reward", RewardSettings)
    return run_process("reward", settings, lambda process: serve(settings, process))


if __name__ == "__main__":
    sys.exit(main())
