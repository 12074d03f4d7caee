"""The listening socket of a process that clients reach over HTTP, and how many connections its files allow."""

from __future__ import annotations

import resource
import socket
from typing import Final

from gradbus.errors import SettingsError

BACKLOG: Final = 2048
_UNSENT_BYTES: Final = 1 << 17


def listen(address: str, variable: str) -> socket.socket:
    """Listens on `host:port`. Raises SettingsError, which names the variable of the address, when that is taken.

    Connections inherit its options: a client that is gone is noticed within a minute, and what it does not read stays small.
    """
    host, _, port = address.rpartition(":")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=BACKLOG)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot listen on {address} ({error}); set {variable} to a free address") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000, "TCP_NOTSENT_LOWAT": _UNSENT_BYTES}
    for name, value in wanted.items():
        if hasattr(socket, name):  # not on every system
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return listener


def raise_open_files() -> int | None:
    """Raises this process's limit on open files as far as it may, and returns it; None without a limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return None if most == resource.RLIM_INFINITY else most
