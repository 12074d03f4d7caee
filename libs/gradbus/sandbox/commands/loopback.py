"""The loopback of a sandbox's network, on which its command reaches the service that started it. Standard library only."""

from __future__ import annotations

import fcntl
import socket
import struct

HOST, PORT = "127.0.0.1", 8080
_SIOCSIFFLAGS, _UP = 0x8914, 0x1
_BACKLOG = 64


def bring_up() -> None:
    """Switches the loopback of this network namespace on, which needs its capabilities. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP))


def give_listener(handle: int) -> None:
    """Sends the service, over the Unix socket `handle`, a socket that listens in this network. The handle is closed. Raises OSError."""
    with socket.socket(fileno=handle) as channel, socket.create_server((HOST, PORT), backlog=_BACKLOG) as listener:
        socket.send_fds(channel, [b"1"], [listener.fileno()])
