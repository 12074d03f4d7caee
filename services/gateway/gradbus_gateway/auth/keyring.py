"""The API keys in force: the keys file, read again when it changes."""

from __future__ import annotations

from pathlib import Path

from gradbus.access.api_keys import ApiKeyRecord, find_api_key, read_api_keys
from gradbus.errors import SettingsError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)


class Keyring:
    """Raises SettingsError at the start when the file cannot be read; later it keeps the keys it had."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = read_api_keys(path)
        self._seen = path.stat().st_mtime_ns

    def find(self, token: str) -> ApiKeyRecord | None:
        """The key `token` belongs to, or None."""
        self._refresh()
        return find_api_key(self._records, token)

    def known(self, key_id: str) -> ApiKeyRecord | None:
        """The key with this id, or None when it was revoked."""
        self._refresh()
        return next((record for record in self._records if record.id == key_id), None)

    def _refresh(self) -> None:
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._seen:
                self._records, self._seen = read_api_keys(self._path), changed
        except (OSError, SettingsError) as error:
            _log.error("api_keys_kept_as_they_were", path=str(self._path), error=str(error))
