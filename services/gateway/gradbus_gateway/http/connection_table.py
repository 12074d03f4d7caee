"""All open connections: how many there are, and which of them to close first."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

from gradbus.process.listener import raise_open_files
from gradbus.telemetry.registry import RefusalCause
from gradbus_gateway.settings import ConnectionLimits

_OTHER_FILES: Final = 256
"""Files that are neither a connection nor sent over one."""


def within_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """Raises this process's limit on open files as far as it may, and returns `limits` with a total that it allows."""
    most = raise_open_files()
    if most is None:
        return limits
    room = max(1, (most - _OTHER_FILES) // 2)  # each connection may send or receive a file
    return limits.model_copy(update={"total": min(limits.total or room, room)})


class Connection(Protocol):
    """An open connection."""

    peer: str
    """Address of the client, or its network."""

    def displace(self, cause: RefusalCause) -> None:
        """Closes the connection because of a limit on connections."""

    def check(self, now: float) -> None:
        """Closes the connection if the client is too slow. `now` is the event loop's time in seconds."""


class ConnectionTable:
    """The open connections of this process.

    A connection *waits* until its next request has arrived with all headers. At a limit a new one displaces the one that has waited
    longest: clients that send a request at once are served, however many others only stay open.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: Counter[str] = Counter()
        self._waiting: OrderedDict[Connection, None] = OrderedDict()
        self._busy: set[Connection] = set()

    def opened(self, connection: Connection) -> None:
        """Adds a connection, which waits. If there is no room for it, it is closed."""
        limits, peer = self.limits, connection.peer
        cause: RefusalCause | None = None
        if limits.per_address and self._open[peer] >= limits.per_address:
            cause = self._make_room(peer, "address_connections")
        elif limits.total and self._open.total() >= limits.total:
            cause = self._make_room("", "connections")
        if cause is not None:
            connection.displace(cause)
            return
        self._open[peer] += 1
        self._waiting[connection] = None

    def waits(self, connection: Connection) -> None:
        """The connection has no request in progress any more. Nothing happens if it was removed, here and below."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._waiting[connection] = None

    def works(self, connection: Connection) -> None:
        """The connection has a request in progress."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._busy.add(connection)

    def closed(self, connection: Connection) -> None:
        """Removes a connection."""
        if connection not in self._waiting and connection not in self._busy:
            return
        self._waiting.pop(connection, None)
        self._busy.discard(connection)
        self._open[connection.peer] -= 1
        if not self._open[connection.peer]:
            del self._open[connection.peer]

    def __iter__(self) -> Iterator[Connection]:
        return iter([*self._waiting, *self._busy])

    def _make_room(self, peer: str, cause: RefusalCause) -> RefusalCause | None:
        """Closes the connection that has waited longest; with `peer`, the one of that address. Returns the cause if none waits."""
        oldest = next((connection for connection in self._waiting if not peer or connection.peer == peer), None)
        if oldest is None:
            return cause
        self.closed(oldest)
        oldest.displace(cause)
        return None
