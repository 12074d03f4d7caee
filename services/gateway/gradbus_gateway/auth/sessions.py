"""Sign-in codes and sessions of the web UI, in a key-value bucket, so that any replica can check them.

Only hashes are stored: reading the bucket does not let anybody sign in.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from typing import Final

from gradbus.bus import Bucket, Conflict, Entry
from gradbus.bus.subjects import SESSION_TTL_SECONDS

CODE_SECONDS: Final = 120.0
SESSION_SECONDS: Final = SESSION_TTL_SECONDS


class Sessions:
    """Reads and writes the bucket `sessions`. A session has the rights of the API key that requested its code."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def new_code(self, key_id: str) -> str:
        """A code that signs in once, within `CODE_SECONDS`, as the API key `key_id`."""
        return await self._new("code", key_id, CODE_SECONDS)

    async def redeem(self, code: str) -> str | None:
        """The token of a new session in exchange for a code; None if the code is unknown, used or expired."""
        entry = await self._bucket.get(_key("code", code))
        key_id = _key_id(entry)
        if entry is None or key_id is None:
            return None
        try:
            await self._bucket.delete(_key("code", code), entry.revision)
        except Conflict:
            return None  # another request redeemed it first
        return await self._new("session", key_id, SESSION_SECONDS)

    async def key_id(self, token: str) -> str | None:
        """Id of the API key that a session stands for; None if the session is unknown, ended or expired."""
        return _key_id(await self._bucket.get(_key("session", token)))

    async def end(self, token: str) -> None:
        """Ends a session; no error if there is none."""
        await self._bucket.delete(_key("session", token))

    async def _new(self, kind: str, key_id: str, seconds: float) -> str:
        token = secrets.token_urlsafe(32)
        value = {"key_id": key_id, "expires_unix": time.time() + seconds}
        await self._bucket.create(_key(kind, token), json.dumps(value).encode())
        return token


def _key(kind: str, token: str) -> str:
    # 256 random bits cannot be guessed, so a plain hash is enough.
    return f"{kind}.{hashlib.sha256(token.encode()).hexdigest()}"


def _key_id(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    value = json.loads(entry.value)
    return str(value["key_id"]) if value["expires_unix"] > time.time() else None
