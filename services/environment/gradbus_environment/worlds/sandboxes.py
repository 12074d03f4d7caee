"""Commands of users' environments, as the service executes them: how many at once, and how confined."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Any

from gradbus.sandbox.commands.request import CommandError, Outcome, read_command
from gradbus.sandbox.commands.run import FoundLevel, Level, NoSandboxError, run_command
from gradbus_environment.contract import Document, EnvironmentRefusedError
from gradbus_environment.worlds.turnstile import Places

_LEFT_SECONDS = 3.0
"""Of a call, for what comes after a command that has used up the rest."""
_LEAST_SECONDS = 1.0
"""A command that would have less by the clock is not started."""


class Sandboxes:
    """Runs at most `limit` commands of all runs at once."""

    def __init__(self, limit: int, *, in_gvisor: bool = False) -> None:
        """`in_gvisor`: the whole service is in it, as the operator says."""
        self.places = Places(limit)
        self.in_gvisor = in_gvisor
        self._found = FoundLevel("commands")
        self._bubblewrap = FoundLevel("commands", ["bubblewrap"])

    async def level(self, demanded: str) -> Level:
        """How commands are confined on this machine.

        Raises EnvironmentRefusedError if they cannot be confined as demanded, UserCodeError if that cannot be found now.
        """
        found = self._bubblewrap if demanded == "bubblewrap" else self._found
        try:
            return await found.get()
        except NoSandboxError as error:
            raise EnvironmentRefusedError(str(error)) from error


class Commands:
    """Executes the commands of one run."""

    def __init__(self, sandboxes: Sandboxes, demanded: str) -> None:
        """`demanded`: of the run's spec; `namespaces` is met by bubblewrap too.

        Raises EnvironmentRefusedError for `gvisor` where this service is not in it.
        """
        if demanded == "gvisor" and not sandboxes.in_gvisor:
            raise EnvironmentRefusedError(
                'this environment service is not in gVisor; ask for sandbox = "namespaces", deploy it with the component gvisor, or run '
                "the code in a service of your own in pods whose runtimeClassName is gVisor's"
            )
        self._sandboxes = sandboxes
        self._demanded = demanded

    async def level(self) -> Level:
        """Raises EnvironmentRefusedError if the demanded one, or any, cannot be had here."""
        return await self._sandboxes.level(self._demanded)

    async def confinement(self) -> str:
        """All that confines a command. Raises as `level` does."""
        return f"{await self.level()}{' in gVisor' if self._sandboxes.in_gvisor else ''}"

    async def execute(self, asked: Any, limit: asyncio.Timeout) -> Document:
        """What came of a command that the child asks for. The wait for a place is not counted in `limit`. Raises UserCodeError.

        A command that would outlast the call is ended before: the policy may have caused that, and must not fail the episode by it.
        """
        try:
            command = read_command(asked)
        except CommandError as error:
            return {"refused": str(error)}
        now = asyncio.get_running_loop().time
        remaining = (limit.when() or now()) - now()
        wall = remaining - min(_LEFT_SECONDS, remaining / 2)
        if wall < _LEAST_SECONDS:
            return {"outcome": Outcome("time", -signal.SIGKILL).document()}
        command = replace(command, wall_seconds=min(wall, command.longest))
        limit.reschedule(None)
        async with self._sandboxes.places.taken(self):
            limit.reschedule(now() + remaining)
            outcome = await run_command(command, await self.level())
        return {"outcome": outcome.document()}
