"""One service of a stack by itself, for a command that needs no run: without the servers and the other services."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.access import CALLERS
from gradbus.deploy.credentials import Credentials
from gradbus.embedded.config import StackConfig
from gradbus.embedded.ports import Ports
from gradbus.embedded.probes import service_ready
from gradbus.embedded.processes import SupervisedProcess
from gradbus.embedded.services import StackPrograms
from gradbus.embedded.state import StateFolder
from gradbus.errors import StackError

_READY_SECONDS: Final = 60.0
_PROBE_EVERY_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class SingleService:
    """A service that runs."""

    address: str
    """host:port on loopback."""
    token: str
    """Of a role that may call all its methods."""


@asynccontextmanager
async def single_service(role: str) -> AsyncIterator[SingleService]:
    """Runs a service that needs neither the bus nor a store inside the block, as a stack would start it. Its state is temporary.

    Raises StackError with the end of its log if it is not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="gradbus-") as folder:
        state = StateFolder(Path(folder))
        state.lock()
        credentials, ports = Credentials(state.secrets), Ports({})
        programs = StackPrograms(StackConfig(state.root, port=0), state, credentials, ports)
        process = SupervisedProcess(role, lambda: programs.service(role), lambda: None)
        process.start()
        try:
            await _until_ready(process, state, ports[f"{role}.health"])
            token = credentials.folder(CALLERS[role][0]) / "gradbus_rpc_token"
            yield SingleService(f"127.0.0.1:{ports[role]}", token.read_text())
        finally:
            await process.stop(_STOP_SECONDS)
            ports.release()
            state.unlock()


async def _until_ready(process: SupervisedProcess, state: StateFolder, health_port: int) -> None:
    ready = service_ready(health_port)
    deadline = time.monotonic() + _READY_SECONDS
    while not await ready():
        if process.restarts or time.monotonic() > deadline:
            raise StackError(f"the {process.name} service did not start; the end of its log:\n{state.log_tail(process.name)}")
        await asyncio.sleep(_PROBE_EVERY_SECONDS)
