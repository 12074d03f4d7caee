"""Text of other services, as users may see it."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = r"[^\s/'\"`:;,()\[\]]"
# A path of at least two names. What follows a letter, a colon or a slash is part of a URL; `/v1/` begins a route.
_SERVER_PATH: Final = re.compile(rf"(?:file://|(?<![\w.:/~-]))/(?!v1/)(?:{_NAME}+/)+({_NAME}*)")


def public_text(text: str) -> str:
    """`text` with every absolute path of a server cut down to its last name: `/var/cache/models/1f/config.json` is `config.json`."""
    return _SERVER_PATH.sub(r"\1", text)


def enum_word(name: str, prefix: str) -> str:
    """The name of a protobuf value as users see it, e.g. `stop` for FINISH_REASON_STOP."""
    return name.removeprefix(prefix).lower()
