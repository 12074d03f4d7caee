"""The detached supervisor: `gradbus up --detach` starts it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Runs a stack until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gradbus.embedded", description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--trainers", type=int, required=True)
    parser.add_argument("--rollouts", type=int, required=True)
    parser.add_argument("--memory", action="append", default=[], help="ROLE=SIZE")
    parser.add_argument("--layout", type=Path)
    parser.add_argument("--report", type=int, required=True, help="file descriptor that receives the result of the start")
    arguments = parser.parse_args()
    from gradbus.deploy.layout import read_layout
    from gradbus.embedded.config import StackConfig
    from gradbus.embedded.memory import parse_limits
    from gradbus.embedded.supervisor import run_detached
    from gradbus.telemetry import configure_logging

    configure_logging("supervisor")
    limits = parse_limits(arguments.memory)
    layout = read_layout(arguments.layout) if arguments.layout else None
    config = StackConfig(arguments.state, arguments.port, arguments.trainers, arguments.rollouts, layout, memory=limits)
    return run_detached(config, arguments.report)


if __name__ == "__main__":
    sys.exit(main())
