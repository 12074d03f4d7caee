"""`python -m gradbus_gateway`: serves the REST interface. Settings come from GRADBUS_* variables."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Parses the arguments, then builds and runs."""
    argparse.ArgumentParser(prog="python -m gradbus_gateway", description=__doc__).parse_args()
    from gradbus.memory.allocator import share_arenas
    from gradbus.process import read_settings, run_process
    from gradbus_gateway.service import serve
    from gradbus_gateway.settings import GatewaySettings

    share_arenas(2)  # checks run in a dozen threads, and each would have one of its own
    settings = read_settings("gateway", GatewaySettings)
    return run_process("gateway", settings, lambda process: serve(settings, process))


if __name__ == "__main__":
    sys.exit(main())
