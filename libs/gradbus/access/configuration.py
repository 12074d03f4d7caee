"""Configuration files of nats-server and the buffer, with every user and its permissions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Final

from gradbus.access.nats import nats_permissions
from gradbus.access.table import BUFFER, BUFFER_USERS, NATS_USERS
from gradbus.tls import AUTHORITY, CERTIFICATE, KEY

PasswordOf = Callable[[str], str]
"""A role's password."""
_CONNECTION: Final = "+ping +hello +select +client|id +client|setinfo +client|setname"


def nats_configuration(password_of: PasswordOf, listen: str, store: str, monitor: str = "", tls_dir: str = "") -> str:
    """One account with a user for each role. `listen` and `monitor` are host:port; the server answers health checks on `monitor`.

    With `tls_dir`, a folder as `gradbus.tls` describes it, clients connect by mutual TLS alone.
    """
    users = "\n".join(f"      {_nats_user(role, password_of(role))}" for role in NATS_USERS)
    return f"""server_name: gradbus
listen: "{listen}"
{f'http: "{monitor}"' if monitor else ""}
{_nats_tls(tls_dir) if tls_dir else ""}
max_payload: 4MB
jetstream {{
  store_dir: "{store}"
  sync_interval: always
}}
accounts {{
  GRADBUS {{
    jetstream: enabled
    users: [
{users}
    ]
  }}
}}
"""


def buffer_rules(role: str) -> str:
    """The role's access rules of Redis 7.0 and Valkey, for a user that starts without any right."""
    records = BUFFER[role]
    keys = [f"%{access}~{{*}}:{pattern}" for patterns, access in records.rights for pattern in patterns.split()]
    return " ".join([*keys, *(f"+{command}" for command in records.commands.split()), _CONNECTION])


def buffer_users(password_of: PasswordOf) -> str:
    """The rules of all users, with hashed passwords."""
    rules = [f"user {role} on #{_hashed(password_of(role))} {buffer_rules(role)}" for role in BUFFER_USERS]
    return "\n".join(["user default off", *rules]) + "\n"


def buffer_configuration(listen: str, folder: str, users: str, most_bytes: int, tls_dir: str = "") -> str:
    """Acknowledged writes are on disk; a full buffer refuses writes and evicts nothing. `listen` is host:port, `users` the rules' file.

    With `tls_dir`, a folder as `gradbus.tls` describes it, clients connect by mutual TLS alone.
    """
    host, _, port = listen.rpartition(":")
    return f"""bind {host}
{_buffer_tls(port, tls_dir) if tls_dir else f"port {port}"}
dir "{folder}"
aclfile "{users}"
save ""
appendonly yes
appendfsync always
aof-load-truncated yes
maxmemory {most_bytes}
maxmemory-policy noeviction
"""


def _nats_tls(folder: str) -> str:
    # TLS comes first, because a client that waits for the server's greeting could be told that there is none.
    files = f'cert_file: "{folder}/{CERTIFICATE}", key_file: "{folder}/{KEY}", ca_file: "{folder}/{AUTHORITY}"'
    return f"tls {{ {files}, verify: true, handshake_first: true }}"


def _buffer_tls(port: str, folder: str) -> str:
    files = f'tls-cert-file "{folder}/{CERTIFICATE}"\ntls-key-file "{folder}/{KEY}"\ntls-ca-cert-file "{folder}/{AUTHORITY}"'
    return f"port 0\ntls-port {port}\n{files}\ntls-auth-clients yes"


def _nats_user(role: str, password: str) -> str:
    allowed = nats_permissions(role)
    rights = {"publish": {"allow": allowed.publish}, "subscribe": {"allow": allowed.subscribe}}
    return json.dumps({"user": role, "password": password, "permissions": rights})


def _hashed(password: str) -> str:
    """SHA-256 of the password, hex, as the buffer stores it."""
    return hashlib.sha256(password.encode()).hexdigest()
