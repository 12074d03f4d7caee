"""Ports on loopback that a stack chooses once and keeps over restarts."""

from __future__ import annotations

import errno
import random
import socket
import sys
from collections.abc import Mapping

from gradbus.errors import StackError

# Below the range that systems use for outgoing connections. A client that reconnects to a killed server could
# otherwise be given the server's own port, connect to itself, and keep the server from restarting.
_FIRST, _LAST = 20_000, 32_000
_TRIES = 2_000


def is_free(port: int) -> bool:
    """Whether a server can listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


class Ports:
    """Name to port: a remembered port is kept while it is free, otherwise a new one is chosen."""

    def __init__(self, remembered: Mapping[str, object]) -> None:
        self._remembered = {name: port for name, port in remembered.items() if isinstance(port, int)}
        self._given: dict[str, int] = {}
        self._claims: list[socket.socket] = []

    def __getitem__(self, name: str) -> int:
        if name not in self._given:
            kept = self._remembered.get(name)
            self._given[name] = kept if kept and self._takes(kept) else self._choose()
        return self._given[name]

    def claim(self, name: str, port: int, option: str) -> None:
        """Gives `name` the port that the user requested. Raises StackError if it is taken."""
        if not is_free(port):
            raise StackError(f"port {port} is taken or not allowed; give {option} another port, or {option} 0 for a free one")
        self._given[name] = port

    @property
    def known(self) -> dict[str, int]:
        """Every port given or remembered, to be stored for the next start."""
        return {**self._remembered, **self._given}

    def release(self) -> None:
        """Lets other stacks choose these ports."""
        for claim in self._claims:
            claim.close()
        self._claims.clear()

    def _choose(self) -> int:
        taken = set(self.known.values())
        for _ in range(_TRIES):
            port = random.randrange(_FIRST, _LAST)
            if port not in taken and self._takes(port):
                return port
        raise StackError(f"no free port between {_FIRST} and {_LAST}; stop some of the processes that listen there")

    def _takes(self, port: int) -> bool:
        """Reserves the port; False when it is in use or another stack has reserved it."""
        if not is_free(port):
            return False
        if sys.platform != "linux":
            return True
        claim = socket.socket(socket.AF_UNIX)  # an abstract socket name is unique on the machine and ends with the process
        try:
            claim.bind(f"\0gradbus-port-{port}")
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True
