"""A supervisor in its own process, with stand-ins for services: `supervisor.py STATE`."""

import asyncio
import sys
from pathlib import Path

from gradbus.embedded import StackConfig
from gradbus.embedded.services import service_names
from gradbus.embedded.supervisor import serve

stand_in = str(Path(__file__).with_name("stand_in.py"))
commands = {name: [sys.executable, stand_in, name] for name in service_names(1, 1)}
asyncio.run(serve(StackConfig(Path(sys.argv[1]), 0, command_overrides=commands), lambda: print("ready", flush=True)))
