"""The API keys, from a file that is read again when it changes."""

from __future__ import annotations

from pathlib import Path

from gradbus.access.api_keys import ApiKeyRecord, find_api_key, read_api_keys
from gradbus.errors import SettingsError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)


class Keyring:
    """The keys of the file at `path`. Raises SettingsError if it cannot be read at the start; later it keeps the last good keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = read_api_keys(path)
        self._read_mtime = path.stat().st_mtime_ns

    def find(self, token: str) -> ApiKeyRecord | None:
        """The key that `token` belongs to, or None."""
        self._refresh()
        return find_api_key(self._records, token)

    def by_id(self, key_id: str) -> ApiKeyRecord | None:
        """The key with this id, or None if it was revoked."""
        self._refresh()
        return next((record for record in self._records if record.id == key_id), None)

    def _refresh(self) -> None:
        try:
            modified = self._path.stat().st_mtime_ns
            if modified != self._read_mtime:
                self._records, self._read_mtime = read_api_keys(self._path), modified
        except (OSError, SettingsError) as error:
            _log.error("api_keys_not_reloaded", path=str(self._path), error=str(error))
