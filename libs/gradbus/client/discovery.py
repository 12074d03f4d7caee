"""Finds the gateway's address and an API key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gradbus.errors import StackError

GATEWAY_FILE: Final = "gateway.json"
API_KEY_FILE: Final = "secrets/api-key"


def find_gateway(state: Path | None = None) -> tuple[str, str]:
    """(url, key): from GRADBUS_URL and GRADBUS_KEY, else from the embedded stack's state folder.

    The folder is `state`, else $GRADBUS_STATE, else `.gradbus`. Raises StackError when neither names a gateway.
    """
    url, key = os.environ.get("GRADBUS_URL"), os.environ.get("GRADBUS_KEY")
    if state is None and (url or key):
        return _checked(url, key)
    folder = state or Path(os.environ.get("GRADBUS_STATE", ".gradbus"))
    try:
        return json.loads((folder / GATEWAY_FILE).read_bytes())["url"], (folder / API_KEY_FILE).read_text().strip()
    except (OSError, ValueError, KeyError):
        raise StackError(
            f"no stack runs on {folder.absolute()}; start one with `gradbus up`, name its folder with --state, "
            "or set GRADBUS_URL and GRADBUS_KEY"
        ) from None


def find_authority() -> Path | None:
    """The file named by GRADBUS_CA."""
    named = os.environ.get("GRADBUS_CA")
    return Path(named) if named else None


def _checked(url: str | None, key: str | None) -> tuple[str, str]:
    if not url or not key:
        missing = "GRADBUS_KEY" if url else "GRADBUS_URL"
        raise StackError(f"{missing} is not set; set GRADBUS_URL and GRADBUS_KEY together, or neither and use a state folder")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise StackError(f"GRADBUS_URL is {url!r}, which is not an address; write http://host:port or https://host")
    if not key.isascii() or not key.isprintable():
        raise StackError("GRADBUS_KEY has characters that no key has; set it to the token that `gradbus keys create` printed")
    return url, key
