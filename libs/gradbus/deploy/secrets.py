"""The secrets and configuration files of containers: one folder each, in compose one volume, with only the files that it needs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gradbus.access import buffer_configuration, buffer_users, host_name, nats_configuration
from gradbus.deploy.authority import Authority
from gradbus.deploy.credentials import Credentials, write_secret
from gradbus.deploy.roles import ROLES
from gradbus.errors import SettingsError
from gradbus.tls import AUTHORITY

BUCKET: Final = "gradbus"
OBJECT_USERS: Final = (*(role.name for role in ROLES.values() if role.stores_objects), "supervisor")
_CREDENTIALS: Final = "gradbus_objects_credentials"
_BUFFER_BYTES: Final = 2 << 30
_AUTHORITY: Final = "authority"
_TLS_DIR: Final = "/run/gradbus"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_PEERS: Final = "*.nats-peers"
"""The servers of a clustered NATS on Kubernetes."""
_SERVED: Final = ("gateway", "agent")
"""Roles that clients outside reach over HTTPS, under these names too."""
_GRAFANA: Final = "secrets/grafana/admin-password"


def write_secrets(state: Path, served_hosts: Sequence[str] = ()) -> None:
    """Makes the missing files below `state/secrets` and keeps the others, so that existing volumes still open.

    Renews certificates that expire soon. `served_hosts` are names of the gateway and the agent service besides their own and localhost.
    Raises SettingsError when the folder cannot be written.
    """
    root = state / "secrets"
    try:
        credentials = Credentials(root)
        _write_servers(credentials)
        _write_objects(root, credentials)
        _write_grafana(credentials)
        _write_certificates(credentials, served_hosts)
    except OSError as error:
        raise SettingsError(f"cannot write {error.filename or root} ({error.strerror}); mount a volume there that this user owns") from None


def authority(state: Path) -> str:
    """The certificate (PEM) of the authority that has issued all others. Raises SettingsError when there is none yet."""
    return _made(state / "secrets" / _AUTHORITY / AUTHORITY, "certificate")


def api_key(state: Path) -> str:
    """The API key made at the first start, with all scopes. Raises SettingsError when there is none yet."""
    return _made(state / "secrets" / "api-key", "API key")


def grafana_password(state: Path) -> str:
    """The password of Grafana's user `admin`. Raises SettingsError when there is none yet."""
    return _made(state / _GRAFANA, "password")


def _made(path: Path, what: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise SettingsError(f"there is no {what} ({error.strerror}); start the stack first, its init job makes one") from None


def _write_certificates(credentials: Credentials, served_hosts: Sequence[str]) -> None:
    """A certificate for each role and each server with its host name, by which callers check it and servers know their callers."""
    issuer = Authority(credentials.folder(_AUTHORITY))
    more = {"nats": (_PEERS,)} | dict.fromkeys(_SERVED, (*_LOOPBACK, *served_hosts))
    for role in (*ROLES, "supervisor", "nats", "buffer"):
        issuer.issue(credentials.folder(role), [host_name(role), *more.get(role, ())])


def _write_grafana(credentials: Credentials) -> None:
    path = credentials.folder("grafana") / Path(_GRAFANA).name
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(24))


def _write_servers(credentials: Credentials) -> None:
    """Paths in these files hold inside the servers' containers."""
    nats, buffer = credentials.folder("nats"), credentials.folder("buffer")
    configuration = nats_configuration(credentials.nats_password, "0.0.0.0:4222", "/var/lib/gradbus", "127.0.0.1:8222", _TLS_DIR)
    write_secret(nats / "nats.conf", configuration)
    write_secret(buffer / "users.acl", buffer_users(credentials.buffer_password))
    configuration = buffer_configuration("0.0.0.0:6379", "/var/lib/gradbus", "/run/gradbus/users.acl", _BUFFER_BYTES, _TLS_DIR)
    write_secret(buffer / "buffer.conf", configuration)
    write_secret(buffer / "password", credentials.buffer_password("supervisor"))


def _write_objects(root: Path, credentials: Credentials) -> None:
    """One key pair for all users: as SeaweedFS's configuration, and as plain text for any other server.

    Who has storage of their own may have stored other credentials, or none. Then SeaweedFS gets no configuration, and does not start.
    """
    stored = root / "supervisor" / _CREDENTIALS
    if not stored.exists():
        write_secret(stored, json.dumps({"access_key_id": secrets.token_hex(10), "secret_access_key": secrets.token_urlsafe(32)}))
    pair = json.loads(stored.read_bytes())
    for role in OBJECT_USERS:
        write_secret(credentials.folder(role) / _CREDENTIALS, json.dumps(pair))
    configuration, plain = (credentials.folder("objects") / name for name in ("s3.json", "access-key"))
    if not {"access_key_id", "secret_access_key"} <= pair.keys():
        configuration.unlink(missing_ok=True)
        plain.unlink(missing_ok=True)
        return
    key = {"accessKey": pair["access_key_id"], "secretKey": pair["secret_access_key"]}
    actions = [f"{action}:{BUCKET}" for action in ("Admin", "Read", "Write", "List", "Tagging")]
    identities = {"identities": [{"name": "gradbus", "credentials": [key], "actions": actions}]}
    write_secret(configuration, json.dumps(identities))
    write_secret(plain, ",".join(key.values()))
