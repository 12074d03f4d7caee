"""The API keys, from a file that is read again when it changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from gradbus.access.api_keys import ApiKeyRecord, find_api_key, read_api_keys
from gradbus.errors import SettingsError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_LOOK_SECONDS: Final = 0.5
"""How long a revoked key may still work."""


class Keyring:
    """The keys of the file at `path`. Raises SettingsError if it cannot be read at the start; later it keeps the last good keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = _state(path)  # before the file is read: it may change meanwhile
        self._records = read_api_keys(path)
        self._looked_at = time.monotonic()

    def find(self, token: str) -> ApiKeyRecord | None:
        """The key that `token` belongs to, or None. A new key is found at once."""
        self._refresh(_LOOK_SECONDS)
        record = find_api_key(self._records, token)
        if record is None:
            self._refresh(0.0)
            record = find_api_key(self._records, token)
        return record

    def find_in_header(self, header: str) -> ApiKeyRecord | None:
        """The key in the value of `Authorization`, or None."""
        scheme, _, token = header.partition(" ")
        return self.find(token.strip()) if scheme.lower() == "bearer" else None

    def by_id(self, key_id: str) -> ApiKeyRecord | None:
        """The key with this id, or None if it was revoked."""
        self._refresh(_LOOK_SECONDS)
        return next((record for record in self._records if record.id == key_id), None)

    def _refresh(self, seconds: float) -> None:
        """Reads the file if it has changed, unless that was checked in the last `seconds`: on a busy disk it delays every request."""
        if time.monotonic() - self._looked_at < seconds:
            return
        self._looked_at = time.monotonic()
        try:
            state = _state(self._path)
            if state != self._state:
                self._records, self._state = read_api_keys(self._path), state
        except SettingsError as error:
            _log.error("api_keys_not_reloaded", path=str(self._path), error=str(error))


def _state(path: Path) -> tuple[int, int]:
    """What differs after a change. The time alone does not: two changes may fall into one tick of the file system's clock."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino
