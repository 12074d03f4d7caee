"""Refused requests and closed connections, counted by cause."""

from __future__ import annotations

import time
from typing import Final

from gradbus.telemetry import PROCESS, get_logger
from gradbus.telemetry.registry import RefusalCause

_log = get_logger(__name__)
_LOG_SECONDS: Final = 60.0
_logged_at: Final[dict[RefusalCause, float]] = {}


def count_refusal(cause: RefusalCause, source: str) -> None:
    """Counts a refusal. `source`, a key or an address, is logged for the first one of a minute: more lines would help an attacker."""
    PROCESS.count("gradbus.gateway.refusals", attributes={"gradbus.refusal.cause": cause})
    now = time.monotonic()
    if now - _logged_at.get(cause, -_LOG_SECONDS) >= _LOG_SECONDS:
        _logged_at[cause] = now
        _log.warning("client_refused", cause=cause, source=source)
