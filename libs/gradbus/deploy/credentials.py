"""Secrets of a deployment: made at the first start, one folder for each role with only the secrets that it needs."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from gradbus.access import BUFFER_USERS, CALLERS, NATS_USERS
from gradbus.access.api_keys import SCOPES, new_api_key, read_api_keys, write_api_keys
from gradbus.rpc import token_hash


class Credentials:
    """The folder `secrets`: files of mode 0600 in folders of mode 0700."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)
        for server, callers in CALLERS.items():
            hashes = {role: token_hash(_stored_or_new(self.folder(role) / "gradbus_rpc_token")) for role in callers}
            write_secret(self.folder(server) / "gradbus_rpc_callers", json.dumps(hashes))
        for wire, users in (("nats", NATS_USERS), ("buffer", BUFFER_USERS)):
            for role in users:
                _stored_or_new(self.folder(role) / f"gradbus_{wire}_password")
        self.api_key = self._api_key()

    def folder(self, role: str) -> Path:
        """The secrets folder of a role, created if missing: its GRADBUS_SECRETS_DIR."""
        folder = self._root / role
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        return folder

    def nats_password(self, role: str) -> str:
        """The password of a role on NATS."""
        return _stored_or_new(self.folder(role) / "gradbus_nats_password")

    def buffer_password(self, role: str) -> str:
        """The password of a role on the buffer."""
        return _stored_or_new(self.folder(role) / "gradbus_buffer_password")

    def _api_key(self) -> str:
        path = self._root / "api-key"
        first, *others = api_keys_files(self._root)
        if path.exists() and first.exists():
            token = _stored_or_new(path)
        else:
            token, record = new_api_key("first-start", SCOPES)
            write_api_keys(first, [record])
            write_secret(path, token)
        for other in others:
            write_api_keys(other, read_api_keys(first))
        return token


def api_keys_files(secrets_root: Path) -> tuple[Path, ...]:
    """The files with the hashed records of the API keys, one for each role that takes these keys; the first one counts."""
    return tuple(secrets_root / role / "api-keys.json" for role in ("gateway", "agent"))


def write_secret(path: Path, value: str) -> None:
    """Writes a file atomically that only its owner can read."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value)
    temporary.replace(path)


def _stored_or_new(path: Path) -> str:
    """The secret in `path`; a new one if the file is missing."""
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(32))
    path.chmod(0o600)
    return path.read_text()
