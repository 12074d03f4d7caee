"""What hostile users attack, and the memory that they should leave as it was."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from gradbus.access.api_keys import SCOPES, new_api_key, read_api_keys, write_api_keys
from gradbus.process.usage import tree_usage

KEPT_BYTES: Final = 100 << 20
"""How much more a process may hold afterwards than before."""
_SERVERS: Final = ("nats", "buffer", "weight_store")
_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """What the clients attack."""

    host: str
    port: int
    """Of the gateway."""
    key: str
    """A valid API key: these users may sign in."""
    run_id: str
    """A run that is in progress."""
    ports: tuple[int, ...] = ()
    """Ports of the bus, the buffer and the gRPC servers."""

    @classmethod
    def of(cls, state: Path, key: str, run_id: str) -> Self:
        """The embedded stack in this state folder."""
        address, ports = urlsplit(_read(state, "gateway.json")["url"]), _read(state, "ports.json")
        return cls(str(address.hostname), int(address.port or 80), key, run_id, tuple(ports[name] for name in _SERVERS))

    def request(self, method: str, path: str, headers: str = "", body: bytes = b"") -> bytes:
        """An HTTP request with the key."""
        lines = f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAuthorization: Bearer {self.key}\r\n{headers}"
        return f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def new_key(state: Path, name: str) -> str:
    """Adds an API key with every scope to the stack in this folder; returns its token."""
    file = state / "secrets" / "gateway" / "api-keys.json"
    token, record = new_api_key(name, SCOPES)
    write_api_keys(file, [*read_api_keys(file), record])
    return token


def memory(state: Path) -> dict[str, int]:
    """Bytes that each process of the stack in this folder holds, its children included."""
    pids = {name: process["pid"] for name, process in _read(state, "stack.json")["processes"].items() if process["pid"]}
    found = {name: tree_usage(pid) for name, pid in pids.items()}
    return {name: usage.held_bytes if usage else 0 for name, usage in found.items()}


def kept(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each process that holds too much has grown."""
    grown = {name: after.get(name, 0) - size for name, size in before.items()}
    return {name: size for name, size in grown.items() if size > KEPT_BYTES}


async def settled(state: Path, before: Mapping[str, int], seconds: float) -> dict[str, int]:
    """The memory of each process, once none holds too much or the time is up."""
    deadline = time.monotonic() + seconds
    while kept(before, after := memory(state)) and time.monotonic() < deadline:  # noqa: ASYNC110 - memory has no event
        await asyncio.sleep(_LOOK_SECONDS)
    return after


def _read(state: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / name).read_text())
    return found
