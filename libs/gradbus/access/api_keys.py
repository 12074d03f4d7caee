"""API keys of the gateway: `<id>.<secret>` for the caller, a hash of the secret at rest.

A secret has 256 random bits, so a plain SHA-256 protects it: it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gradbus.errors import SettingsError

Scope = Literal["runs:read", "runs:write", "files:write", "admin"]
SCOPES: Final[tuple[Scope, ...]] = ("runs:read", "runs:write", "files:write", "admin")
_NOBODY: Final = hashlib.sha256(secrets.token_bytes(32)).hexdigest()


class ApiKeyRecord(BaseModel):
    """The gateway's record of a key."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]{1,32}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...]
    name: str

    def allows(self, scope: str) -> bool:
        """Whether the key has `scope`; `admin` has every scope."""
        return scope in self.scopes or "admin" in self.scopes


_RECORDS: Final = TypeAdapter(list[ApiKeyRecord])


def new_api_key(name: str, scopes: Sequence[str]) -> tuple[str, ApiKeyRecord]:
    """(token, record): the token is shown once, the record goes into the keys file.

    Raises SettingsError for an unknown scope or an empty list of them.
    """
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise SettingsError(f"unknown scopes {', '.join(unknown) or '(none)'}; choose from {', '.join(SCOPES)}")
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    record = ApiKeyRecord.model_validate({"id": key_id, "sha256": _hash(secret), "scopes": tuple(scopes), "name": name})
    return f"{key_id}.{secret}", record


def read_api_keys(path: Path) -> list[ApiKeyRecord]:
    """The records in a keys file. Raises SettingsError when it cannot be read."""
    try:
        return _RECORDS.validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read the API keys in {path} ({error.strerror}); create one with `gradbus keys create`") from None
    except ValidationError as error:
        raise SettingsError(f"{path} is not a list of API keys ({error.error_count()} faults); fix it or create new keys") from None


def write_api_keys(path: Path, records: Iterable[ApiKeyRecord]) -> None:
    """Replaces a keys file atomically, readable only by its owner."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump([record.model_dump() for record in records], file, indent=2)
    temporary.replace(path)


def find_api_key(records: Iterable[ApiKeyRecord], token: str) -> ApiKeyRecord | None:
    """The record of `token`, or None. Takes as long for an unknown id as for a wrong secret."""
    key_id, _, secret = token.partition(".")
    record = next((item for item in records if item.id == key_id), None)
    matches = hmac.compare_digest(_hash(secret), record.sha256 if record else _NOBODY)
    return record if matches else None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
