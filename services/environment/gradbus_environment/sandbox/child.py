"""The process that runs users' environments, many sessions of one source. Standard library only; the parent is `process.py`.

Lines of JSON both ways:
  out  {"layers": {...}}                    once, after confinement: gradbus/sandbox/child.py
  in   {"source": source, "has_sandbox": bool}
                                            once
  out  {"loaded": {"tools": [...], "python": version} | {"fault": reason}}
                                            once
  in   [n, call, session, fields, [session]]
                                            a call, `open` or `step`, and the sessions that were closed since the last one
  out  [n, {"command": command}]            in a call, any number of times: a command for a sandbox; gradbus/sandbox/commands/request.py
  in   {"outcome": outcome} | {"refused": reason}
                                            what came of it
  out  [n, answer]                          status: ok, invalid, fault (of the user's code) or memory
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from typing import Any

from gradbus.sandbox.child import confined_pipes, described, receive, send
from gradbus_environment.sandbox import trl
from gradbus_environment.sandbox.commands import Sandbox
from gradbus_environment.sandbox.tools import RESERVED, Tool, ToolError, tools_of
from gradbus_environment.sandbox.world import Document, FaultError, InvalidRewardError, World


def main() -> None:
    """Serves the parent until it closes the pipe."""
    pipes = confined_pipes()
    first = receive(pipes[0]) if pipes else None
    if pipes is None or first is None:
        return
    incoming, outgoing = pipes
    number = 0

    def asked(command: Document) -> Document:
        send(outgoing, [number, {"command": command}])
        said = receive(incoming)
        if said is None:  # the parent is gone
            os._exit(0)
        return dict(said)

    worlds = _Worlds(Sandbox(asked if first["has_sandbox"] else None))
    send(outgoing, {"loaded": worlds.load(first["source"])})
    while (message := receive(incoming)) is not None:
        number, call, session, fields, closed = message
        for ended in closed:
            worlds.close(ended)
        send(outgoing, [number, worlds.answer(call, session, fields)])


class _Worlds:
    """The user's class, and its objects by session."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._class: Any = None
        self._tools: dict[str, Tool] = {}
        self._open: dict[str, World] = {}

    def load(self, source: str) -> Document:
        """Runs the source and reads its tools."""
        names: dict[str, Any] = {"__name__": "environment"}
        try:
            exec(compile(source, "<environment>", "exec"), names)  # noqa: S102 - this process exists to run the user's code
            self._class = names.get("Environment")
            if not isinstance(self._class, type) or not callable(getattr(self._class, "reset", None)):
                return {"fault": "the source defines no class Environment with a method reset(item, seed) or reset(**columns)"}
            self._tools = tools_of(self._class, trl.RESERVED if trl.takes_columns(self._class) else RESERVED)
        except ToolError as error:
            return {"fault": str(error)}
        except BaseException as error:  # noqa: BLE001 - whatever it raises is reported to the user
            return {"fault": described(error, "<environment", "environment")}
        return {"tools": [asdict(tool) for tool in self._tools.values()], "python": platform.python_version()}

    def answer(self, call: str, session: str, fields: Document) -> Document:
        """The answer to one call."""
        try:
            if call == "open":
                self._open[session] = world = self._created(fields["seed"])
                return world.reset(json.loads(fields["item_json"]))
            return self._open[session].step(fields["turn"], fields["assistant"], fields["is_last"])
        except FaultError as error:
            return {"status": "fault", "reason": str(error)}
        except InvalidRewardError as error:
            return {"status": "invalid", "reason": str(error)}
        except MemoryError:
            return {"status": "memory", "reason": "its memory is full"}

    def close(self, session: str) -> None:
        """Forgets the session."""
        self._open.pop(session, None)

    def _created(self, seed: int) -> World:
        try:
            environment = self._class()
            if not hasattr(environment, "sandbox"):
                environment.sandbox = self._sandbox
            return World(environment, self._tools, seed)
        except MemoryError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it raises is told to the user
            raise FaultError(f"Environment() raised {described(error, '<environment', 'environment')}") from None
