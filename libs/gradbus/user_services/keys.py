"""The operator's keys for servers that users' runs name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr

from gradbus.user_services.addresses import DEFAULT_PORTS

_HOST: Final = r"(?:[a-zA-Z0-9._-]+|\[[0-9a-fA-F:.]+\])"
_NAME: Final = re.compile(rf"{_HOST}|(?i:https?)://{_HOST}(?::[0-9]{{1,5}})?/?")
Origin = tuple[str, str, int]
"""Scheme, host in lower case and port."""


def _checked_name(name: str) -> str:
    named_origin(name)
    return name


KeysByOrigin = dict[Annotated[str, AfterValidator(_checked_name)], SecretStr]
"""The operator's setting."""


class ServiceKeys:
    """Keys by origin. A run's author chooses the URL, so a host alone does not say who gets a key: another port is another server, and
    without TLS anybody on the way reads it."""

    def __init__(self, keys: Mapping[str, str] | None = None) -> None:
        """`keys`: by origin, such as `http://127.0.0.1:8000`; a host alone is https on port 443. Raises ValueError for another name."""
        self._keys = {named_origin(name): key for name, key in (keys or {}).items()}

    @classmethod
    def of(cls, setting: KeysByOrigin) -> ServiceKeys:
        """Those of the operator's setting."""
        return cls({name: key.get_secret_value() for name, key in setting.items()})

    def headers(self, url: str) -> dict[str, str]:
        """The bearer token for the server at `url`, if it has one."""
        origin = _origin(url)
        key = self._keys.get(origin) if origin else None
        return {"authorization": f"Bearer {key}"} if key else {}


def named_origin(name: str) -> Origin:
    """The origin that an operator names. Raises ValueError, with how it is written."""
    origin = _origin(name if "://" in name else f"https://{name}") if _NAME.fullmatch(name) else None
    if origin is None:
        raise ValueError(f"{name[:80]!r} is no origin of a server; write http(s)://host:port, or a host alone for https on port 443")
    return origin


def _origin(url: str) -> Origin | None:
    try:
        parts = urlsplit(url)
        port = DEFAULT_PORTS.get(parts.scheme) if parts.port is None else parts.port
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port else None
